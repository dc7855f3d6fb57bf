"""q4_0: 32 nibbles around 8 and a scale."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant.bits import half, nibbles


def unpack(blocks: Tensor) -> Tensor:
    """uint8 [blocks, 18] (d f16, 16 bytes) to float32 [blocks, 32]: d * (nibble - 8)."""
    return nibbles(blocks[:, 2:]).view(-1, 32).to(torch.float32).sub_(8).mul_(half(blocks, 0))
