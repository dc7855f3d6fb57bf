"""The rotation of one vector, compiled for the CPU."""

from __future__ import annotations

from kernels.compiled.arrays import Floats
from kernels.compiled.jit import compiled


@compiled
def rotate(vector: Floats, cos: Floats, sin: Floats) -> None:
    """Rotates pairs (i, i + dims/2) of the first `dims` values, in place; cos and the signed sin are [dims]."""
    half = cos.shape[0] // 2
    for i in range(half):
        a, b = vector[i], vector[i + half]
        vector[i] = a * cos[i] + b * sin[i]
        vector[i + half] = b * cos[i + half] + a * sin[i + half]
