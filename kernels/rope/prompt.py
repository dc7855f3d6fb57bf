"""Rotary tables of a prompt chunk of text: made once a chunk, read by every layer."""

from __future__ import annotations

import torch
import triton

from kernels.chunk import Chunk
from kernels.rope._chunk import chunk_tables, note_positions
from kernels.rope.decode import RopeRows
from kernels.rope.frequencies import Frequencies
from kernels.terms import check_tensor
from kernels.window import RING_POSITIONS


def rope_chunk(
    chunk: Chunk,
    *,
    frequencies: Frequencies,
    block_tokens: int,
    axis_offset: torch.Tensor,
    axis_ring: torch.Tensor,
) -> RopeRows:
    """Makes the tables of a chunk and notes the rotary positions of its last rows.

    Args:
        chunk: where the rows belong.
        frequencies: on the device.
        block_tokens: tokens of an indexer block.
        axis_offset: int32 [slots + 1], what a text row's rotary position has over its position.
        axis_ring: int32 [slots + 1, 16, 3], rotary positions of the last tokens; updated.

    Raises:
        ValueError: shapes or dtypes that do not fit.
    """
    slots = axis_offset.shape[0]
    check_tensor("axis_offset", axis_offset, (slots,), torch.int32)
    check_tensor("axis_ring", axis_ring, (slots, RING_POSITIONS, 3), torch.int32)
    if not 1 <= block_tokens <= RING_POSITIONS:
        raise ValueError(f"blocks of {block_tokens} tokens; the ring tells 1 to {RING_POSITIONS} apart")
    pairs, rows = frequencies.pairs, chunk.rows
    out = RopeRows.empty(rows=rows, pairs=pairs, device=axis_ring.device)
    block = triton.next_power_of_2(pairs)
    tile = max(1, 1024 // block)
    chunk_tables[(triton.cdiv(rows, tile), 2)](
        frequencies.inverse, frequencies.axis, axis_offset, axis_ring, out.cos, out.sin, frequencies.magnitude,
        chunk.place, rows,
        PAIRS=pairs, BLOCK=block, BLOCK_TOKENS=block_tokens, RING=RING_POSITIONS, ROWS=tile, num_warps=4,
    )  # fmt: skip
    note_positions[(1,)](axis_offset, axis_ring, chunk.place, RING=RING_POSITIONS, num_warps=1)
    return out
