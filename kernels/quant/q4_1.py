"""q4_1: 32 nibbles, a scale and a minimum."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant.bits import half, nibbles


def unpack(blocks: Tensor) -> Tensor:
    """uint8 [blocks, 20] (d f16, m f16, 16 bytes) to float32 [blocks, 32]: d * nibble + m."""
    values = nibbles(blocks[:, 4:]).view(-1, 32).to(torch.float32)
    return values.mul_(half(blocks, 0)).add_(half(blocks, 2))
