"""iq1_m: 32 indices into the grid of iq1_s; a scale for every 16 values and a shift for every 8."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant.bits import fields, rows_of, words
from kernels.quant.codebooks import grid


def unpack(blocks: Tensor) -> Tensor:
    """uint8 [blocks, 56] (32 index bytes, 16 bytes of nibbles, 4 scale words) to float32 [blocks, 256].

    A nibble holds 3 high index bits and the sign of the shift of 8 values; a scale word holds 4 scales of 3 bits for
    16 values each and, in its top nibble, a quarter of the block's f16 d. Value: d * (2 * scale + 1) * (grid + shift).
    """
    packed = words(blocks[:, 48:56])
    quarters = (packed >> 12) << torch.arange(0, 16, 4, dtype=torch.int32, device=blocks.device)
    d = quarters.sum(1, keepdim=True, dtype=torch.int32).to(torch.int16).view(torch.float16).to(torch.float32)
    scales = (packed.unsqueeze(-1) >> torch.arange(0, 12, 3, dtype=torch.int32, device=blocks.device)) & 7
    scale = d * (2 * scales.view(-1, 16) + 1).to(torch.float32)
    nibble = fields(blocks[:, 32:48], 4, count=2).view(-1, 32)
    index = blocks[:, :32] | (nibble & 7).to(torch.int32) << 8
    shift = 0.125 - 0.25 * (nibble >> 3).to(torch.float32)
    values = rows_of(grid("iq1_s", blocks.device), index).add_(shift.unsqueeze(-1))
    return values.view(-1, 16, 16).mul_(scale.unsqueeze(-1)).view(-1, 256)
