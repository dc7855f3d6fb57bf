"""A loaded qwen4exp model: weights, state of all slots, and the two calls of a window."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

import torch

from appliance.errors import EngineFault
from appliance.model.interface import Chooser, LoadedModel
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.attention import Tap
from appliance.model.qwen4exp.draft import Drafter
from appliance.model.qwen4exp.forward import Trunk, _ignore
from appliance.model.qwen4exp.ngram import NgramEmbedding
from appliance.model.qwen4exp.row_builder import RowBuilder
from appliance.model.qwen4exp.rows import Rows, SpanRows
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.model.qwen4exp.state import KV_TYPES, State
from appliance.model.qwen4exp.table import open_table
from appliance.model.qwen4exp.weights import Weights
from appliance.model.qwen4exp.window_check import check_window
from appliance.model.window import Commit, Draft, Window
from kernels.hyper import read_streams


class Qwen4Exp:
    """See `LoadedModel`. Owned by one thread."""

    def __init__(self, spec: ModelSpec, plan: LoadPlan, progress: Callable[[str, int], None]) -> None:
        device = torch.device(plan.device)
        self._spec = spec
        self._plan = plan
        self._drafting = spec.has_draft and plan.draft_max > 0
        self.weights = Weights(spec, device=device, once=plan.unpack == "once", draft=self._drafting, progress=progress)
        self.state = State(spec, plan)
        ngram = None
        if spec.ngram is not None:
            progress("opening the n-gram table", 98)
            table = open_table(spec.tensors["per_layer_token_embd.weight"], home=plan.ngram_home, device=device)
            ngram = NgramEmbedding(spec.ngram, table, device=device, eps=spec.rms_eps)
        self.builder = RowBuilder(spec, self.state, plan.page_tokens, device)
        self._trunk = Trunk(spec, self.weights, self.state, ngram)
        self.drafter = Drafter(spec, self.weights, self.state, self.builder)
        self._rows: Rows | None = None
        self.streams = torch.empty(0)
        progress("loaded", 100)

    @property
    def vocabulary(self) -> int:
        """Rows of logits."""
        return self._spec.vocabulary

    @property
    def can_draft(self) -> bool:
        """Whether there is a draft layer, and it was wanted."""
        return self._drafting

    def open_slot(self, slot: int) -> None:
        """See `LoadedModel`."""
        with torch.inference_mode():
            self.state.open(slot)

    def set_pages(self, slot: int, pages: Sequence[int]) -> None:
        """See `LoadedModel`."""
        with torch.inference_mode():
            self.state.set_pages(slot, pages)

    def length(self, slot: int) -> int:
        """Committed tokens of the slot."""
        return self.state.lengths[slot]

    def forward(self, window: Window) -> torch.Tensor:
        """See `LoadedModel`.

        Raises:
            EngineFault: a span that does not continue its slot, has no pages or has a token outside the vocabulary.
        """
        return self.forward_at(window)

    @torch.inference_mode()
    def forward_at(self, window: Window, *, positions: torch.Tensor | None = None, tap: Tap = _ignore) -> torch.Tensor:
        """`forward` with three-axis positions int64 [3, rows] for a window of one span, and a tap for tests."""
        check_window(window, self.state, vocabulary=self.vocabulary)
        spans = [SpanRows(span.slot, span.start, span.tokens) for span in window.spans]
        self._rows = rows = self.builder.build(spans, trunk=True, positions=positions)
        self.streams = self._trunk.run(rows, tap=tap)
        first = {span.slot: span.first for span in rows.spans}
        wanted = [first[span.slot] + i for span in window.spans for i in range(span.logits_from, len(span.tokens))]
        streams = self.streams
        if wanted != list(range(rows.count)):
            streams = streams.index_select(0, torch.tensor(wanted, dtype=torch.int64, device=streams.device))
        tap("wide", streams)
        mixed, _ = read_streams(streams, self.weights.head_read, eps=self._spec.rms_eps)
        tap("mixed", mixed)
        return self.weights.project(mixed)

    @torch.inference_mode()
    def advance(self, commits: Sequence[Commit], choose: Chooser) -> tuple[Draft, ...]:
        """See `LoadedModel`.

        Raises:
            EngineFault: no window before it, or a commit that does not belong to it.
        """
        rows = self._rows
        if rows is None:
            raise EngineFault("advance was called without a window before it; each forward allows one")
        spans = {span.slot: span for span in rows.spans}
        by_slot = {commit.slot: commit for commit in commits}
        for commit in commits:
            if (
                commit.slot not in spans
                or not 1 <= commit.kept <= spans[commit.slot].count
                or len(by_slot) < len(commits)
            ):
                raise EngineFault(f"commit {commit} does not belong to the window; spans were {list(spans)}")
        self._rows = None
        self._trunk.commit(rows, [by_slot[span.slot].kept if span.slot in by_slot else 0 for span in rows.spans])
        if not self._drafting or not commits:
            return tuple(Draft(commit.slot, (), ()) for commit in commits)
        x, last = self.drafter.catch_up([(spans[commit.slot], commit) for commit in commits], self.streams)
        if all(commit.draft_max == 0 for commit in commits):
            return tuple(Draft(commit.slot, (), ()) for commit in commits)
        ends = x.index_select(0, torch.tensor(last, device=x.device))
        return self.drafter.propose(ends, commits, choose)


def load_model(spec: ModelSpec, *, plan: LoadPlan, progress: Callable[[str, int], None]) -> LoadedModel:
    """Loads weights and makes the state, on the CPU or on a card.

    Args:
        spec: of the file.
        plan: sizes and homes.
        progress: gets a sentence and a percentage.

    Raises:
        ValueError: a plan that cannot be: unknown homes or types, pages that cut an indexer block.
    """
    if plan.page_tokens % spec.block_tokens:
        raise ValueError(
            f"page_tokens is {plan.page_tokens}; it must be a multiple of the block of {spec.block_tokens}"
        )
    if torch.device(plan.device).type == "cuda":
        device_module = importlib.import_module("appliance.model.qwen4exp.device.model")
        model: LoadedModel = device_module.load_device_model(spec, plan, progress)
        return model
    if plan.kv_type not in KV_TYPES:
        raise ValueError(
            f"kv type {plan.kv_type!r} is not available in this version; allowed are {', '.join(KV_TYPES)}"
        )
    if plan.unpack not in ("once", "per_use"):
        raise ValueError(f"unpack is {plan.unpack!r}; allowed are once and per_use")
    with torch.inference_mode():
        return Qwen4Exp(spec, plan, progress)
