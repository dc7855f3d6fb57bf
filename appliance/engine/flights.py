"""Windows on their way: how one is sent behind another, and how it lands."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from appliance.engine.outbox import Outbox
from appliance.engine.steps import DeviceStepper
from appliance.model.interface import AheadModel, Ask, Glance, Ticket, nothing
from appliance.scheduler.ahead import land, send
from appliance.scheduler.scheduler import Scheduler
from appliance.scheduler.session import Session
from appliance.scheduler.windows import Turn

# Sending takes so long only where something is made first.
_LONG_S = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """A turn whose window is on its way.

    Attributes:
        turn, asks, ticket: of the window.
        chunk: a long prompt has it for itself.
        sent_s: when it was sent.
        fresh: it was the first of its shape, so that a graph was made for it.
    """

    turn: Turn
    asks: list[Ask]
    ticket: Ticket
    chunk: bool
    sent_s: float
    fresh: bool


class AheadStepper(DeviceStepper):
    """A step in two halves, the next one's first half in between."""

    def __init__(self, model: AheadModel, scheduler: Scheduler) -> None:
        """For a model whose state this thread owns."""
        super().__init__(model, scheduler)
        self.staged = model
        self._rows = scheduler.limits.span_rows or scheduler.limits.prompt_chunk

    def draws(self, sessions: list[Session]) -> bool:
        """Whether the device draws for all of them; if not, their windows go the plain way."""
        drawn = self._drawn
        return all(drawn[session.slot] for session in sessions)

    def start(self, turn: Turn, outbox: Outbox, *, last: Flight | None) -> Flight:
        """Sends a turn on its way, behind the `last` one; as that once more, if nothing differs."""
        asks = self._asks(turn)
        assert asks is not None, "who wants more than a draw goes the plain way"
        if last is not None and last.turn == turn and last.asks == asks:
            turn, asks = last.turn, last.asks
        chunk = turn.decoding == 0 and turn.window.rows > self._rows
        lane = 0 if last is None else 1 - last.ticket.lane
        return self._sent(turn, asks, lane=lane, chunk=chunk, meanwhile=outbox.send)

    def again(self, flight: Flight) -> Flight:
        """Sends a turn once more, of which the host knows no row and whose lane is free."""
        return self._sent(flight.turn, flight.asks, lane=flight.ticket.lane)

    def _sent(
        self,
        turn: Turn,
        asks: list[Ask],
        *,
        lane: int,
        chunk: bool = False,
        meanwhile: Callable[[], None] = nothing,
    ) -> Flight:
        began_s = time.perf_counter()
        ticket = self.staged.submit(turn.window, asks, lane=lane, meanwhile=meanwhile)
        send(self._scheduler, turn)
        sent_s = time.perf_counter()
        return Flight(turn, asks, ticket, chunk, sent_s, fresh=sent_s - began_s > _LONG_S)

    def land(self, flight: Flight, outbox: Outbox, *, first: Glance) -> None:
        """Waits for it and settles it; `first`: see `AheadModel`.

        Raises:
            EngineFault: the device kept other rows of a conversation than the host.
        """
        found = self.staged.collect(flight.ticket, first=first)
        outbox.add(land(self._scheduler, flight.turn, found))
