"""Models that draw, accept and draft themselves, on top of the checks of FakeModel: in one call, or in two halves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from appliance.model.host_gaps import HostGaps
from appliance.model.interface import Ask, Stepped, Ticket, nothing
from appliance.model.stage_status import StageStatus
from appliance.model.window import Commit, Window
from kernels.sampling import Rules
from tests.builders.fake_model import FakeModel, mixed

ROWS = 12


class SteppingModel(FakeModel):
    """Implements StepModel on top of the checks of FakeModel, greedily."""

    def __init__(self, *, lie: int = 0, fails_after: int | None = None) -> None:
        super().__init__(draft_right=mixed)
        self.steps = 0
        self.fails_after = fails_after
        self.lie = lie
        self.gaps = HostGaps()

    def open_rules(self, slot: int, rules: Rules, *, stops: Sequence[int], first_stop: int) -> bool:
        return rules.temperature == 0

    def step(
        self, window: Window, asks: Sequence[Ask], *, meanwhile: Callable[[], None] = nothing
    ) -> tuple[Stepped, ...]:
        if self.steps == self.fails_after:
            raise RuntimeError("the card is lost")
        self.steps += 1
        assert window.rows <= ROWS or (len(window.spans) == 1 and not window.spans[0].draft_count), (
            "a chunk is a prompt's"
        )
        meanwhile()
        logits = self.forward(window)
        best, numbers = logits.argmax(1).tolist(), logits.isfinite().all(1).tolist()
        found, commits, first = [], [], 0
        for span, ask in zip(window.spans, asks, strict=True):
            end = first + span.logit_rows
            count = 0 if ask.next_token is not None else span.draft_count + 1
            first, drawn, finite = end, best[end - count : end], numbers[end - count : end]
            drafts = span.tokens[len(span.tokens) - span.draft_count :]
            right = 0
            while right < len(drafts) and drawn[right] == drafts[right]:
                right += 1
            kept = len(span.tokens) - len(drafts) + right
            after = ask.next_token if ask.next_token is not None else drawn[right]
            found.append((span.slot, drawn, finite, kept))
            commits.append(Commit(slot=span.slot, kept=kept, next_token=after, draft_max=ask.draft_max))
        proposed = {draft.slot: draft for draft in self.advance(commits, greedy)}
        return tuple(
            Stepped(
                slot=slot,
                tokens=tuple(drawn),
                finite=tuple(finite),
                kept=kept + self.lie,
                drafts=proposed[slot].tokens if slot in proposed else (),
                probabilities=proposed[slot].probabilities if slot in proposed else (),
            )
            for slot, drawn, finite, kept in found
        )


def greedy(
    logits: torch.Tensor, *, slots: Sequence[int], positions: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    best = logits.argmax(1)
    return best, torch.softmax(logits, 1).gather(1, best.unsqueeze(1)).squeeze(1)


class StagedFake(SteppingModel):
    """Implements StagedModel: a window's outcome is known when it is submitted, and told when it is collected.

    Attributes:
        log: every submit and collect with its lane, in order.
        flying: slots of each lane's window on its way; of none that draws nothing.
        lost_at: number of the collect that fails; None: never.
    """

    reads = 3
    stages = tuple(
        StageStatus(
            device="cpu",
            first_layer=number,
            past_layer=number + 1,
            windows=0,
            busy_s=0.0,
            idle_s=0.0,
            handoff_s=0.0,
            route="peer",
        )
        for number in range(2)
    )

    def __init__(self, *, lie: int = 0, lost_at: int | None = None, fails_after: int | None = None) -> None:
        super().__init__(lie=lie, fails_after=fails_after)
        self.log: list[tuple[str, int]] = []
        self.flying: dict[int, set[int]] = {}
        self.lost_at = lost_at
        self._outcomes: dict[Ticket, tuple[Stepped, ...]] = {}

    def open_slot(self, slot: int) -> None:
        """Not while the slot's window is on its way."""
        assert all(slot not in slots for slots in self.flying.values())
        super().open_slot(slot)

    def submit(
        self, window: Window, asks: Sequence[Ask], *, lane: int = 0, meanwhile: Callable[[], None] = nothing
    ) -> Ticket:
        slots = {span.slot for span in window.spans}
        assert lane not in self.flying, "a lane has one window on its way"
        assert all(not slots & other for other in self.flying.values()), "a slot is in one window on its way"
        self.log.append(("submit", lane))
        ticket = Ticket(lane, window, tuple(asks))
        self._outcomes[ticket] = self.step(window, asks, meanwhile=meanwhile)
        self.flying[lane] = set() if ticket.draws_nothing else slots
        return ticket

    def collect(self, ticket: Ticket) -> tuple[Stepped, ...]:
        if sum(what == "collect" for what, _ in self.log) == self.lost_at:
            raise RuntimeError("the second card is lost")
        self.log.append(("collect", ticket.lane))
        del self.flying[ticket.lane]
        return self._outcomes.pop(ticket)
