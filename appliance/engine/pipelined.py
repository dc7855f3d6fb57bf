"""The engine's thread for a model of several stages: windows of all groups on their way, the oldest waited for."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from appliance.engine.board import Board
from appliance.engine.delivery import Delivery
from appliance.engine.loop import EngineLoop
from appliance.engine.outbox import Outbox
from appliance.engine.steps import DeviceStepper
from appliance.engine.watchdog import Watchdog
from appliance.errors import EngineFault
from appliance.model.interface import StagedModel, Ticket
from appliance.scheduler.commit import Drawn
from appliance.scheduler.scheduler import Scheduler
from appliance.scheduler.windows import Turn


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """A turn whose window is on its way.

    Attributes:
        turn, ticket: of the window.
        settled: it draws nothing, so what comes of it was known when it was sent.
    """

    turn: Turn
    ticket: Ticket
    settled: bool


class FlyingStepper(DeviceStepper):
    """A step in two halves, with other groups' halves in between."""

    def __init__(self, model: StagedModel, scheduler: Scheduler) -> None:
        """For a model whose state this thread owns."""
        super().__init__(model, scheduler)
        self.staged = model

    def start(self, turn: Turn, outbox: Outbox, *, lane: int) -> Flight | None:
        """Sends a turn on its way; None where only `step` can compute it."""
        asks = self._asks(turn)
        if asks is None:
            return None
        ticket = self.staged.submit(turn.window, asks, lane=lane, meanwhile=outbox.send)
        if ticket.draws_nothing:
            outbox.add(self._scheduler.settle(turn, [Drawn()] * len(asks)).events)
            return Flight(turn, ticket, settled=True)
        for session in turn.sessions:
            session.flying = 1
        return Flight(turn, ticket, settled=False)

    def land(self, flight: Flight, outbox: Outbox) -> None:
        """Waits for it, settles it, and offers the next drafts.

        Raises:
            EngineFault: the device kept other rows of a conversation than the host.
        """
        stepped = self.staged.collect(flight.ticket)
        if flight.settled:
            for span, found in zip(flight.turn.window.spans, stepped, strict=True):
                if found.kept != len(span.tokens):
                    raise EngineFault(
                        f"slot {span.slot}: the device kept {found.kept} rows of a prompt's {len(span.tokens)}; "
                        "their states differ"
                    )
            return
        for session in flight.turn.sessions:
            session.flying = 0
        self._settle(flight.turn, stepped, outbox)


class PipelinedLoop(EngineLoop):
    """One group's host work is done while the others' windows are computed; with one group it is the plain order.

    Long prompts are read beside the groups, a chunk on every stage; what a chunk leaves needs no host.
    """

    def __init__(
        self,
        stepper: FlyingStepper,
        scheduler: Scheduler,
        *,
        delivery: Delivery,
        board: Board,
        watchdog: Watchdog,
    ) -> None:
        """Ready to `run` on its own thread."""
        super().__init__(stepper, scheduler, delivery=delivery, board=board, watchdog=watchdog)
        self._flyer = stepper
        self._flights: deque[Flight] = deque()
        self._groups = scheduler.limits.groups
        self._landed_s = 0.0

    def _once(self) -> None:
        began_s = time.perf_counter()
        tokens_before = self._scheduler.generated_tokens
        self._outbox.add(self._leavers())
        for session in self._scheduler.admit():
            self._stepper.open(session)
            self._outbox.changed()
        waited_s = sum(self._start_group(group) for group in range(self._groups)) + self._read_ahead()
        self._outbox.send()
        if self._flights:
            landing_s = time.perf_counter()
            self._land_oldest()
            waited_s += time.perf_counter() - landing_s
        elif not waited_s:
            self._idle()
            return
        self._board.add(
            forward_s=waited_s,
            sample_s=0.0,
            draft_s=0.0,
            host_s=time.perf_counter() - began_s - waited_s,
            tokens=self._scheduler.generated_tokens - tokens_before,
        )

    def _start_group(self, group: int) -> float:
        """Sends the group's next window on its way, unless it has one; see `_start`."""
        if group in self._lanes():
            return 0.0
        self._scheduler.groups.level(group, self._scheduler.running)
        turn = self._scheduler.next_turn(group)
        return 0.0 if turn is None else self._start(turn, lane=group)

    def _read_ahead(self) -> float:
        """Sends chunks of long prompts: one for every stage, and one to spare where no window has to pass; `_start`."""
        plain_s = 0.0
        lanes = self._lanes()
        beside = any(lane < self._groups for lane in lanes)
        reads = self._flyer.staged.reads - beside
        free = [lane for lane in range(self._groups, self._groups + reads) if lane not in lanes]
        stages = len(self._flyer.staged.stages)
        room = max(0, reads - sum(lane >= self._groups for lane in lanes))
        for lane in free[:room]:
            turn = self._scheduler.next_read(stages=stages)
            if turn is None:
                break
            plain_s += self._start(turn, lane=lane)
        return plain_s

    def _lanes(self) -> set[int]:
        return {flight.ticket.lane for flight in self._flights}

    def _start(self, turn: Turn, *, lane: int) -> float:
        """Sends a turn on its way, or computes it the plain way and returns how long that took."""
        self._watch(turn.window.rows)
        began_s, plain_s = time.perf_counter(), 0.0
        if not self._flights:
            self._landed_s = began_s
        flight = self._flyer.start(turn, self._outbox, lane=lane)
        if flight is None:
            self._stepper.step(turn, self._outbox)
            plain_s = time.perf_counter() - began_s
        else:
            self._flights.append(flight)
        self._watchdog.end()
        return plain_s

    def _land(self) -> None:
        while self._flights:
            self._land_oldest()

    def _land_oldest(self) -> None:
        self._watch(0)
        flight = self._flights.popleft()
        reads = any(lane >= self._groups for lane in (flight.ticket.lane, *self._lanes()))
        self._flyer.land(flight, self._outbox)
        self._watchdog.end()
        before_s, self._landed_s = self._landed_s, time.perf_counter()
        if not reads:  # windows of all groups come at the pace of the busiest stage
            steps = flight.ticket.asks[0].draft_max
            self._scheduler.drafting.note(flight.turn, steps=steps, seconds=self._landed_s - before_s)

    def _watch(self, rows: int) -> None:
        """The device is silent until what it has is computed."""
        self._watchdog.begin(rows + sum(flight.turn.window.rows for flight in self._flights))
