"""Counter-based Gumbel noise: the same number for (seed, position, token) in any batch, on any device."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

_MASK64 = (1 << 64) - 1
# Finaliser of MurmurHash3 (32 bits) and Weyl constants of Knuth and SplitMix64; signed where torch needs them.
_FIRST = 0x85EBCA6B - (1 << 32)
_SECOND = 0xC2B2AE35 - (1 << 32)
_WEYL32 = 0x9E3779B1 - (1 << 32)
_WEYL64 = 0x9E3779B97F4A7C15
_FIRST64 = 0xBF58476D1CE4E5B9
_SECOND64 = 0x94D049BB133111EB


def noise_key(seed: int, position: int) -> tuple[int, int]:
    """Two signed 32-bit keys of a row, mixed from its seed (taken modulo 2^64) and position by SplitMix64."""
    mixed = _mix64(_mix64((seed + _WEYL64) & _MASK64) ^ ((position * _WEYL64) & _MASK64))
    low, high = mixed & 0xFFFFFFFF, mixed >> 32
    return low - ((low & 0x80000000) << 1), high - ((high & 0x80000000) << 1)


def first_mix(seed: int) -> int:
    """The half of `noise_key` that does not know the position, as a signed 64-bit number."""
    return _signed(_mix64((seed + _WEYL64) & _MASK64))


def noise_keys(first: Tensor, positions: Tensor) -> Tensor:
    """`noise_key` of many rows on their device: int32 [rows, 2] from `first_mix` and positions, both [rows]."""
    mixed = first ^ (positions.to(torch.int64) * _signed(_WEYL64))
    for shift, factor in ((30, _FIRST64), (27, _SECOND64)):
        mixed = (mixed ^ _shifted(mixed, shift)) * _signed(factor)
    mixed = mixed ^ _shifted(mixed, 31)
    # A conversion to fewer bits keeps the low ones.
    return torch.stack((mixed, mixed >> 32), 1).to(torch.int32)


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
    step = _constants(tokens.device)
    hashed = (tokens.to(torch.int32) * step.weyl).add(keys[:, :1])
    hashed = _mix32_(_mix32_(hashed, step).bitwise_xor_(keys[:, 1:]), step)
    # (h + 0.5) / 2^32, with h counted from -2^31, lies strictly between 0 and 1.
    uniform = hashed.to(torch.float64).add_(2.0**31 + 0.5).mul_(2.0**-32)
    return uniform.log_().neg_().log_().neg_()


class _Constants(NamedTuple):
    """Numbers of the hash as int32 tensors without dimensions: torch would make a new one of each number each time."""

    weyl: Tensor
    first: Tensor
    second: Tensor
    shift_16: Tensor
    mask_16: Tensor
    shift_13: Tensor
    mask_19: Tensor


@cache
def _constants(device: torch.device) -> _Constants:
    numbers = (_WEYL32, _FIRST, _SECOND, 16, 0xFFFF, 13, 0x7FFFF)
    return _Constants(*torch.tensor(numbers, dtype=torch.int32, device=device).unbind())


def _mix32_(value: Tensor, step: _Constants) -> Tensor:
    # Shifts of signed numbers bring in copies of the sign, which the masks take out again.
    value.bitwise_xor_((value >> step.shift_16).bitwise_and_(step.mask_16)).mul_(step.first)
    value.bitwise_xor_((value >> step.shift_13).bitwise_and_(step.mask_19)).mul_(step.second)
    return value.bitwise_xor_((value >> step.shift_16).bitwise_and_(step.mask_16))


def _mix64(value: int) -> int:
    value = ((value ^ (value >> 30)) * _FIRST64) & _MASK64
    value = ((value ^ (value >> 27)) * _SECOND64) & _MASK64
    return value ^ (value >> 31)


def _signed(value: int) -> int:
    return value - ((value & (1 << 63)) << 1)


def _shifted(value: Tensor, count: int) -> Tensor:
    """Right by `count`, zeros coming in."""
    return (value >> count) & ((1 << (64 - count)) - 1)
