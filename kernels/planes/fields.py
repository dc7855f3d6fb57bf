"""Takes the blocks of each ggml type apart into codes, steps and scales, all rows at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kernels.quant.bits import fields, half, nibbles, planes, rows_of, words
from kernels.quant.codebooks import even_sign_patterns, grid, sign_patterns


@dataclass(frozen=True, slots=True)
class Fields:
    """Blocks, taken apart; value = d * step * (code - zero) + low * low_step with the zero of the format.

    Attributes:
        codes: uint8 [blocks, weights].
        d: float32 [blocks, 1], or [blocks, groups] where there are no steps.
        steps: int32 [blocks, groups] as stored less the bias, or None.
        low: as d, or None.
        low_steps: as steps, or None.
        index: int32 [blocks, weights / 4] into the codebook, with the sign in `codes` (0 or 1); None without.
    """

    codes: Tensor
    d: Tensor
    steps: Tensor | None = None
    low: Tensor | None = None
    low_steps: Tensor | None = None
    index: Tensor | None = None


def _scaled(blocks: Tensor, at: int, times: float) -> Tensor:
    return half(blocks, at) * times


def _q8_0(b: Tensor) -> Fields:
    return Fields(b[:, 2:] ^ 128, half(b, 0))


def _q5_high(b: Tensor) -> Tensor:
    return fields(b, 1, count=8).reshape(-1, 32) << 4


def _q5_0(b: Tensor) -> Fields:
    return Fields(nibbles(b[:, 6:]).reshape(-1, 32) | _q5_high(b[:, 2:6]), half(b, 0))


def _q5_1(b: Tensor) -> Fields:
    return Fields(nibbles(b[:, 8:]).reshape(-1, 32) | _q5_high(b[:, 4:8]), half(b, 0), low=half(b, 2))


def _nibble_block(b: Tensor) -> Fields:
    return Fields(nibbles(b[:, 2:]).reshape(-1, 32), half(b, 0))


def _q4_1(b: Tensor) -> Fields:
    return Fields(nibbles(b[:, 4:]).reshape(-1, 32), half(b, 0), low=half(b, 2))


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minimums of q4_k and q5_k from their 12 bytes, int32 [blocks, 8] each."""
    first, second, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = torch.cat((first & 63, (high & 15) | ((first >> 2) & 48)), dim=1)
    minimums = torch.cat((second & 63, (high >> 4) | ((second >> 2) & 48)), dim=1)
    return scales.to(torch.int32), minimums.to(torch.int32)


def _q4_k(b: Tensor) -> Fields:
    scales, minimums = _six_bits(b[:, 4:16])
    codes = nibbles(b[:, 16:].view(-1, 4, 32)).reshape(-1, 256)
    return Fields(codes, half(b, 0), scales, -half(b, 2), minimums)


def _q5_k(b: Tensor) -> Fields:
    scales, minimums = _six_bits(b[:, 4:16])
    high = planes(b[:, 16:48], 1, count=8) << 4
    codes = (nibbles(b[:, 48:].view(-1, 4, 32)).reshape(-1, 8, 32) | high).reshape(-1, 256)
    return Fields(codes, half(b, 0), scales, -half(b, 2), minimums)


def _q6_k(b: Tensor) -> Fields:
    low = nibbles(b[:, :128].reshape(-1, 2, 64)).reshape(-1, 256)
    high = planes(b[:, 128:192].reshape(-1, 2, 32), 2, count=4).reshape(-1, 256) << 4
    return Fields(low | high, half(b, 208), b[:, 192:208].view(torch.int8).to(torch.int32))


def _q3_k(b: Tensor) -> Fields:
    steps = nibbles(b[:, 96:104]).reshape(-1, 16) | planes(b[:, 104:108], 2, count=4).reshape(-1, 16) << 4
    codes = planes(b[:, 32:96].reshape(-1, 2, 32), 2, count=4).reshape(-1, 256)
    codes = codes | planes(b[:, :32], 1, count=8).reshape(-1, 256) << 2
    return Fields(codes, half(b, 108), steps.to(torch.int32) - 32)


def _q2_k(b: Tensor) -> Fields:
    packed = b[:, :16].to(torch.int32)
    codes = planes(b[:, 16:80].reshape(-1, 2, 32), 2, count=4).reshape(-1, 256)
    return Fields(codes, half(b, 80), packed & 15, -half(b, 82), packed >> 4)


def _q2_0(b: Tensor) -> Fields:
    return Fields(fields(b[:, 2:], 2, count=4).reshape(-1, 64), half(b, 0).expand(-1, 2))


def _iq4_xs(b: Tensor) -> Fields:
    low = fields(b[:, 4:8], 4, count=2).reshape(-1, 8)
    high = fields(b[:, 2:4], 2, count=4).reshape(-1, 8) << 4
    codes = nibbles(b[:, 8:].reshape(-1, 8, 16)).reshape(-1, 256)
    return Fields(codes, half(b, 0), (low | high).to(torch.int32) - 32)


def _negative(patterns: Tensor, index: Tensor) -> Tensor:
    """uint8 [blocks, 8 * signs]: 1 where the sign pattern is negative."""
    picked = rows_of((patterns < 0).to(torch.uint8), index)
    return picked.reshape(index.shape[0], -1)


def _levels(name: str, index: Tensor) -> Tensor:
    """uint8 [blocks, weights]: level numbers of grid rows; levels are those of `format.TABLES`."""
    values = grid(name, index.device)
    if name == "iq1_s":
        numbers = values + 1
    elif name in ("iq3_s", "iq3_xxs"):
        numbers = torch.div(values, 2 if name == "iq3_s" else 8, rounding_mode="floor")
    else:
        numbers = (values > 20).to(torch.float32) + (values > 40)
    return rows_of(numbers.to(torch.uint8), index).reshape(index.shape[0], -1)


def _iq3_index(b: Tensor) -> Tensor:
    return b[:, 2:66] | fields(b[:, 66:74], 1, count=8).reshape(-1, 64).to(torch.int32) << 8


def _odd_nibbles(packed: Tensor) -> Tensor:
    return fields(packed, 4, count=2).reshape(packed.shape[0], -1).to(torch.int32)


def _signed16(level: Tensor, negative: Tensor) -> Tensor:
    return torch.where(negative > 0, 7 - level, 8 + level)


def _iq3_s(b: Tensor) -> Fields:
    negative = _negative(sign_patterns(b.device), b[:, 74:106])
    codes = _signed16(_levels("iq3_s", _iq3_index(b)), negative)
    return Fields(codes, _scaled(b, 0, 2), _odd_nibbles(b[:, 106:110]))


def _iq3_s_codebook(b: Tensor) -> Fields:
    negative = _negative(sign_patterns(b.device), b[:, 74:106])
    return Fields(negative, _scaled(b, 0, 2), _odd_nibbles(b[:, 106:110]), index=_iq3_index(b).to(torch.int32))


def _sevens(packed: Tensor) -> Tensor:
    """Four 7-bit sign indices and, above them, a 4-bit scale, of int32 words [blocks, 8]."""
    return (packed.unsqueeze(-1) >> torch.arange(0, 28, 7, dtype=torch.int32, device=packed.device)) & 127


def _iq3_xxs(b: Tensor) -> Fields:
    packed = b[:, 66:98].clone().view(torch.int32)
    negative = _negative(even_sign_patterns(b.device), _sevens(packed).reshape(-1, 32))
    codes = _signed16(_levels("iq3_xxs", b[:, 2:66]), negative)
    return Fields(codes, _scaled(b, 0, 0.25), (packed >> 28) & 15)


def _iq2_xxs(b: Tensor) -> Fields:
    pairs = b[:, 2:].reshape(-1, 8, 8)
    packed = pairs[:, :, 4:].clone().view(torch.int32).reshape(-1, 8)
    negative = _negative(even_sign_patterns(b.device), _sevens(packed).reshape(-1, 32))
    codes = _levels("iq2_xxs", pairs[:, :, :4].reshape(-1, 32)) | negative << 2
    return Fields(codes, _scaled(b, 0, 0.125), (packed >> 28) & 15)


def _iq2_xs(b: Tensor) -> Fields:
    packed = words(b[:, 2:66])
    codes = _levels("iq2_xs", packed & 511) | _negative(even_sign_patterns(b.device), packed >> 9) << 2
    return Fields(codes, _scaled(b, 0, 0.125), _odd_nibbles(b[:, 66:74]))


def _iq2_s(b: Tensor) -> Fields:
    index = b[:, 2:34] | fields(b[:, 66:74], 2, count=4).reshape(-1, 32).to(torch.int32) << 8
    codes = _levels("iq2_s", index) | _negative(sign_patterns(b.device), b[:, 34:66]) << 2
    return Fields(codes, _scaled(b, 0, 0.125), _odd_nibbles(b[:, 74:82]))


def _iq1_s(b: Tensor) -> Fields:
    packed = words(b[:, 34:50])
    high = (packed.unsqueeze(-1) >> torch.arange(0, 12, 3, dtype=torch.int32, device=b.device)) & 7
    index = b[:, 2:34] | (high << 8).reshape(-1, 32)
    plus = (1 - (packed >> 15)).to(torch.uint8).repeat_interleave(32, dim=1)
    return Fields(_levels("iq1_s", index) | plus << 2, _scaled(b, 0, 0.125), (packed >> 12) & 7)


def _iq1_m(b: Tensor) -> Fields:
    packed = words(b[:, 48:56])
    quarters = (packed >> 12) << torch.arange(0, 16, 4, dtype=torch.int32, device=b.device)
    d = quarters.sum(1, keepdim=True, dtype=torch.int32).to(torch.int16).view(torch.float16).to(torch.float32)
    steps = (packed.unsqueeze(-1) >> torch.arange(0, 12, 3, dtype=torch.int32, device=b.device)) & 7
    nibble = fields(b[:, 32:48], 4, count=2).reshape(-1, 32)
    index = b[:, :32] | (nibble & 7).to(torch.int32) << 8
    plus = (1 - (nibble >> 3)).to(torch.uint8).repeat_interleave(8, dim=1)
    return Fields(_levels("iq1_s", index) | plus << 2, d * 0.125, steps.reshape(-1, 16))


SPLIT: Final[dict[tuple[str, str], Callable[[Tensor], Fields]]] = {
    ("Q8_0", "q8"): _q8_0,
    ("Q6_K", "q6k"): _q6_k,
    ("Q5_K", "q5k"): _q5_k,
    ("Q5_1", "q5m"): _q5_1,
    ("Q5_0", "q5"): _q5_0,
    ("Q4_K", "q4k"): _q4_k,
    ("Q4_1", "q4m"): _q4_1,
    ("Q4_0", "q4"): _nibble_block,
    ("Q3_K", "q3k"): _q3_k,
    ("Q2_K", "q2k"): _q2_k,
    ("Q2_0", "q2"): _q2_0,
    ("IQ4_NL", "lut4"): _nibble_block,
    ("IQ4_XS", "lut4k"): _iq4_xs,
    ("IQ3_S", "i4"): _iq3_s,
    ("IQ3_S", "iq3"): _iq3_s_codebook,
    ("IQ3_XXS", "lut4o"): _iq3_xxs,
    ("IQ2_S", "lut2s"): _iq2_s,
    ("IQ2_XS", "lut2s"): _iq2_xs,
    ("IQ2_XXS", "lut2"): _iq2_xxs,
    ("IQ1_S", "lut1"): _iq1_s,
    ("IQ1_M", "lut1s"): _iq1_m,
}
"""Blocks uint8 [blocks, block bytes] of (ggml type, plane format), taken apart."""
