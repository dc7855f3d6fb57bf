"""How long a device waited for the host between two windows: from one's end seen to the next one handed over."""

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
    """Seconds, over the last windows that followed another one at once."""

    windows: int
    p50_s: float
    p99_s: float
    most_s: float


class HostGaps:
    """Written by the thread that runs windows, read by any."""

    def __init__(self) -> None:
        self._ring = array("d", bytes(8 * KEPT))
        self._count = 0
        self._seen_s: float | None = None

    def seen(self) -> None:
        """A window's answer is on the host."""
        self._seen_s = time.perf_counter()

    def submitted(self) -> None:
        """The next window was handed to the device."""
        if self._seen_s is not None:
            self._ring[self._count % KEPT] = time.perf_counter() - self._seen_s
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
        found = sorted(self._ring[:count])
        return GapTimes(
            windows=count,
            p50_s=found[(count - 1) // 2],
            p99_s=found[math.ceil(0.99 * count) - 1],
            most_s=found[-1],
        )
