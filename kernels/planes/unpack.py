"""Planes back to float32, weight by weight from the words named in `format.py`; the reference of every kernel.

Equal to the blocks' values (`kernels.quant.dequantise`): d and offsets are fp16 in the file too, and only a power of
two is taken out. Where a strip of 32 rows holds scales that differ by more than 2^17 (direct scales; 2^28 for F16, BF16
and F32; 2^11 for steps), the smallest lose bits: by at most 2^-25 of the largest.
`wide` rounds products of a scale and a step to fp16: by 2^-11 of the product, times the code.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.planes.format import STEP_BIAS, TABLES, TAIL_WORDS, TILE_COLUMNS, TILE_ROWS, PlaneFormat
from kernels.planes.planes import Planes
from kernels.quant.codebooks import grid


class _Places:
    """Index and shift of every weight of a tile, int64 [32, 128]."""

    def __init__(self, device: torch.device) -> None:
        r, k = torch.arange(TILE_ROWS, device=device)[:, None], torch.arange(TILE_COLUMNS, device=device)[None, :]
        zero = r * 0 + k * 0
        self.qg = ((r // 8) % 2) * 2 + r // 16 + zero
        self.q, self.g, self.a = self.qg // 2, self.qg % 2, r % 8 + zero
        self.mj, self.b, self.mr, self.h, self.i = (k // 64 + zero, k // 16 % 4, k // 8 % 2, k // 4 % 2, k % 4)
        self.lane, self.m, self.row, self.k = self.a * 4 + self.b, self.mj * 2 + self.mr, r + zero, k + zero


def unpack(planes: Planes) -> Tensor:
    """The weights, float32 [rows, columns], on the planes' device."""
    form, at = planes.form, _Places(planes.words.device)
    words = planes.words.reshape(planes.strips, form.strip_words(planes.columns)).to(torch.int64) & 0xFFFFFFFF
    split = planes.chunks * form.code_words
    codes = words[:, :split].reshape(planes.strips, planes.chunks, -1)
    scales = words[:, split:-TAIL_WORDS].reshape(planes.strips, planes.chunks, form.scale_words)
    multiplier = _float(words[:, -TAIL_WORDS])[:, None, None, None]
    if form.bits == 16:
        values = _half(codes[..., at.i * 512 + at.qg * 128 + at.lane * 4 + at.m] >> (16 * at.h))
    elif form.bits == 32:
        values = _float(codes[..., at.h * 2048 + at.i * 512 + at.qg * 128 + at.lane * 4 + at.m])
    else:
        scale, low = _scales(form, scales, at)
        values = scale * (_codes(form, codes, at) - form.zero)
        values = (values if low is None else values + low) / 4096.0
    whole = (values * multiplier).permute(0, 2, 1, 3).reshape(planes.strips * TILE_ROWS, -1)
    return whole[: planes.rows, : planes.columns].contiguous()


def _float(words: Tensor) -> Tensor:
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32).view(torch.float32)


def _half(words: Tensor) -> Tensor:
    low = words & 0xFFFF
    return torch.where(low >= 1 << 15, low - (1 << 16), low).to(torch.int16).view(torch.float16).to(torch.float32)


def _plane(words: Tensor, at: _Places, bits: int, offset: int) -> Tensor:
    """Codes of one plane of 1, 2 or 4 bits that starts at word `offset` of each tile."""
    nibble = 16 * at.h + 4 * at.i
    if bits == 4:
        return words[..., offset + at.qg * 128 + at.lane * 4 + at.m] >> nibble & 15
    if bits == 2:
        return words[..., offset + at.q * 128 + at.lane * 4 + at.g * 2 + at.mj] >> (nibble + 2 * at.mr) & 3
    return words[..., offset + at.lane * 4 + at.qg] >> (nibble + at.m) & 1


def _codes(form: PlaneFormat, words: Tensor, at: _Places) -> Tensor:
    """Codes, after the table, float32 [strips, chunks, 32, 128]."""
    if form.codebook:
        return _from_codebook(words, at)
    if form.bits == 8:
        picked = words[..., at.i // 2 * 512 + at.qg * 128 + at.lane * 4 + at.m]
        codes = picked >> (16 * (at.i % 2) + 8 * at.h) & 255
    else:
        low, high = {2: (2, 0), 3: (2, 1), 4: (4, 0), 5: (4, 1), 6: (4, 2)}[form.bits]
        codes = _plane(words, at, low, 0)
        if high:
            codes = codes | _plane(words, at, high, low * TILE_COLUMNS) << low
    if form.table:
        levels = torch.tensor(TABLES[form.table], dtype=torch.float32, device=words.device)
        return levels[codes] + STEP_BIAS
    return codes.to(torch.float32)


def _from_codebook(words: Tensor, at: _Places) -> Tensor:
    low = words[..., at.q * 128 + at.lane * 4 + at.g * 2 + at.mj] >> (16 * at.mr + 8 * at.h) & 255
    ninth = words[..., 384 + at.lane] >> (8 * at.qg + 2 * at.m + at.h) & 1
    level = (
        grid("iq3_s", words.device)[low | ninth << 8].take_along_dim(at.i[None, None, ..., None], -1)[..., 0] - 1
    ) / 2
    return torch.where(_plane(words, at, 1, 256) > 0, 7 - level, 8 + level)


def _steps(form: PlaneFormat, words: Tensor, at: _Places) -> Tensor:
    """Steps of one section, float32."""
    wide = at.a * 4 + at.qg
    if form.step_bits == 4:
        group = at.mj * 4 + at.b if form.group == 16 else at.mj * 2 + at.b // 2 + 4
        steps = words[..., wide] >> (4 * group) & 15
        return (2 * steps + 1 if form.odd else steps).to(torch.float32)
    if form.group == 32:
        steps = words[..., wide] >> (8 * (at.mj * 2 + at.b // 2)) & 255
    else:
        steps = words[..., at.a * 8 + at.b // 2 * 4 + at.qg] >> (8 * (at.mj * 2 + at.b % 2)) & 255
    return (steps - STEP_BIAS).to(torch.float32)


def _scales(form: PlaneFormat, words: Tensor, at: _Places) -> tuple[Tensor, Tensor | None]:
    """Scale and offset of every weight."""
    if form.step_bits == 0:
        groups = TILE_COLUMNS // form.group // 2
        place = (at.a * groups + at.b * groups // 4) * 4 + at.qg
        scale = _half(words[..., place] >> (16 * at.mj))
        size = TILE_ROWS * groups
        return scale, _half(words[..., place + size] >> (16 * at.mj)) if form.low else None
    if (form.step_bits, form.group) == (4, 32):
        return _half(words[..., at.a * 4 + at.qg]) * _steps(form, words, at), None
    size = 64 if (form.step_bits, form.group) == (8, 16) else 32
    step = _steps(form, words, at)
    if not form.low:
        return step * _half(words[..., size + at.a * 2 + at.q] >> (16 * at.g)), None
    both = words[..., 2 * size + at.a * 4 + at.qg]
    return step * _half(both), _steps(form, words[..., size:], at) * _half(both >> 16)
