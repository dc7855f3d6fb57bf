"""bf16: the upper halves of float32 numbers."""

from __future__ import annotations

import torch
from torch import Tensor


def unpack(blocks: Tensor) -> Tensor:
    """uint8 [values, 2] to float32 [values, 1]."""
    return blocks.clone().view(torch.bfloat16).to(torch.float32)
