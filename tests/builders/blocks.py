"""Builds ggml blocks whose weights look like a model's, of every type."""

from __future__ import annotations

import numpy as np
import torch

from kernels.quant import row_bytes
from kernels.quant.table import FORMATS

# Typical sizes of a block's f16 scales, so that weights are a few hundredths.
_SCALES = {"IQ4_NL": 6e-4, "IQ4_XS": 3e-5, "IQ3_S": 2e-4, "IQ3_XXS": 2e-4, "Q8_0": 5e-4, "Q6_K": 2e-5, "IQ1_S": 4e-3}


def model_rows(name: str, *, rows: int, columns: int, seed: int = 0, device: str = "cpu") -> torch.Tensor:
    """uint8 [rows, row bytes]: random codes, scales of either sign that differ by up to a factor of ten."""
    form = FORMATS[name]
    generator = np.random.default_rng(seed)
    raw = generator.integers(0, 256, (rows * columns // form.block_weights, form.block_bytes), dtype=np.uint8)
    if name in ("F32", "F16", "BF16"):
        values = torch.from_numpy(generator.standard_normal((rows, columns), dtype=np.float32) * 0.03)
        kind = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[name]
        return values.to(kind).view(torch.uint8).to(device)
    size = _SCALES.get(name, 2e-3 if form.block_weights == 32 else 1e-4)
    for at in form.scale_offsets:
        scale = size * generator.uniform(0.1, 1.0, len(raw)) * generator.choice((-1, 1), len(raw))
        raw[:, at : at + 2] = scale.astype(np.float16).view(np.uint8).reshape(-1, 2)
    if name == "IQ1_M":  # d's bits lie in the upper nibbles of four words
        d = generator.uniform(1e-3, 1e-2, len(raw)).astype(np.float16).view(np.uint16)
        for word in range(4):
            raw[:, 49 + 2 * word] = (raw[:, 49 + 2 * word] & 15) | ((d >> (4 * word)) & 15).astype(np.uint8) << 4
    return torch.from_numpy(raw.reshape(rows, row_bytes(name, columns))).to(device)
