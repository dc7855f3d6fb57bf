"""Conversations that a test decodes with a device model, each in its own slot, greedily."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from appliance.model.interface import Ask, Stepped, Ticket
from appliance.model.qwen4exp.device.model import DeviceModel
from appliance.model.window import Span, Window
from tests.device.models import open_slot


@dataclass(slots=True)
class Conversation:
    """What came of one slot.

    Attributes:
        prompt: read in the first window.
        drafts: asked for after each window.
        tokens: that stand.
        offered: drafts for the next window.
        probabilities: of all drafts, for comparisons to the bit.
    """

    slot: int
    prompt: tuple[int, ...]
    drafts: int
    tokens: list[int] = field(default_factory=list)
    offered: tuple[int, ...] = ()
    probabilities: list[float] = field(default_factory=list)

    def span(self, model: DeviceModel) -> Span:
        """The prompt, or the last token and its drafts."""
        if not self.tokens:
            return Span(slot=self.slot, start=0, tokens=self.prompt)
        drafts = self.offered[: self.drafts]
        return Span(
            slot=self.slot, start=model.length(self.slot), tokens=(self.tokens[-1], *drafts), draft_count=len(drafts)
        )

    def take(self, span: Span, found: Stepped) -> None:
        """What a window brought."""
        right = found.kept - (len(span.tokens) - span.draft_count)
        self.tokens += found.tokens[: right + 1]
        self.offered = found.drafts
        self.probabilities += found.probabilities


def submit(model: DeviceModel, some: Sequence[Conversation], *, lane: int) -> Ticket:
    """The next window of some conversations."""
    window = Window(tuple(one.span(model) for one in some))
    return model.submit(window, [Ask(draft_max=one.drafts) for one in some], lane=lane)


def collect(model: DeviceModel, some: Sequence[Conversation], ticket: Ticket) -> None:
    """What became of it."""
    for one, span, found in zip(some, ticket.window.spans, model.collect(ticket), strict=True):
        one.take(span, found)


def decode(model: DeviceModel, groups: Sequence[Sequence[Conversation]], rounds: int) -> None:
    """Opens the slots, then keeps a window of every group on its way; the oldest is collected first."""
    for some in groups:
        for one in some:
            open_slot(model, one.slot)
    flying = [(some, submit(model, some, lane=lane)) for lane, some in enumerate(groups)]
    for number in range(rounds * len(groups)):
        some, ticket = flying.pop(0)
        collect(model, some, ticket)
        if number < (rounds - 1) * len(groups):
            flying.append((some, submit(model, some, lane=ticket.lane)))
