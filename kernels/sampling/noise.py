"""Counter-based Gumbel noise: the same number for (seed, position, token) in any batch, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

_MASK64 = (1 << 64) - 1
# Finaliser of MurmurHash3 (32 bits) and Weyl constants of Knuth and of SplitMix64, as signed numbers where torch needs them.
_FIRST = 0x85EBCA6B - (1 << 32)
_SECOND = 0xC2B2AE35 - (1 << 32)
_WEYL32 = 0x9E3779B1 - (1 << 32)
_WEYL64 = 0x9E3779B97F4A7C15


def noise_key(seed: int, position: int) -> tuple[int, int]:
    """Two signed 32-bit keys of a row, mixed from its seed (taken modulo 2^64) and position by SplitMix64."""
    mixed = _mix64(_mix64((seed + _WEYL64) & _MASK64) ^ ((position * _WEYL64) & _MASK64))
    low, high = mixed & 0xFFFFFFFF, mixed >> 32
    return low - ((low & 0x80000000) << 1), high - ((high & 0x80000000) << 1)


def gumbel(keys: Tensor, tokens: Tensor) -> Tensor:
    """Standard Gumbel noise of each token.

    The argmax over tokens of logit + noise is a draw from softmax(logit). Two keyed rounds of an integer hash give
    32 bits; the logarithms are float64, so that the last bit of a device's logarithm cannot change a draw.

    Args:
        keys: int32 [rows, 2], from `noise_key`.
        tokens: integer ids [rows, n] or [1, n].

    Returns:
        float64 [rows, n].
    """
    hashed = tokens.to(torch.int32) * _WEYL32 + keys[:, :1]
    hashed = _mix32_(_mix32_(hashed).bitwise_xor_(keys[:, 1:]))
    # (h + 0.5) / 2^32 with h unsigned lies strictly between 0 and 1.
    uniform = hashed.to(torch.float64).add_(2.0**31 + 0.5).mul_(2.0**-32)
    return uniform.log_().neg_().log_().neg_()


def _mix32_(value: Tensor) -> Tensor:
    value.bitwise_xor_((value >> 16).bitwise_and_(0xFFFF)).mul_(_FIRST)
    value.bitwise_xor_((value >> 13).bitwise_and_(0x7FFFF)).mul_(_SECOND)
    return value.bitwise_xor_((value >> 16).bitwise_and_(0xFFFF))


def _mix64(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)
