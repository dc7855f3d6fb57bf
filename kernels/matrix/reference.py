"""Plain float32 form of a product with a stored matrix."""

from __future__ import annotations

import torch

from kernels.quant import dequantise


def multiply(x: torch.Tensor, type_name: str, raw: torch.Tensor) -> torch.Tensor:
    """x [rows, inputs] times the blocks raw [columns, row bytes] of a ggml type -> [rows, columns]."""
    return x @ dequantise(raw, type_name, columns=x.shape[1]).t()
