"""Rows of a window as index arrays: computed once, shared by every layer."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.block.op import Places
from kernels.compiled.arrays import Integers


@dataclass(frozen=True, slots=True)
class SpanRows:
    """Rows of one slot: positions start, start + 1, ...; `first` is where they begin among the window's rows."""

    slot: int
    start: int
    tokens: tuple[int, ...]
    first: int = 0

    @property
    def count(self) -> int:
        """Rows."""
        return len(self.tokens)

    @property
    def stop(self) -> int:
        """Position after the last row."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class Rows:
    """A window ready to run.

    Attributes:
        spans: in row order.
        tokens: int64 [rows].
        places: where the rows read and write.
    """

    spans: tuple[SpanRows, ...]
    tokens: Integers
    places: Places

    @property
    def count(self) -> int:
        """Rows of the window."""
        count: int = self.tokens.shape[0]
        return count
