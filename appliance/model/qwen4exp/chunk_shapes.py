"""Shapes of prompt chunks whose launches are recorded; torch-free.

What is launched for a chunk depends on two numbers alone: for how many rows there is room, and for how long a text.
Where the text lies, and how many rows are somebody's, the launches read on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

RECORDED_ROWS: Final = (128, 256, 512, 1024, 2048)
"""Of recorded chunks; one with fewer rows is filled up. Longer ones keep a card busy for longer than a host needs to
launch them one by one."""


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """What launches of a chunk are made for.

    Attributes:
        rows: with those that are nobody's.
        reach: texts are shorter than this, or as long.
    """

    rows: int
    reach: int


class ChunkShapes:
    """All of a model.

    Attributes:
        dense, most: the longest text that all rows see whole, and the longest.
    """

    def __init__(self, rows: tuple[int, ...], *, dense: int, most: int) -> None:
        """Lays texts out in steps.

        Args:
            rows: of recorded chunks; empty where none are.
            dense: the longest text whose rows see all of it, up to where other kernels are launched.
            most: the longest text.
        """
        self.dense, self.most = min(dense, most), most
        self._rows = sorted(rows)
        self._reaches = [self.dense]
        while self._reaches[-1] < most:
            self._reaches.append(min(2 * self._reaches[-1], most))

    @property
    def most_rows(self) -> int:
        """Of the longest recorded chunk; 0: none is."""
        return max(self._rows, default=0)

    def of(self, *, start: int, count: int) -> ChunkShape | None:
        """The shape for `count` rows from position `start` on; None for more than any has."""
        rows = next((rows for rows in self._rows if rows >= count), None)
        return None if rows is None else ChunkShape(rows, next(r for r in self._reaches if r >= start + count))

    def all(self) -> Iterator[ChunkShape]:
        """Every shape that can come, short texts first."""
        for reach in self._reaches:
            for fewer, rows in zip([0, *self._rows], self._rows, strict=False):
                if fewer < reach:
                    yield ChunkShape(rows, reach)
