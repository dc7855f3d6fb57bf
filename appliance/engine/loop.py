"""The engine's thread, the only one that touches the device: arrivals, window, run, sample, commit, publish, draft."""

from __future__ import annotations

import logging
import time

import torch

from appliance.engine.board import Board
from appliance.engine.delivery import Delivery
from appliance.engine.fault_words import fault_sentence
from appliance.engine.garbage import Garbage
from appliance.engine.outbox import Outbox
from appliance.engine.steps import Stepper
from appliance.engine.watchdog import Watchdog
from appliance.scheduler.scheduler import Scheduler, SessionEvent
from appliance.scheduler.windows import Turn

_log = logging.getLogger(__name__)


# An engine that nobody asked for so long gets one more window ready that may come, which takes a fraction of a second.
_QUIET_S = 0.2


class EngineLoop:
    """Runs windows until told to stop or until something breaks."""

    def __init__(
        self,
        stepper: Stepper,
        scheduler: Scheduler,
        *,
        delivery: Delivery,
        board: Board,
        watchdog: Watchdog,
    ) -> None:
        """Ready to `run` on its own thread."""
        self._stepper = stepper
        self._scheduler = scheduler
        self._delivery = delivery
        self._outbox = Outbox(scheduler, delivery=delivery, board=board)
        self._board = board
        self._garbage = Garbage()
        self._watchdog = watchdog
        self._stopping = False
        self._drain_at_s: float | None = None
        self._ends_flying = False

    def drain(self, deadline_s: float) -> None:
        """Any thread: ends waiting requests now and running ones at the latest in `deadline_s`."""
        self._drain_at_s = time.monotonic() + deadline_s
        self._scheduler.queue.wake()

    def stop(self) -> None:
        """Any thread: ends everything after the current window."""
        self._stopping = True
        self._scheduler.queue.wake()

    def run(self) -> None:
        """The thread's body. Whatever escapes from a window is a fault of the whole engine."""
        try:
            with torch.inference_mode():
                while not self._stopping and self._delivery.fault is None:
                    self._once()
                self._land()
                self._outbox.add(self._scheduler.end_waiting() + self._scheduler.end_running())
                self._outbox.send()
        except BaseException as error:
            _log.exception("event=engine_thread_failed")
            try:
                self._outbox.send()
            finally:
                self._delivery.fail(f"the engine failed and must be restarted: {fault_sentence(error)}")
        finally:
            self._garbage.rest()
            self._watchdog.stop()

    def _once(self) -> None:
        began_s = time.perf_counter()
        self._outbox.add(self._leavers())
        for session in self._scheduler.admit():
            self._stepper.open(session)
            self._outbox.changed()
        self._plain_turn(began_s)

    def _plain_turn(self, began_s: float) -> None:
        """The next turn from launch to end, or a rest where nobody wants one."""
        turn = self._scheduler.next_turn()
        if turn is None:
            self._idle()
        else:
            self._watchdog.begin(turn.window.rows)
            self._window(turn, began_s)
            self._watchdog.end()

    def _idle(self) -> None:
        """Nobody wants a window: sleeps until somebody comes."""
        self._outbox.send()
        self._garbage.rest()
        self._scheduler.check_idle()
        more = self._stepper.rest()
        if not self._scheduler.queue.wait(_QUIET_S if more else None):
            self._stepper.prepare()

    def _land(self) -> None:
        """Brings back what is on its way; between two turns of this loop nothing is."""

    def _leavers(self) -> list[SessionEvent]:
        events = self._scheduler.end_cancelled(flying=self._ends_flying)
        if self._drain_at_s is not None:
            events += self._scheduler.end_waiting()
            if time.monotonic() >= self._drain_at_s:
                self._land()
                events += self._scheduler.end_running()
        return events

    def _window(self, turn: Turn, began_s: float) -> None:
        tokens_before = self._scheduler.generated_tokens
        composed_s = time.perf_counter()
        steps = self._scheduler.drafting.steps(turn)
        spent = self._stepper.step(turn, self._outbox)
        ended_s = time.perf_counter()
        self._scheduler.drafting.note(turn, steps=steps, seconds=ended_s - began_s)
        self._board.add(
            forward_s=spent.forward_s,
            sample_s=spent.sample_s,
            draft_s=spent.draft_s,
            host_s=composed_s - began_s + spent.host_s,
            tokens=self._scheduler.generated_tokens - tokens_before,
        )
