"""iq3_s: 64 indices into a grid of 512 rows of 4, explicit signs, 8 scales."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant.bits import fields, half, rows_of
from kernels.quant.codebooks import grid, sign_patterns


def unpack(blocks: Tensor) -> Tensor:
    """uint8 [blocks, 110] (d f16, 64 index bytes, 8 bytes of ninth bits, 32 sign bytes, 4 scale bytes)
    to float32 [blocks, 256]. A sub-block of 32 is d * (1 + 2 * scale) * sign * grid.
    """
    scale = half(blocks, 0) * fields(blocks[:, 106:110], 4, count=2).view(-1, 8).to(torch.float32).mul_(2).add_(1)
    ninth = fields(blocks[:, 66:74], 1, count=8).view(-1, 64).to(torch.int32) << 8
    values = rows_of(grid("iq3_s", blocks.device), blocks[:, 2:66] | ninth).view(-1, 8, 32)
    signs = rows_of(sign_patterns(blocks.device), blocks[:, 74:106]).view(-1, 8, 32)
    return values.mul_(scale.unsqueeze(-1)).mul_(signs).view(-1, 256)
