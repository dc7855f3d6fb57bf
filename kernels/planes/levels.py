"""The byte tables of formats as words on a device, for kernels that want them in registers."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from kernels.planes.format import STEP_BIAS, TABLES

_WORDS = 4
_MASK = 0x44444444


@cache
def level_words(device: torch.device) -> Tensor:
    """uint32 [tables * 5]: four words of four levels plus 128, zero where a table is short, and the mask 0x44444444."""
    words: list[int] = []
    for levels in TABLES.values():
        bytes_of = [level + STEP_BIAS for level in levels] + [0] * (4 * _WORDS - len(levels))
        words += [sum(bytes_of[4 * at + place] << (8 * place) for place in range(4)) for at in range(_WORDS)] + [_MASK]
    signed = [word - (1 << 32) if word >= 1 << 31 else word for word in words]
    return torch.tensor(signed, dtype=torch.int32, device=device).view(torch.uint32)
