"""iq1_s: 32 indices into a grid of 2048 ternary rows of 8; a scale and a shift for every 32 values."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant.bits import half, rows_of, words
from kernels.quant.codebooks import grid


def unpack(blocks: Tensor) -> Tensor:
    """uint8 [blocks, 50] (d f16, 32 index bytes, 8 words: 4 x 3 index bits, scale, sign) to float32 [blocks, 256].

    A sub-block of 32 is d * (2 * scale + 1) * (grid + shift), shift = -0.125 if the sign bit is set, else 0.125.
    """
    packed = words(blocks[:, 34:50])
    scale = half(blocks, 0) * (2 * ((packed >> 12) & 7) + 1).to(torch.float32)
    shift = 0.125 - 0.25 * (packed >> 15).to(torch.float32)
    high = (packed.unsqueeze(-1) >> torch.arange(0, 12, 3, dtype=torch.int32, device=blocks.device)) & 7
    index = blocks[:, 2:34] | (high << 8).view(-1, 32)
    values = rows_of(grid("iq1_s", blocks.device), index).view(-1, 8, 32)
    return values.add_(shift.unsqueeze(-1)).mul_(scale.unsqueeze(-1)).view(-1, 256)
