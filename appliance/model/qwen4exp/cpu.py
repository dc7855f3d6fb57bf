"""A qwen4exp model on the CPU: weights, state of all slots, and the two calls of a window."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import numpy as np
import torch

from appliance.errors import EngineFault
from appliance.model.interface import Chooser
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.attention import Tap
from appliance.model.qwen4exp.draft import Drafter
from appliance.model.qwen4exp.forward import Ran, Trunk, _ignore
from appliance.model.qwen4exp.lanes import Lanes
from appliance.model.qwen4exp.ngram import NgramEmbedding
from appliance.model.qwen4exp.row_builder import RowBuilder
from appliance.model.qwen4exp.rows import SpanRows
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.model.qwen4exp.state import State
from appliance.model.qwen4exp.table import open_table
from appliance.model.qwen4exp.weights import Weights
from appliance.model.qwen4exp.window_check import check_window
from appliance.model.window import Commit, Draft, Span, Window
from kernels.greedy.op import likeliest


class Qwen4Exp:
    """See `LoadedModel`. Owned by one thread."""

    def __init__(self, spec: ModelSpec, plan: LoadPlan, progress: Callable[[str, int], None], *, threads: int) -> None:
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
            ngram = NgramEmbedding(spec.ngram, table, eps=spec.rms_eps)
        self._lanes = Lanes(threads)
        self.builder = RowBuilder(spec, self.state, plan.page_tokens)
        self._trunk = Trunk(spec, self.weights, self.state, ngram)
        self.drafter = Drafter(spec, self.weights, self.state, self.builder)
        self.ran: list[Ran] = []

    def rehearse(self) -> None:
        """Runs every compiled function once, so that no conversation waits for the compiler."""
        self.open_slot(0)
        self.set_pages(0, (0,))
        self.forward(Window((Span(slot=0, start=0, tokens=(0,)),)))
        self.advance((Commit(slot=0, kept=1, next_token=0, draft_max=2 * self._drafting),), self._rehearsed)
        self.open_slot(0)

    def _rehearsed(
        self, logits: torch.Tensor, *, slots: Sequence[int], positions: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.likeliest(logits)[:2]

    def likeliest(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `Likeliest`."""
        ids, shares, finite = likeliest(logits.numpy(), logits.shape[1])
        return torch.from_numpy(ids), torch.from_numpy(shares), torch.from_numpy(finite)

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
        rows = [0, *accumulate(span.count for span in spans)]
        counts = [0, *accumulate(len(span.tokens) - span.logits_from for span in window.spans)]
        logits = np.empty((counts[-1], self.weights.logit_columns), np.float32)
        numbers, found = self._trunk.look_up(spans)

        def run(cut: slice) -> Ran:
            built = self.builder.build(spans[cut], trunk=True, positions=positions)
            own = slice(rows[cut.start], rows[cut.stop])
            wanted = [
                row
                for span, asked in zip(built.spans, window.spans[cut], strict=True)
                for row in range(span.first + asked.logits_from, span.first + span.count)
            ]
            out = logits[counts[cut.start] : counts[cut.stop]]
            ngrams = numbers[own], found[own]
            return self._trunk.run(built, ngrams, np.array(wanted, dtype=np.int64), out, tap=tap)

        self.ran = self._lanes.run(run, self._lanes.cut([span.count for span in spans]))
        return torch.from_numpy(logits[:, : self.vocabulary])

    @torch.inference_mode()
    def advance(self, commits: Sequence[Commit], choose: Chooser) -> tuple[Draft, ...]:
        """See `LoadedModel`.

        Raises:
            EngineFault: no window before it, or a commit that does not belong to it.
        """
        ran, by_slot = self.ran, {commit.slot: commit for commit in commits}
        if not ran:
            raise EngineFault("advance was called without a window before it; each forward allows one")
        spans = {span.slot: span for part in ran for span in part.rows.spans}
        for commit in commits:
            if (
                commit.slot not in spans
                or not 1 <= commit.kept <= spans[commit.slot].count
                or len(by_slot) < len(commits)
            ):
                raise EngineFault(f"commit {commit} does not belong to the window; spans were {list(spans)}")
        self.ran = []
        drafts = {commit.slot: Draft(commit.slot, (), ()) for commit in commits}
        for some in self._lanes.run(
            lambda cut: self._settle(ran[cut.start], by_slot, choose), [slice(i, i + 1) for i in range(len(ran))]
        ):
            drafts |= {draft.slot: draft for draft in some}
        return tuple(drafts[commit.slot] for commit in commits)

    def _settle(self, ran: Ran, by_slot: Mapping[int, Commit], choose: Chooser) -> tuple[Draft, ...]:
        """Commits a part of the window, and drafts for it; conversations share nothing, so each part goes on alone."""
        slots = [span.slot for span in ran.rows.spans]
        self._trunk.commit(ran, [by_slot[slot].kept if slot in by_slot else 0 for slot in slots])
        own = [by_slot[slot] for slot in slots if slot in by_slot]
        return self.drafter.propose(ran, own, choose) if self._drafting and own else ()


def load_cpu_model(spec: ModelSpec, plan: LoadPlan, progress: Callable[[str, int], None]) -> Qwen4Exp:
    """Loads the weights, and compiles."""
    threads = torch.get_num_threads()
    # Conversations are spread over threads; a team of torch's own beside them would halve their speed.
    torch.set_num_threads(1)
    with torch.inference_mode():
        model = Qwen4Exp(spec, plan, progress, threads=threads)
        progress("compiling for this processor", 99)
        model.rehearse()
    progress("loaded", 100)
    return model
