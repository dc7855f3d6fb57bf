"""How long a stage computed and passed on, told by events on its stream; and how long it had nothing to do."""

from __future__ import annotations

import time
from enum import IntEnum

import torch

from appliance.model.qwen4exp.device.stage import Stage
from appliance.model.stage_status import StageStatus


class Mark(IntEnum):
    """Moments of a window on a stage: it landed, its computation began and ended, it was passed on."""

    LANDED = 0
    BEGUN = 1
    ENDED = 2
    PASSED = 3


_Marks = list[torch.cuda.Event]


def _new_marks() -> _Marks:
    return [torch.cuda.Event(enable_timing=True) for _ in Mark]  # type: ignore[no-untyped-call]


class StageClock:
    """Of one stage with a stream of its own; each lane has marks for two windows: one that is over, one on its way."""

    def __init__(self, stage: Stage, *, lanes: int, route: str) -> None:
        """Nothing happened yet; `route` to the next stage, "" for the last."""
        self._stage, self._route = stage, route
        self._marks: list[tuple[_Marks, _Marks]] = []
        if stage.stream is not None:
            self._marks = [(_new_marks(), _new_marks()) for _ in range(lanes)]
        self._turns = [0] * lanes
        self._over: list[_Marks] = []
        self._windows = 0
        self._busy_s = 0.0
        self._handoff_s = 0.0

    def mark(self, lane: int, moment: Mark) -> None:
        """Notes a moment on the stage's stream."""
        if self._marks:
            self._marks[lane][self._turns[lane]][moment].record(self._stage.stream)

    def over(self, lane: int) -> None:
        """The lane's window is over; its times are read by the next `tally`, so that the next window goes first."""
        self._windows += 1
        if self._marks:
            self._over.append(self._marks[lane][self._turns[lane]])
            self._turns[lane] ^= 1

    def tally(self) -> None:
        """Adds up the windows that are over; before a lane's next one is."""
        for landed, begun, ended, passed in self._over:
            self._busy_s += begun.elapsed_time(ended) / 1e3
            self._handoff_s += (landed.elapsed_time(begun) + ended.elapsed_time(passed)) / 1e3
        self._over.clear()

    def status(self, working_s: float) -> StageStatus:
        """So far; `working_s` with windows on their way."""
        self.tally()
        layers = self._stage.layers
        return StageStatus(
            device=str(self._stage.device),
            first_layer=layers.start,
            past_layer=layers.stop,
            windows=self._windows,
            busy_s=self._busy_s,
            idle_s=max(0.0, working_s - self._busy_s),
            handoff_s=self._handoff_s,
            route=self._route,
        )


class WorkingTime:
    """Seconds in which at least one window was on its way."""

    def __init__(self) -> None:
        """None yet."""
        self._flying = 0
        self._since_s = 0.0
        self.total_s = 0.0

    def begin(self) -> None:
        """A window is submitted."""
        if self._flying == 0:
            self._since_s = time.perf_counter()
        self._flying += 1

    def end(self) -> None:
        """A window is back."""
        self._flying -= 1
        now_s = time.perf_counter()
        self.total_s += now_s - self._since_s
        self._since_s = now_s
