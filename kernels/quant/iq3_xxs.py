"""iq3_xxs: 64 indices into a grid of 256 rows of 4, sign indices and scales packed in 8 words."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant.bits import half, rows_of
from kernels.quant.codebooks import even_sign_patterns, grid


def unpack(blocks: Tensor) -> Tensor:
    """uint8 [blocks, 98] (d f16, 64 index bytes, 8 words: 4 x 7 sign bits and a 4-bit scale) to float32 [blocks, 256].

    A sub-block of 32 is d * (0.5 + scale) / 2 * sign * grid.
    """
    packed = blocks[:, 66:98].clone().view(torch.int32)
    scale = half(blocks, 0) * ((packed >> 28) & 15).to(torch.float32).add_(0.5) * 0.5
    index = (packed.unsqueeze(-1) >> torch.arange(0, 28, 7, dtype=torch.int32, device=blocks.device)) & 127
    signs = rows_of(even_sign_patterns(blocks.device), index).view(-1, 8, 32)
    values = rows_of(grid("iq3_xxs", blocks.device), blocks[:, 2:66]).view(-1, 8, 32)
    return values.mul_(scale.unsqueeze(-1)).mul_(signs).view(-1, 256)
