"""q4_k: 256 nibbles in 8 sub-blocks with 6-bit scales and minimums."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant.bits import half, nibbles, scales_and_minimums


def unpack(blocks: Tensor) -> Tensor:
    """uint8 [blocks, 144] (d f16, dmin f16, 12 scale bytes, 128 bytes) to float32 [blocks, 256].

    A sub-block of 32 is d * scale * q - dmin * minimum.
    """
    scale, minimum = scales_and_minimums(blocks[:, 4:16])
    values = nibbles(blocks[:, 16:].view(-1, 4, 32)).view(-1, 8, 32).to(torch.float32)
    values.mul_(scale * half(blocks, 0).unsqueeze(-1))
    return values.sub_(minimum * half(blocks, 2).unsqueeze(-1)).view(-1, 256)
