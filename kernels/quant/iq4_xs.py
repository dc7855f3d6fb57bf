"""iq4_xs: 256 nibbles that choose one of 16 uneven levels, in 8 sub-blocks with signed 6-bit scales."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant.bits import fields, half, nibbles, rows_of
from kernels.quant.codebooks import iq4_levels


def unpack(blocks: Tensor) -> Tensor:
    """uint8 [blocks, 136] (d f16, 8 high pairs, 4 bytes of low nibbles, 128 bytes) to float32 [blocks, 256].

    A sub-block of 32 is d * (scale - 32) * level[nibble].
    """
    low = fields(blocks[:, 4:8], 4, count=2).view(-1, 8)
    high = fields(blocks[:, 2:4], 2, count=4).view(-1, 8) << 4
    scale = half(blocks, 0) * (low | high).to(torch.float32).sub_(32)
    values = rows_of(iq4_levels(blocks.device), nibbles(blocks[:, 8:].view(-1, 8, 16)).view(-1, 8, 32))
    return values.mul_(scale.unsqueeze(-1)).view(-1, 256)
