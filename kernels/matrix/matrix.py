"""The layout of a matrix for compiled products."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Matrix(NamedTuple):
    """Columns in tiles of 32: first those with codes, then those in float32. Columns beyond the last are zero.

    A weight is `code * scale + low`, of its group of neighbouring inputs.

    Attributes:
        codes: int8 [tiles, inputs, TILE].
        scales: float32 [tiles, groups, TILE].
        lows: as scales, or empty [0, 0, TILE].
        floats: float32 [tiles, inputs, TILE].
    """

    codes: NDArray[np.int8]
    scales: NDArray[np.float32]
    lows: NDArray[np.float32]
    floats: NDArray[np.float32]

    @property
    def inputs(self) -> int:
        """Values of a row that is multiplied."""
        count: int = max(self.codes.shape[1], self.floats.shape[1])
        return count
