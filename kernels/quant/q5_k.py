"""q5_k: 256 five-bit numbers in 8 sub-blocks with 6-bit scales and minimums."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant.bits import half, nibbles, planes, scales_and_minimums


def unpack(blocks: Tensor) -> Tensor:
    """uint8 [blocks, 176] (d f16, dmin f16, 12 scale bytes, 32 bytes of high bits, 128 bytes) to float32 [blocks, 256].

    A sub-block of 32 is d * scale * q - dmin * minimum; bit b of high byte i belongs to element 32 * b + i.
    """
    scale, minimum = scales_and_minimums(blocks[:, 4:16])
    high = planes(blocks[:, 16:48], 1, count=8) << 4
    values = (nibbles(blocks[:, 48:].view(-1, 4, 32)).view(-1, 8, 32) | high).to(torch.float32)
    values.mul_(scale * half(blocks, 0).unsqueeze(-1))
    return values.sub_(minimum * half(blocks, 2).unsqueeze(-1)).view(-1, 256)
