"""Random matrices in raw ggml blocks with values of a chosen size, and their planes."""

from __future__ import annotations

import torch

from kernels.planes import Planes, pack
from kernels.quant.table import FORMATS

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Root of the mean square of a random block's codes.
_CODES = {"Q8_0": 73.0, "Q5_0": 9.0, "IQ4_NL": 60.0}


def raw_matrix(type_name: str, rows: int, columns: int, generator: torch.Generator, *, scale: float) -> torch.Tensor:
    """uint8 [rows, row bytes] whose product with an input of unit size has values of about `scale`."""
    form = FORMATS[type_name]
    size = scale / columns**0.5
    if type_name in _PLAIN:
        values = torch.randn(rows, columns, generator=generator) * size
        return values.to(_PLAIN[type_name]).view(torch.uint8).reshape(rows, -1)
    blocks = rows * columns // form.block_weights
    raw = torch.randint(0, 256, (blocks, form.block_bytes), generator=generator, dtype=torch.uint8)
    d = (torch.rand(blocks, 1, generator=generator) + 0.5) * (size / _CODES[type_name])
    raw[:, :2] = d.to(torch.float16).view(torch.uint8)
    return raw.reshape(rows, -1)


def planes(type_name: str, rows: int, columns: int, generator: torch.Generator, *, scale: float, device: str) -> Planes:
    """The same as planes, packed on the device."""
    raw = raw_matrix(type_name, rows, columns, generator, scale=scale)
    return pack(type_name, raw.to(device), columns=columns)
