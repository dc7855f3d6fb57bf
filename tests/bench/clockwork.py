"""A model whose windows take a fixed time and compute nothing: what the host does around them is all that is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from appliance.model.host_gaps import HostGaps
from appliance.model.interface import Ask, Chooser, Stepped, nothing
from appliance.model.window import Commit, Draft, Window
from kernels.rows import SpanPlan, pack_plan, plan_size
from kernels.sampling import Rules

ROWS = 40


class Clockwork:
    """Implements StepModel: every draft is right, and the host packs and unpacks as for a card."""

    def __init__(self, *, window_s: float, token: int, vocabulary: int) -> None:
        """Waits `window_s` a window without the interpreter, as for a card, and says `token` for ever.

        `late_s` has how late the end of each window was noticed: the timer's own 0.06 ms, and the interpreter's owner.
        """
        self.vocabulary, self.can_draft, self.gaps = vocabulary, True, HostGaps()
        self._window_s, self._token = window_s, token
        self.late_s: list[float] = []
        self._lengths: dict[int, int] = {}
        self._plan = torch.zeros(plan_size(ROWS), dtype=torch.int32).numpy()
        self._answer = torch.full((3 * ROWS + 9 * 17,), token, dtype=torch.int32)

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
        plans = [
            SpanPlan(
                slot=span.slot,
                rows=len(span.tokens),
                tokens=span.tokens,
                start=span.start,
                certain=len(span.tokens) - span.draft_count,
                next_token=ask.next_token,
            )
            for span, ask in zip(window.spans, asks, strict=True)
        ]
        pack_plan(plans, bucket=ROWS, out=self._plan)
        self.gaps.submitted()
        meanwhile()
        end_s = time.perf_counter() + self._window_s
        time.sleep(self._window_s)
        self.late_s.append(time.perf_counter() - end_s)
        self.gaps.seen()
        ids = self._answer.tolist()
        found = []
        for span, ask in zip(window.spans, asks, strict=True):
            drawn = 0 if ask.next_token is not None else span.draft_count + 1
            self._lengths[span.slot] += len(span.tokens)
            found.append(
                Stepped(
                    slot=span.slot,
                    tokens=tuple(ids[:drawn]),
                    finite=(True,) * drawn,
                    kept=len(span.tokens),
                    drafts=(self._token,) * ask.draft_max,
                    probabilities=(0.9,) * ask.draft_max,
                )
            )
        return tuple(found)
