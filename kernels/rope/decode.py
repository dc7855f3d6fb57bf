"""Rotary tables of a decode window: made once a window, read by every layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kernels.rope._triton import rows_tables
from kernels.rope.frequencies import Frequencies
from kernels.terms import check_tensor, launch_options
from kernels.window import RING_POSITIONS, WindowRows


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeRows:
    """Cosines and sines, float32 [2, rows, pairs]: of each row, then of the first token of the block it completes."""

    cos: torch.Tensor
    sin: torch.Tensor

    @classmethod
    def empty(cls, *, rows: int, pairs: int, device: torch.device | str) -> RopeRows:
        """Tables to be filled by `rope_rows`."""
        shape = (2, rows, pairs)
        return cls(cos=torch.zeros(shape, device=device), sin=torch.zeros(shape, device=device))


def rope_rows(
    rows: WindowRows,
    axis_position: torch.Tensor,
    *,
    frequencies: Frequencies,
    block_tokens: int,
    out: RopeRows,
    axis_ring: torch.Tensor | None = None,
    pdl: bool = False,
) -> None:
    """Fills the tables of a window; nothing waits for the host.

    Args:
        rows: of the window.
        axis_position: int32 [3, rows]: time, height, width; equal for text.
        frequencies: on the device.
        block_tokens: tokens of an indexer block.
        out: tables.
        axis_ring: int32 [slots + 1, 16, 3], positions of the last tokens on the three axes, those of this window
            included. None: a block's first token lies `block_tokens - 1` before its last on every axis (text).
        pdl: start before the launch before this one is done.

    Raises:
        ValueError: shapes or dtypes that do not fit.
    """
    pairs = frequencies.pairs
    check_tensor("axis_position", axis_position, (3, rows.rows), torch.int32)
    check_tensor("cosines", out.cos, (2, rows.rows, pairs))
    check_tensor("sines", out.sin, (2, rows.rows, pairs))
    if axis_ring is not None:
        check_tensor("axis_ring", axis_ring, (axis_ring.shape[0], RING_POSITIONS, 3), torch.int32)
    rows_tables[(rows.rows, 2)](
        frequencies.inverse,
        frequencies.axis,
        rows.slot,
        rows.position,
        axis_position,
        axis_position if axis_ring is None else axis_ring,
        out.cos,
        out.sin,
        frequencies.magnitude,
        rows.rows,
        PAIRS=pairs,
        BLOCK=triton.next_power_of_2(pairs),
        BLOCK_TOKENS=block_tokens,
        RING=RING_POSITIONS,
        HAS_RING=axis_ring is not None,
        PDL=pdl,
        num_warps=1,
        **launch_options(pdl),
    )
