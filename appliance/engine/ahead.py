"""The engine's thread for a card: a window is sent while the one before is computed, so the card waits for no host.

What the next window needs of the last one's answer (tokens, accepted drafts, positions) is on the card already. The
host names the conversations, and finds out one window later what they said: who has ended by then has rows in one
window more, which are dropped.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from appliance.engine.board import Board
from appliance.engine.delivery import Delivery
from appliance.engine.flights import AheadStepper, Flight
from appliance.engine.loop import EngineLoop
from appliance.engine.watchdog import Watchdog
from appliance.scheduler.ahead import arrive, doubt, long_alone, repeats
from appliance.scheduler.scheduler import Scheduler
from appliance.scheduler.windows import Turn

# A window that was waited for less was over before, nobody knows when: it says nothing of what windows take.
_AWAITED_S = 2e-5
# One that is computed and one that waits for it.
_LANES = 2


class AheadLoop(EngineLoop):
    """Two windows on their way; turns that want more than a draw wait for both and go the plain way.

    When one is back, the next one is sent before anything of the answer is settled: the last one once more, where
    nobody came, left or can have ended, which takes next to nothing; else it is composed, without whom the answer may
    have ended.
    """

    def __init__(
        self,
        stepper: AheadStepper,
        scheduler: Scheduler,
        *,
        delivery: Delivery,
        board: Board,
        watchdog: Watchdog,
    ) -> None:
        """Ready to `run` on its own thread."""
        super().__init__(stepper, scheduler, delivery=delivery, board=board, watchdog=watchdog)
        self._ahead = stepper
        self._flights: deque[Flight] = deque()
        self._ends_flying = True
        self._repeats = 0
        self._stops: frozenset[int] = frozenset()
        self._seen_s = 0.0

    def _once(self) -> None:
        began_s = time.perf_counter()
        sent = len(self._flights) == _LANES
        if not sent:
            self._look()
            if not self._ahead.draws(self._scheduler.running):
                self._plainly(began_s)
                return
            sent = self._send()
        self._outbox.send()
        self._garbage.tidy()
        if self._flights and (not sent or len(self._flights) == _LANES):
            self._land_oldest(began_s, ahead=sent)
        elif not sent:
            self._idle()

    def _look(self) -> None:
        """Who left, who came."""
        self._scheduler.queue.calm()  # whatever calls from here on is looked at next time
        self._outbox.add(self._leavers())
        for session in self._scheduler.admit():
            self._stepper.open(session)
            self._outbox.changed()

    def _plainly(self, began_s: float) -> None:
        """The next turn when nothing is on its way; whoever ends makes room for those who wait, so they come first."""
        if self._flights:
            self._land()
        else:
            self._plain_turn(began_s)

    def _send(self) -> bool:
        """Composes the next turn and sends it, if there is one.

        A prompt's own turn takes long enough to hide the host, and whoever comes waits for one of them at most.
        """
        scheduler, last = self._scheduler, self._flights[-1] if self._flights else None
        if last is not None and last.chunk and long_alone(scheduler):
            return False
        turn = scheduler.next_turn(ahead=True)
        if turn is None:
            return False
        self._watch(turn.window.rows)
        flight = self._ahead.start(turn, self._outbox, last=last)
        self._flights.append(flight)
        self._repeats = repeats(flight.turn, scheduler.limits)
        self._stops = frozenset().union(*[session.request.stop_token_ids for session in turn.sessions])
        self._plan_drafts(flight.turn)
        return True

    def _land(self) -> None:
        while self._flights:
            self._land_oldest(time.perf_counter(), ahead=False)

    def _land_oldest(self, began_s: float, *, ahead: bool) -> None:
        """Waits for the oldest window, and settles its answer; `ahead`: the next one is sent before that."""
        scheduler, flight = self._scheduler, self._flights.popleft()
        tokens_before, before_s, waiting_s = scheduler.generated_tokens, self._seen_s, time.perf_counter()

        def first(ids: Sequence[int], bad: Sequence[int], rows: Sequence[int]) -> None:
            self._seen_s = time.perf_counter()
            self._go_on(flight, ids, bad, rows, ahead=ahead)

        self._watch(0)
        self._ahead.land(flight, self._outbox, first=first)
        self._watchdog.end()
        if not flight.fresh and self._seen_s - waiting_s > _AWAITED_S:
            took_s = self._seen_s - max(before_s, flight.sent_s)
            scheduler.drafting.note(flight.turn, steps=flight.asks[0].draft_max, seconds=took_s)
        self._board.add(
            forward_s=self._seen_s - waiting_s,
            sample_s=0.0,
            draft_s=0.0,
            host_s=waiting_s - began_s + time.perf_counter() - self._seen_s,
            tokens=scheduler.generated_tokens - tokens_before,
        )

    def _go_on(
        self, flight: Flight, ids: Sequence[int], bad: Sequence[int], rows: Sequence[int], *, ahead: bool
    ) -> None:
        """A window is back: sends the next one, if `ahead`, before anything is settled."""
        scheduler = self._scheduler
        if not ahead or self._drain_at_s is not None:
            arrive(scheduler, flight.turn)
            return
        used = sum(rows[: len(flight.turn.sessions)])
        calm = self._stops.isdisjoint(ids[:used]) and not any(bad[:used])
        again = calm and self._repeats > 0 and not scheduler.queue.called
        if again and self._flights[-1].turn is flight.turn:
            self._flights.append(self._ahead.again(flight))
            arrive(scheduler, flight.turn)
            self._repeats -= 1
            self._plan_drafts(flight.turn)
            return
        arrive(scheduler, flight.turn)
        if not calm:
            doubt(flight.turn, ids, bad, rows)
        self._look()
        if self._ahead.draws(scheduler.running):
            self._send()

    def _plan_drafts(self, turn: Turn) -> None:
        """A turn was sent: looks whether the next one is to have other drafts."""
        scheduler, sessions = self._scheduler, turn.sessions[: turn.decoding]
        before = [session.acceptance.planned for session in sessions]
        scheduler.drafting.plan(scheduler.running, sessions, group=0, sharing=len(turn.sessions))
        if before != [session.acceptance.planned for session in sessions]:
            self._repeats = 0

    def _watch(self, rows: int) -> None:
        """The device is silent until what it has is computed."""
        self._watchdog.begin(rows + sum([flight.turn.window.rows for flight in self._flights]))
