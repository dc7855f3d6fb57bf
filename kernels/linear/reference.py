"""Plain torch product of operand rows with a planes matrix."""

from __future__ import annotations

from torch import Tensor

from kernels.planes import Planes, from_operand, unpack


def linear_reference(x: Tensor, planes: Planes) -> Tensor:
    """float32 [rows, N]: the rows' values times the transposed weights.

    Args:
        x: operand rows [rows, padded columns], fp16 or float32.
        planes: the matrix.
    """
    return from_operand(x, columns=planes.columns) @ unpack(planes).T
