"""iq4_nl: 32 nibbles that choose one of 16 uneven levels, and a scale."""

from __future__ import annotations

from torch import Tensor

from kernels.quant.bits import half, nibbles, rows_of
from kernels.quant.codebooks import iq4_levels


def unpack(blocks: Tensor) -> Tensor:
    """uint8 [blocks, 18] (d f16, 16 bytes) to float32 [blocks, 32]: d * level[nibble]."""
    return rows_of(iq4_levels(blocks.device), nibbles(blocks[:, 2:]).view(-1, 32)).mul_(half(blocks, 0))
