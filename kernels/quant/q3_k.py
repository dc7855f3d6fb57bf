"""q3_k: 256 three-bit numbers in 16 sub-blocks with signed 6-bit scales."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant.bits import half, nibbles, planes


def unpack(blocks: Tensor) -> Tensor:
    """uint8 [blocks, 110] (32 mask bytes, 64 bytes, 12 scale bytes, d f16) to float32 [blocks, 256].

    A sub-block of 16 is d * (scale - 32) * (q - 4 where the mask bit is clear).
    """
    low = nibbles(blocks[:, 96:104]).view(-1, 16)
    high = planes(blocks[:, 104:108], 2, count=4).view(-1, 16) << 4
    scale = half(blocks, 108) * (low | high).to(torch.float32).sub_(32)
    values = planes(blocks[:, 32:96].view(-1, 2, 32), 2, count=4).view(-1, 16, 16)
    mask = planes(blocks[:, :32], 1, count=8).view(-1, 16, 16) << 2
    return (values | mask).to(torch.float32).sub_(4).mul_(scale.unsqueeze(-1)).view(-1, 256)
