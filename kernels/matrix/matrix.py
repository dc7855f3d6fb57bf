"""The layout of a matrix for compiled products."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.compiled.record import INTEGER, codes, fields, floats


class Matrix(NamedTuple):
    """Columns in tiles of 32: first those with codes, then those in float32. Columns beyond the last are zero.

    A weight is `code * scale + low`, of its group of neighbouring inputs.

    Attributes:
        codes: int8 [tiles, inputs, TILE].
        scales: float32 [tiles, groups, TILE].
        lows: as scales, or empty [0, 0, TILE].
        floats: float32 [tiles, inputs, TILE].
        codes_kernel: address of the product with codes, see `kernels/compiled/product.py`.
        floats_kernel: of that with floats.
    """

    codes: NDArray[np.int8]
    scales: NDArray[np.float32]
    lows: NDArray[np.float32]
    floats: NDArray[np.float32]
    codes_kernel: int
    floats_kernel: int

    @property
    def inputs(self) -> int:
        """Values of a row that is multiplied."""
        count: int = max(self.codes.shape[1], self.floats.shape[1])
        return count


MATRIX = fields(
    Matrix,
    codes=codes(3),
    scales=floats(3),
    lows=floats(3),
    floats=floats(3),
    codes_kernel=INTEGER,
    floats_kernel=INTEGER,
)
