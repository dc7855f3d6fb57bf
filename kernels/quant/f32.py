"""f32: plain numbers."""

from __future__ import annotations

import torch
from torch import Tensor


def unpack(blocks: Tensor) -> Tensor:
    """uint8 [values, 4] to float32 [values, 1]."""
    return blocks.clone().view(torch.float32)
