"""iq2_xxs: 32 indices into a grid of 256 rows of 8, sign indices and scales packed in 8 words."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant.bits import half, rows_of
from kernels.quant.codebooks import even_sign_patterns, grid


def unpack(blocks: Tensor) -> Tensor:
    """uint8 [blocks, 66] (d f16, 8 x (4 index bytes, 4 x 7 sign bits, 4-bit scale)) to float32 [blocks, 256].

    A sub-block of 32 is d * (0.5 + scale) / 4 * sign * grid.
    """
    pairs = blocks[:, 2:].reshape(-1, 8, 8)
    packed = pairs[:, :, 4:].clone().view(torch.int32)
    scale = half(blocks, 0).unsqueeze(-1) * ((packed >> 28) & 15).to(torch.float32).add_(0.5) * 0.25
    index = (packed >> torch.arange(0, 28, 7, dtype=torch.int32, device=blocks.device)) & 127
    signs = rows_of(even_sign_patterns(blocks.device), index).view(-1, 8, 32)
    values = rows_of(grid("iq2_xxs", blocks.device), pairs[:, :, :4]).view(-1, 8, 32)
    return values.mul_(scale).mul_(signs).view(-1, 256)
