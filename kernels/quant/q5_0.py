"""q5_0: 32 five-bit numbers around 16 and a scale."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant.bits import fields, half, nibbles


def unpack(blocks: Tensor) -> Tensor:
    """uint8 [blocks, 22] (d f16, 32 high bits, 16 bytes) to float32 [blocks, 32]: d * (nibble + 16 * bit - 16)."""
    high = fields(blocks[:, 2:6], 1, count=8).view(-1, 32) << 4
    values = nibbles(blocks[:, 6:]).view(-1, 32).bitwise_or_(high).to(torch.float32)
    return values.sub_(16).mul_(half(blocks, 0))
