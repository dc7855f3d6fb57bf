"""Pulls numbers out of block bytes: halves, nibbles and bit fields of uint8 tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def half(blocks: Tensor, at: int) -> Tensor:
    """The IEEE half at byte `at` of each block, as float32 [blocks, 1]."""
    return blocks[:, at : at + 2].clone().view(torch.float16).to(torch.float32)


def fields(values: Tensor, width: int, *, count: int) -> Tensor:
    """Splits each byte of [blocks, bytes] into `count` fields of `width` bits, lowest first: [blocks, bytes, count]."""
    shifts = torch.arange(0, width * count, width, dtype=torch.uint8, device=values.device)
    return (values.unsqueeze(-1) >> shifts) & ((1 << width) - 1)


def planes(values: Tensor, width: int, *, count: int) -> Tensor:
    """As `fields`, with the field number outside the byte number: [blocks, count, bytes]."""
    shifts = torch.arange(0, width * count, width, dtype=torch.uint8, device=values.device)
    return (values.unsqueeze(-2) >> shifts.unsqueeze(-1)) & ((1 << width) - 1)


def nibbles(values: Tensor) -> Tensor:
    """Low nibbles of all bytes, then high nibbles: [..., bytes] to [..., 2, bytes]."""
    return torch.stack((values & 15, values >> 4), dim=-2)


def words(values: Tensor) -> Tensor:
    """Little-endian 16-bit words of [blocks, bytes] as non-negative int32 [blocks, bytes / 2]."""
    return values.clone().view(torch.int16).to(torch.int32) & 0xFFFF


def scales_and_minimums(packed: Tensor) -> tuple[Tensor, Tensor]:
    """The eight 6-bit scales and minimums of q4_k and q5_k from their 12 bytes, each float32 [blocks, 8, 1]."""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = torch.cat((low & 63, (high & 15) | ((low >> 2) & 48)), dim=1)
    minimums = torch.cat((middle & 63, (high >> 4) | ((middle >> 2) & 48)), dim=1)
    return scales.to(torch.float32).unsqueeze(-1), minimums.to(torch.float32).unsqueeze(-1)


def rows_of(table: Tensor, index: Tensor) -> Tensor:
    """table[index] for an integer index of any shape: [*index.shape, *table.shape[1:]]."""
    places = index.reshape(-1).to(torch.int32)
    if table.dtype == torch.uint8 and table.shape[1:] in ((4,), (8,)):
        # A row in one piece is fetched several times as fast as byte by byte.
        whole = table.view(torch.int32 if table.shape[1] == 4 else torch.int64).view(-1)
        return whole.index_select(0, places).view(torch.uint8).view(*index.shape, table.shape[1])
    return table.index_select(0, places).view(*index.shape, *table.shape[1:])
