"""How long a device waited for the host between two windows, and how long the host took from one to the next."""

from __future__ import annotations

import math
import time
from array import array
from dataclasses import dataclass
from typing import Final

# A few seconds of decoding: long enough for a 99th percentile, short enough to follow what is going on.
KEPT: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class GapTimes:
    """Seconds, over the last windows that followed another one at once.

    Attributes:
        windows: how many.
        p50_s, p99_s, most_s: that the device had nothing to compute.
        turn_p50_s, turn_p99_s: from a window's end seen to the next window handed over, whatever the device did.
    """

    windows: int
    p50_s: float
    p99_s: float
    most_s: float
    turn_p50_s: float
    turn_p99_s: float


class HostGaps:
    """Written by the thread that runs windows, read by any."""

    def __init__(self) -> None:
        self._gaps, self._turns = array("d", bytes(8 * KEPT)), array("d", bytes(8 * KEPT))
        self._count = 0
        self._seen_s: float | None = None

    def seen(self) -> None:
        """A window's answer is on the host."""
        self._seen_s = time.perf_counter()

    def submitted(self, *, idle: bool = True) -> None:
        """The next window was handed to the device, which was `idle`, or still has another one to compute."""
        if self._seen_s is not None:
            turn_s, place = time.perf_counter() - self._seen_s, self._count % KEPT
            self._turns[place] = turn_s
            self._gaps[place] = turn_s if idle else 0.0
            self._count += 1
            self._seen_s = None

    def interrupted(self) -> None:
        """What follows is no gap: nobody asked for a window, or a graph is captured first."""
        self._seen_s = None

    def times(self) -> GapTimes | None:
        """None before the second window."""
        count = min(self._count, KEPT)
        if count == 0:
            return None
        gaps, turns = sorted(self._gaps[:count]), sorted(self._turns[:count])
        middle, late = (count - 1) // 2, math.ceil(0.99 * count) - 1
        return GapTimes(
            windows=count,
            p50_s=gaps[middle],
            p99_s=gaps[late],
            most_s=gaps[-1],
            turn_p50_s=turns[middle],
            turn_p99_s=turns[late],
        )
