"""q2_k: 256 two-bit numbers in 16 sub-blocks with 4-bit scales and minimums."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant.bits import half, planes


def unpack(blocks: Tensor) -> Tensor:
    """uint8 [blocks, 84] (16 scale bytes, 64 bytes, d f16, dmin f16) to float32 [blocks, 256].

    A sub-block of 16 is d * (scale & 15) * q - dmin * (scale >> 4).
    """
    packed = blocks[:, :16]
    scale = (half(blocks, 80) * (packed & 15).to(torch.float32)).unsqueeze(-1)
    minimum = (half(blocks, 82) * (packed >> 4).to(torch.float32)).unsqueeze(-1)
    values = planes(blocks[:, 16:80].view(-1, 2, 32), 2, count=4).view(-1, 16, 16).to(torch.float32)
    return values.mul_(scale).sub_(minimum).view(-1, 256)
