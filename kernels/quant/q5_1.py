"""q5_1: 32 five-bit numbers, a scale and a minimum."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant.bits import fields, half, nibbles


def unpack(blocks: Tensor) -> Tensor:
    """uint8 [blocks, 24] (d, m f16, 32 high bits, 16 bytes) to float32 [blocks, 32]: d * (nibble + 16 * bit) + m."""
    high = fields(blocks[:, 4:8], 1, count=8).view(-1, 32) << 4
    values = nibbles(blocks[:, 8:]).view(-1, 32).bitwise_or_(high).to(torch.float32)
    return values.mul_(half(blocks, 0)).add_(half(blocks, 2))
