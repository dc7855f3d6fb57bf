"""ggml block formats: what can be unpacked and how."""

from __future__ import annotations

from kernels.quant.op import count_nonfinite, dequantise, gather_rows, nonfinite, row_bytes
from kernels.quant.table import FORMATS

SUPPORTED: tuple[str, ...] = tuple(FORMATS)

__all__ = ["SUPPORTED", "count_nonfinite", "dequantise", "gather_rows", "nonfinite", "row_bytes"]
