"""A model whose windows take a fixed time and compute nothing: what the host does around them is all that is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from appliance.model.host_gaps import HostGaps
from appliance.model.interface import Ask, Chooser, Glance, Stepped, Ticket, no_glance, nothing
from appliance.model.qwen4exp.device.results import Found
from appliance.model.qwen4exp.device.turns import plan_of, stepped_of
from appliance.model.window import Commit, Draft, Window
from kernels.rows import pack_plan, plan_size
from kernels.sampling import Rules

ROWS, SLOTS, DRAFTS = 40, 9, 8
# Calls that let the interpreter go: the plan's copy, a graph's launch, the answer's copy.
LAUNCHES = 3


class Clockwork:
    """Implements AheadModel: every draft is right, and the host packs and unpacks as for a card."""

    reads, stages = 0, ()

    def __init__(self, *, window_s: float, token: int, vocabulary: int, ahead: bool = True) -> None:
        """Takes `window_s` a window without the interpreter, as a card does, and says `token` for ever.

        `late_s` has how late the end of each window was noticed: the timer's own 0.06 ms, and the interpreter's owner.
        """
        self.vocabulary, self.can_draft, self.gaps, self.ahead = vocabulary, True, HostGaps(), ahead
        self.late_s: list[float] = []
        self._window_s, self._token = window_s, token
        self._free_s, self._last = 0.0, [(0, 0)] * 2
        self._flying: dict[Ticket, tuple[float, list[int]]] = {}
        self._lengths: dict[int, int] = {}
        self._drafts = [0] * SLOTS
        self._here, self._there = torch.zeros(64), torch.zeros(64)
        self._plan = torch.zeros(plan_size(ROWS), dtype=torch.int32).numpy()
        self._answer = torch.full((4 * ROWS + SLOTS * (1 + 2 * DRAFTS),), token, dtype=torch.int32)

    def open_slot(self, slot: int) -> None:
        """See `LoadedModel`."""
        self._lengths[slot] = 0

    def set_pages(self, slot: int, pages: Sequence[int]) -> None:
        """See `LoadedModel`."""

    def length(self, slot: int) -> int:
        """See `LoadedModel`."""
        return self._lengths[slot]

    def open_rules(self, slot: int, rules: Rules, *, stops: Sequence[int], first_stop: int) -> bool:
        """See `StepModel`."""
        return True

    def forward(self, window: Window) -> torch.Tensor:
        """See `LoadedModel`: what the engine's own test of the model asks for, different for different prompts."""
        generator = torch.Generator().manual_seed(hash(window))
        return torch.randn(sum(span.logit_rows for span in window.spans), self.vocabulary, generator=generator)

    def advance(self, commits: Sequence[Commit], choose: Chooser) -> tuple[Draft, ...]:
        """See `LoadedModel`."""
        for commit in commits:
            self._lengths[commit.slot] += commit.kept
        return ()

    def step(
        self, window: Window, asks: Sequence[Ask], *, meanwhile: Callable[[], None] = nothing
    ) -> tuple[Stepped, ...]:
        """See `StepModel`."""
        ticket = self.submit(window, asks, meanwhile=meanwhile)
        meanwhile()
        return self.collect(ticket)

    def submit(
        self, window: Window, asks: Sequence[Ask], *, lane: int = 0, meanwhile: Callable[[], None] = nothing
    ) -> Ticket:
        """See `StagedModel`."""
        if self._last[lane] != (id(window), id(asks)):
            self._last[lane] = id(window), id(asks)
            plans = [plan_of(span, ask.next_token) for span, ask in zip(window.spans, asks, strict=True)]
            pack_plan(plans, bucket=ROWS, out=self._plan)
        for _ in range(LAUNCHES):
            self._there.copy_(self._here)
        now_s = time.perf_counter()
        self.gaps.submitted(idle=now_s >= self._free_s)
        self._free_s = max(now_s, self._free_s) + self._window_s
        ticket = Ticket(lane, window, tuple(asks))
        rows = [len(span.tokens) or 1 + min(span.draft_count, self._drafts[span.slot]) for span in window.spans]
        for span, ask in zip(window.spans, asks, strict=True):
            self._drafts[span.slot] = ask.draft_max
        self._flying[ticket] = self._free_s, rows
        return ticket

    def collect(self, ticket: Ticket, *, first: Glance = no_glance) -> tuple[Stepped, ...]:
        """See `AheadModel`."""
        end_s, rows = self._flying.pop(ticket)
        time.sleep(max(0.0, end_s - time.perf_counter()))
        self.late_s.append(time.perf_counter() - end_s)
        self.gaps.seen()
        answer = self._answer.tolist()
        first(answer[:ROWS], [0] * ROWS, rows)
        found = Found(
            ids=answer[:ROWS],
            bad=[0] * ROWS,
            rows=rows,
            kept=rows,
            draft_counts=[DRAFTS] * SLOTS,
            drafts=[answer[DRAFTS * slot : DRAFTS * (slot + 1)] for slot in range(SLOTS)],
            probabilities=[[0.9] * DRAFTS] * SLOTS,
        )
        stepped = stepped_of(ticket, found, drafting=True, tail=None)
        for one in stepped:
            self._lengths[one.slot] += one.kept
        return stepped
