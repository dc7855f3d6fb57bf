"""Writes the last block of a stage to the streams, so that they alone go on to the next device."""

from __future__ import annotations

import torch
import triton

from kernels.hyper import _write
from kernels.terms import check_tensor, check_terms, launch_options


def write(x: torch.Tensor, *, parts: torch.Tensor, gate: torch.Tensor, pdl: bool) -> None:
    """Adds a block's output to the streams: the first half of `write_and_read`, to the bit.

    Args:
        x: float32 [rows, streams, hidden], updated in place; older than the launch before this one.
        parts: partial results [terms, rows, hidden] of the block, as `write_and_read` takes them.
        gate: float32 [rows, streams, streams], `sums` of the read before the block.
        pdl: the launch may start early; needs sm_90.

    Raises:
        ValueError: shapes do not belong together.
    """
    rows, streams, hidden = x.shape
    check_tensor("write: x", x, (rows, streams, hidden))
    check_terms("write: parts", parts, rows=rows, width=hidden)
    check_tensor("write: gate", gate, (rows, streams, streams))
    _write.write[(streams, rows)](
        x, parts, gate, parts.stride(0), parts.stride(1),
        TERMS=parts.shape[0], STREAMS=streams, HIDDEN=hidden, BLOCK=triton.next_power_of_2(hidden), PDL=pdl,
        num_warps=8 if hidden >= 1024 else 4, **launch_options(pdl),
    )  # fmt: skip
