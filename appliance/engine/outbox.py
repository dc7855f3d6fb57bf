"""What clients shall hear, kept until a moment at which telling them costs nobody time; torch-free."""

from __future__ import annotations

import time

from appliance.engine.board import Board
from appliance.engine.delivery import Delivery
from appliance.scheduler.request import Tokens
from appliance.scheduler.scheduler import Scheduler, SessionEvent

# A picture costs as much as the scheduling of a window; nobody looks at it more often.
_PICTURE_EVERY_S = 0.02


class Outbox:
    """Owned by the engine's thread.

    Telling the event loop and drawing the picture cost a third of the host's time between two windows, so both are done
    while the device computes the next one. Nothing is lost: whoever waits, ends or fails sends first.
    """

    def __init__(self, scheduler: Scheduler, *, delivery: Delivery, board: Board) -> None:
        """Nothing to tell."""
        self._scheduler = scheduler
        self._delivery = delivery
        self._board = board
        self._events: list[SessionEvent] = []
        self._changed = False
        self._drawn_s = 0.0

    def add(self, events: list[SessionEvent]) -> None:
        """Keeps events until the next `send`, behind those that are already kept."""
        self._events += events

    def changed(self) -> None:
        """Somebody came or went: the next `send` draws the picture whatever the time."""
        self._changed = True

    def send(self) -> None:
        """Hands everything over in one call to the event loop."""
        events, self._events = self._events, []
        came_or_went = self._changed or any(not isinstance(event, Tokens) for _, event in events)
        now_s = time.monotonic()
        if came_or_went or now_s - self._drawn_s >= _PICTURE_EVERY_S:
            self._delivery.show(self._board.picture(self._scheduler))
            self._drawn_s, self._changed = now_s, False
        if events:
            self._delivery.publish(events)
