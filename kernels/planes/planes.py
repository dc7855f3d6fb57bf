"""Owns the packed form of a matrix: its words, its shape, and joining matrices that are read by one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.planes.format import FORMATS, TILE_COLUMNS, TILE_ROWS, PlaneFormat


@dataclass(frozen=True, slots=True)
class Planes:
    """A matrix [rows, columns] in strips of 32 rows (see `format.py`).

    Attributes:
        format: name in `FORMATS`.
        rows: of the matrix; strips beyond them hold zeros.
        columns: inputs.
        words: int32 [strips * strip words], 16-byte aligned.
    """

    format: str
    rows: int
    columns: int
    words: Tensor

    @property
    def form(self) -> PlaneFormat:
        """The format."""
        return FORMATS[self.format]

    @property
    def strips(self) -> int:
        """Strips of 32 rows."""
        return -(-self.rows // TILE_ROWS)

    @property
    def chunks(self) -> int:
        """Tiles of 128 inputs in a strip."""
        return -(-self.columns // TILE_COLUMNS)

    @property
    def padded_columns(self) -> int:
        """Inputs that an operand row has."""
        return self.chunks * TILE_COLUMNS

    def with_words(self, words: Tensor) -> Planes:
        """The same matrix with its words elsewhere."""
        return Planes(self.format, self.rows, self.columns, words)


def word_count(form: PlaneFormat, *, rows: int, columns: int) -> int:
    """Words of a matrix's planes."""
    return -(-rows // TILE_ROWS) * form.strip_words(columns)


def join(parts: Sequence[Planes]) -> tuple[Planes, tuple[int, ...]]:
    """Puts matrices of one format and one input below each other, so that one launch multiplies them all.

    Args:
        parts: at least one. Where a part's rows are no multiple of 32, zero rows follow it.

    Returns:
        The joined matrix, and the row at which each part starts.

    Raises:
        ValueError: no parts, or their formats or columns differ.
    """
    if not parts:
        raise ValueError("join: no matrices to join")
    kinds = {(part.format, part.columns) for part in parts}
    if len(kinds) > 1:
        raise ValueError(f"join: matrices differ in format or columns: {sorted(kinds)}; join only equal ones")
    starts, row = [], 0
    for part in parts:
        starts.append(row)
        row += part.strips * TILE_ROWS
    rows = starts[-1] + parts[-1].rows
    words = torch.cat([part.words for part in parts])
    return Planes(parts[0].format, rows, parts[0].columns, words), tuple(starts)
