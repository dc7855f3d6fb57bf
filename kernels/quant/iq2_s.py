"""iq2_s: 32 indices into a grid of 1024 rows of 8, explicit signs, 16 scales."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant.bits import fields, half, rows_of
from kernels.quant.codebooks import grid, sign_patterns


def unpack(blocks: Tensor) -> Tensor:
    """uint8 [blocks, 82] (d f16, 32 index bytes, 32 sign bytes, 8 bytes of high pairs, 8 scale bytes)
    to float32 [blocks, 256]. A sub-block of 16 is d * (0.5 + scale) / 4 * sign * grid.
    """
    scale = half(blocks, 0) * fields(blocks[:, 74:82], 4, count=2).view(-1, 16).to(torch.float32).add_(0.5) * 0.25
    high = fields(blocks[:, 66:74], 2, count=4).view(-1, 32).to(torch.int32) << 8
    values = rows_of(grid("iq2_s", blocks.device), blocks[:, 2:34] | high).view(-1, 16, 16)
    signs = rows_of(sign_patterns(blocks.device), blocks[:, 34:66]).view(-1, 16, 16)
    return values.mul_(scale.unsqueeze(-1)).mul_(signs).view(-1, 256)
