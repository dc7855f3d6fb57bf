"""Which experts belong on the card: routed rows, older ones counting less, and the exchanges that pay; torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

HALF_LIFE_WINDOWS: Final = 512
"""After so many windows a routed row counts half."""
# An exchange moves two experts over the link: it must be worth it for longer than the next few windows.
RATIO: Final = 1.5
MARGIN: Final = 2.0


@dataclass(frozen=True, slots=True)
class Move:
    """An exchange in a layer: `expert` comes onto the card into the slot of `victim`, which takes its place in RAM."""

    layer: int
    expert: int
    victim: int


def hottest(heat: NDArray[np.float32], count: int) -> list[int]:
    """The `count` experts of one layer with the most routed rows, float32 [experts]; equal ones by number."""
    return [int(one) for one in np.argsort(-heat, kind="stable")[:count]]


class Heat:
    """Routed rows of every expert.

    Attributes:
        heat: float32 [layers, experts].
        rows, hits: routed rows since start, and those among them whose expert was on the card.
    """

    def __init__(self, start: NDArray[np.float32], *, every: int) -> None:
        """Begins with what an earlier run learned, or zeros.

        Args:
            start: float32 [layers, experts].
            every: windows between two calls of `add`.
        """
        self.heat = start.astype(np.float32)
        self.rows = self.hits = 0
        self._keep = np.float32(0.5 ** (every / HALF_LIFE_WINDOWS))
        self._last = np.zeros(start.shape, np.uint32)

    def add(self, counts: NDArray[np.int32], resident: NDArray[np.bool_]) -> None:
        """Takes counts since start, int32 [layers, experts], which wrap around; `resident`: bool, likewise."""
        now = counts.view(np.uint32)
        new = now - self._last
        self._last = now.copy()
        self.heat *= self._keep
        self.heat += new
        self.rows += int(new.sum(dtype=np.int64))
        self.hits += int(new.sum(dtype=np.int64, where=resident))

    def moves(self, resident: NDArray[np.bool_], *, most: int) -> list[Move]:
        """The best exchanges, at most one in a layer and `most` in all, the most worthwhile first.

        Args:
            resident: bool [layers, experts].
            most: how many.
        """
        wanted = np.where(resident, -np.inf, self.heat)
        held = np.where(resident, self.heat, np.inf)
        experts, victims = wanted.argmax(1), held.argmin(1)
        layers = np.arange(len(resident))
        # Where all experts are on one side, this is minus infinity.
        gain = wanted[layers, experts] - (held[layers, victims] * RATIO + MARGIN)
        order = np.argsort(-gain, kind="stable")[:most]
        return [Move(int(n), int(experts[n]), int(victims[n])) for n in order if gain[n] > 0]
