"""iq2_xs: 32 words, each an index into a grid of 512 rows of 8 and a sign index; 16 scales."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant.bits import fields, half, rows_of, words
from kernels.quant.codebooks import even_sign_patterns, grid


def unpack(blocks: Tensor) -> Tensor:
    """uint8 [blocks, 74] (d f16, 32 words of 9 index and 7 sign bits, 8 scale bytes) to float32 [blocks, 256].

    A sub-block of 16 is d * (0.5 + scale) / 4 * sign * grid.
    """
    scale = half(blocks, 0) * fields(blocks[:, 66:74], 4, count=2).view(-1, 16).to(torch.float32).add_(0.5) * 0.25
    packed = words(blocks[:, 2:66])
    values = rows_of(grid("iq2_xs", blocks.device), packed & 511).view(-1, 16, 16)
    signs = rows_of(even_sign_patterns(blocks.device), packed >> 9).view(-1, 16, 16)
    return values.mul_(scale.unsqueeze(-1)).mul_(signs).view(-1, 256)
