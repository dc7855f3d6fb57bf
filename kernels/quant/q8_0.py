"""q8_0: 32 signed bytes and a scale."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant.bits import half


def unpack(blocks: Tensor) -> Tensor:
    """uint8 [blocks, 34] (d f16, 32 signed bytes) to float32 [blocks, 32]: d * q."""
    return blocks[:, 2:].view(torch.int8).to(torch.float32).mul_(half(blocks, 0))
