"""Functions of one float32 that compilers turn into vector code; accurate to about 1e-7 of the result."""

from __future__ import annotations

import numpy as np

from kernels.compiled.arrays import Floats
from kernels.compiled.jit import compiled, compiled_sum
from kernels.compiled.vector import power_of_two

_ONE, _HALF, _ROUND = np.float32(1), np.float32(0.5), np.float32(12582912)
_LEAST, _MOST = np.float32(-87), np.float32(88)
_LOG2_E, _LN_2, _LN_2_REST = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
_C5, _C4, _C3 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_C2, _C1, _C0 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)


@compiled
def exp(x: np.float32) -> np.float32:
    """e^x; what is below -87 counts as -87, above 88 as 88, and NaN stays NaN."""
    if x < _LEAST:
        x = _LEAST
    if x > _MOST:
        x = _MOST
    shifted = x * _LOG2_E + _ROUND
    whole = shifted - _ROUND
    rest = x - whole * _LN_2 - whole * _LN_2_REST
    curve = ((((_C5 * rest + _C4) * rest + _C3) * rest + _C2) * rest + _C1) * rest + _C0
    value: np.float32 = (curve * rest * rest + rest + _ONE) * power_of_two(shifted)
    return value


@compiled
def sigmoid(x: np.float32) -> np.float32:
    """1 / (1 + e^-x)."""
    return _ONE / (_ONE + exp(-x))


@compiled
def silu(x: np.float32) -> np.float32:
    """x * sigmoid(x)."""
    return x / (_ONE + exp(-x))


@compiled_sum
def dot(a: Floats, b: Floats) -> np.float32:
    """Product of two vectors."""
    total = np.float32(0)
    for i in range(a.shape[0]):
        total += a[i] * b[i]
    return total


@compiled
def norm_scale(x: Floats, eps: np.float32) -> np.float32:
    """`1 / sqrt(mean(x^2) + eps)` of a vector."""
    scale: np.float32 = _ONE / np.sqrt(dot(x, x) / np.float32(x.shape[0]) + eps)
    return scale


@compiled
def norm_into(out: Floats, x: Floats, weight: Floats, eps: np.float32) -> None:
    """`out = x / sqrt(mean(x^2) + eps) * weight` of a vector."""
    scale = norm_scale(x, eps)
    for i in range(x.shape[0]):
        out[i] = x[i] * scale * weight[i]
