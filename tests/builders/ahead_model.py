"""A model that is sent windows before the last one is back, and knows alone what their rows are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from appliance.model.interface import Ask, Chooser, Glance, Stepped, Ticket, no_glance, nothing
from appliance.model.window import Commit, Draft, Span, Window
from tests.builders.stepping_model import SteppingModel


class AheadFake(SteppingModel):
    """Implements AheadModel: a window's outcome is known when it is sent, and told when it is collected.

    Attributes:
        log: every submit and collect with its lane, in order; a submit also with the rows of each slot.
        flying: slots of each lane's window on its way.
        lost_at: number of the collect that fails; None: never.
        opened: every slot that was opened, in order.
    """

    reads, ahead, stages = 0, True, ()

    def __init__(self, *, lie: int = 0, lost_at: int | None = None, fails_after: int | None = None) -> None:
        super().__init__(lie=lie, fails_after=fails_after)
        self.log: list[tuple[str, int, dict[int, int]]] = []
        self.flying: dict[int, set[int]] = {}
        self.lost_at = lost_at
        self.opened: list[int] = []
        self._outcomes: dict[Ticket, tuple[Stepped, ...]] = {}
        self._known: dict[int, tuple[int, ...]] = {}
        self._over: set[int] = set()
        self._unsettled: set[int] = set()

    def open_slot(self, slot: int) -> None:
        """Not while a window with the slot is on its way."""
        assert all(slot not in slots for slots in self.flying.values()), "a slot is given away while it is used"
        self.opened.append(slot)
        self._known.pop(slot, None)
        super().open_slot(slot)

    def step(
        self, window: Window, asks: Sequence[Ask], *, meanwhile: Callable[[], None] = nothing
    ) -> tuple[Stepped, ...]:
        raise AssertionError("this model's windows are sent ahead")

    def submit(
        self, window: Window, asks: Sequence[Ask], *, lane: int = 0, meanwhile: Callable[[], None] = nothing
    ) -> Ticket:
        assert lane in (0, 1), "two windows are on their way at most"
        assert lane not in self.flying, "a lane has one window on its way"
        told = Window(tuple(self._told(span) for span in window.spans))
        self.log.append(("submit", lane, {span.slot: span.rows for span in told.spans}))
        ticket = Ticket(lane, window, tuple(asks))
        outcome = super().step(told, asks, meanwhile=meanwhile)
        for one, span, ask in zip(outcome, told.spans, asks, strict=True):
            if ask.next_token is None:
                after = one.tokens[one.kept - self.lie - len(span.tokens) + span.draft_count]
                self._known[span.slot] = (after, *one.drafts)
        self._outcomes[ticket] = outcome
        self.flying[lane] = {span.slot for span in window.spans}
        return ticket

    def collect(self, ticket: Ticket, *, first: Glance = no_glance) -> tuple[Stepped, ...]:
        if sum(what == "collect" for what, *_ in self.log) == self.lost_at:
            raise RuntimeError("the card is lost")
        self.log.append(("collect", ticket.lane, {}))
        self._unsettled = self.flying.pop(ticket.lane)
        found = self._outcomes.pop(ticket)
        rows = [len(one.tokens) for one in found]
        ids = [token for one in found for token in one.tokens]
        first(ids, [not fine for one in found for fine in one.finite], rows)
        self._unsettled = set()
        return found

    def advance(self, commits: Sequence[Commit], choose: Chooser) -> tuple[Draft, ...]:
        """A commit of the host's tells what is known of a slot too; proposals end with a slot's pages."""
        drafts = super().advance(commits, choose)
        by_slot = {draft.slot: draft for draft in drafts}
        kept: list[Draft] = []
        for commit in commits:
            draft = by_slot.get(commit.slot, Draft(commit.slot, (), ()))
            room = max(0, self._room(commit.slot) - self.length(commit.slot) - 1)
            draft = replace(draft, tokens=draft.tokens[:room], probabilities=draft.probabilities[:room])
            self._known[commit.slot] = (commit.next_token, *draft.tokens)
            kept.append(draft)
        return tuple(kept)

    def _room(self, slot: int) -> int:
        return len(self._slots[slot].pages) * self._page_tokens

    def _told(self, span: Span) -> Span:
        """A span with the tokens that only the device knows."""
        if span.tokens:
            return span
        known = all(span.slot not in slots for slots in (self._unsettled, *self.flying.values()))
        assert not known, "the host knows the tokens"
        tokens = self._known[span.slot][: 1 + span.draft_count]
        self._over |= {span.slot} if self.length(span.slot) + len(tokens) > self._room(span.slot) else set()
        return Span(slot=span.slot, start=self.length(span.slot), tokens=tokens, draft_count=len(tokens) - 1)

    def _check(self, window: Window) -> None:
        """Rows of one that has ended may lie behind its pages, where nobody's are: the dummy page of a card."""
        over, self._over = self._over, set()
        for slot in over:
            pages = self._slots[slot].pages
            self._slots[slot].pages = (*pages, *range(-1000 * slot - 3, -1000 * slot))
        super()._check(window)
