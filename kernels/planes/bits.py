"""Puts codes and scales into the register order of the planes; torch on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.planes.format import TILE_COLUMNS, TILE_ROWS, PlaneFormat


def tiles(values: Tensor) -> Tensor:
    """[rows, columns] to [strip, chunk, q, g, a, b, mj, mr, h, i]."""
    rows, columns = values.shape
    shape = (rows // TILE_ROWS, 2, 2, 8, columns // TILE_COLUMNS, 2, 4, 2, 2, 4)
    return values.reshape(shape).permute(0, 4, 2, 1, 3, 6, 5, 7, 8, 9)


def row_groups(values: Tensor) -> Tensor:
    """[rows, chunks, ...] to [strip, chunk, a, q, g, ...]."""
    rows, chunks = values.shape[:2]
    shaped = values.reshape(rows // TILE_ROWS, 2, 2, 8, chunks, *values.shape[2:])
    return shaped.permute(0, 4, 3, 2, 1, *range(5, shaped.dim()))


def joined(values: Tensor, width: int) -> Tensor:
    """int32 [..., fields]: fields of `width` bits, the first lowest."""
    out = values[..., 0].to(torch.int32)
    for number in range(1, values.shape[-1]):
        out = out | (values[..., number].to(torch.int32) << (width * number))
    return out


def _four(codes: Tensor) -> Tensor:
    return joined((tiles(codes) & 15).flatten(-2), 4).flatten(2)


def _two(codes: Tensor) -> Tensor:
    """[q][lane][g mj], code (mr, h, i) at 16 h + 4 i + 2 mr."""
    t = tiles(codes) & 3
    order = t.permute(0, 1, 2, 4, 5, 3, 6, 8, 9, 7)  # strip chunk q a b g mj | h i mr
    return joined(order.flatten(-3), 2).flatten(2)


def _one(bits: Tensor) -> Tensor:
    """[lane][q g], bit (m, h, i) at 16 h + 4 i + m."""
    t = tiles(bits) & 1
    order = t.permute(0, 1, 4, 5, 2, 3, 8, 9, 6, 7)  # strip chunk a b q g | h i mj mr
    return joined(order.flatten(-4), 1).flatten(2)


def _eight(codes: Tensor) -> Tensor:
    """[i / 2][q g][lane][m], code (i % 2, h) at 16 (i % 2) + 8 h."""
    t = tiles(codes)
    t = t.reshape(*t.shape[:-1], 2, 2)  # ... h i/2 i%2
    order = t.permute(0, 1, 9, 2, 3, 4, 5, 6, 7, 10, 8)
    return joined(order.flatten(-2), 8).flatten(2)


def half_words(values: Tensor) -> Tensor:
    """float32 [..., 2 n] to int32 [..., n]: fp16 pairs."""
    return values.to(torch.float16).contiguous().view(torch.int32)


def _sixteen(values: Tensor) -> Tensor:
    return half_words(tiles(values).permute(0, 1, 9, 2, 3, 4, 5, 6, 7, 8).flatten(2))


def _thirty_two(values: Tensor) -> Tensor:
    order = tiles(values).permute(0, 1, 8, 9, 2, 3, 4, 5, 6, 7)
    return order.flatten(2).to(torch.float32).contiguous().view(torch.int32)


def code_words(form: PlaneFormat, codes: Tensor) -> Tensor:
    """uint8 codes [rows, columns] (float32 values for 16 and 32 bits) to int32 [strips, chunks, words]."""
    if form.bits == 2:
        return _two(codes)
    if form.bits == 3:
        return torch.cat((_two(codes), _one(codes >> 2)), dim=2)
    if form.bits == 4:
        return _four(codes)
    if form.bits == 5:
        return torch.cat((_four(codes), _one(codes >> 4)), dim=2)
    if form.bits == 6:
        return torch.cat((_four(codes), _two(codes >> 4)), dim=2)
    return {8: _eight, 16: _sixteen, 32: _thirty_two}[form.bits](codes)


def codebook_words(index: Tensor, negative: Tensor) -> Tensor:
    """Codebook indices [rows, columns / 4] and signs [rows, columns] to int32 [strips, chunks, words]."""
    rows, quads = index.shape
    t = index.reshape(rows // TILE_ROWS, 2, 2, 8, quads // 32, 2, 4, 2, 2)
    t = t.permute(0, 4, 2, 3, 6, 1, 5, 7, 8)  # strip chunk q a b g mj mr h
    low = joined((t & 255).flatten(-2), 8).flatten(2)
    high = (t >> 8).permute(0, 1, 3, 4, 2, 5, 6, 7, 8)  # strip chunk a b | q g mj mr h
    return torch.cat((low, _one(negative), joined(high.flatten(4), 1).flatten(2)), dim=2)


def step_words(form: PlaneFormat, steps: Tensor) -> Tensor:
    """Biased steps int32 [rows, chunks, groups] to int32 [strips, chunks, words]."""
    t = row_groups(steps)  # strip chunk a q g groups
    if (form.step_bits, form.group) == (8, 16):
        halves = t.reshape(*t.shape[:-1], 2, 2, 2)  # mj b/2 b%2
        return joined(halves.permute(0, 1, 2, 6, 3, 4, 5, 7).flatten(-2), 8).flatten(2)
    return joined(t, form.step_bits).flatten(2)


def scale_pairs(scales: Tensor) -> Tensor:
    """Direct scales [rows, chunks, groups] to int32 [strips, chunks, words]: [a][group of b][q g] with mj in halves."""
    t = row_groups(scales)
    halves = t.reshape(*t.shape[:-1], 2, t.shape[-1] // 2)  # ... mj, group of b
    return half_words(halves.permute(0, 1, 2, 6, 3, 4, 5).flatten(2))


def row_words(values: Tensor, low: Tensor | None) -> Tensor:
    """One fp16 a row and chunk to int32 [strips, chunks, words]: [a][q], g in halves, or [a][q g], low above."""
    t = row_groups(values)
    if low is None:
        return half_words(t.flatten(2))
    return half_words(torch.stack((t, row_groups(low)), dim=-1).flatten(2))


def nibbles_beside_half(values: Tensor, steps: Tensor) -> Tensor:
    """fp16 in the low half, four 4-bit steps above it: [a][q g]."""
    low = values.to(torch.float16).view(torch.int16).to(torch.int32) & 0xFFFF
    return row_groups(low | (joined(steps, 4) << 16)).flatten(2)
