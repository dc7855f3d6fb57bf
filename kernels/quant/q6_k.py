"""q6_k: 256 six-bit numbers around 32 in 16 sub-blocks with signed byte scales."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant.bits import half, nibbles, planes


def unpack(blocks: Tensor) -> Tensor:
    """uint8 [blocks, 210] (128 bytes of low nibbles, 64 of high pairs, 16 scales, d f16) to float32 [blocks, 256].

    A sub-block of 16 is d * scale * (q - 32).
    """
    scale = half(blocks, 208) * blocks[:, 192:208].view(torch.int8).to(torch.float32)
    low = nibbles(blocks[:, :128].view(-1, 2, 64)).view(-1, 256)
    high = planes(blocks[:, 128:192].view(-1, 2, 32), 2, count=4).view(-1, 256) << 4
    values = (low | high).to(torch.float32).sub_(32).view(-1, 16, 16)
    return values.mul_(scale.unsqueeze(-1)).view(-1, 256)
