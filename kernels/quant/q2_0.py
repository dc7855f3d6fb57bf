"""q2_0 (ggml type 42): 64 two-bit levels -1, 0, 1, 2 and a scale."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant.bits import fields, half


def unpack(blocks: Tensor) -> Tensor:
    """uint8 [blocks, 18] (d f16, 16 bytes of four codes, lowest first) to float32 [blocks, 64]: d * (code - 1)."""
    return fields(blocks[:, 2:], 2, count=4).view(-1, 64).to(torch.float32).sub_(1).mul_(half(blocks, 0))
