"""Device code of a prompt chunk's rotary tables and of the ring of rotary positions."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels._many import load_place
from kernels.rope._triton import circle


@triton.jit(do_not_specialize=["rows"])
def chunk_tables(
    p_inverse, p_axis, p_offset, p_ring, p_cos, p_sin, magnitude, p_place, rows,
    PAIRS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_TOKENS: tl.constexpr, RING: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of rows, 2): tables of each row, and of the first token of the block that ends with the row.

    That token's position comes from the ring if it is older than the chunk: it may have been part of a picture.
    """
    i_which = tl.program_id(1)
    slot, start, count = load_place(p_place)
    b_row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    b_pair = tl.arange(0, BLOCK)
    live = b_row < count
    m_pair = b_pair < PAIRS
    inverse = tl.load(p_inverse + b_pair, mask=m_pair, other=0.0)
    axis = tl.load(p_axis + b_pair, mask=m_pair, other=0)
    source = b_row - i_which * (BLOCK_TOKENS - 1)
    at = (start + source + tl.load(p_offset + slot))[:, None] + axis[None, :] * 0
    old = live & (source < 0) & (start + source >= 0)
    place = (slot * RING + (start + source + RING) % RING) * 3
    noted = tl.load(p_ring + place[:, None] + axis[None, :], mask=old[:, None] & m_pair[None, :], other=0)
    at = tl.where(old[:, None], noted, at)
    cos, sin = circle(at.to(tl.float32) * inverse[None, :])
    o_out = (i_which * rows + b_row)[:, None] * PAIRS + b_pair[None, :]
    mask = live[:, None] & m_pair[None, :]
    tl.store(p_cos + o_out, cos * magnitude, mask=mask)
    tl.store(p_sin + o_out, sin * magnitude, mask=mask)


@triton.jit
def note_positions(p_offset, p_ring, p_place, RING: tl.constexpr):
    """Grid (1): rotary positions of the last rows to the ring, equal on the three axes, after the tables read it."""
    b_back = tl.arange(0, RING)
    slot, start, count = load_place(p_place)
    row = count - 1 - b_back
    at = start + row + tl.load(p_offset + slot)
    p_place = p_ring + (slot * RING + (start + row + RING) % RING) * 3
    for i in tl.static_range(3):
        tl.store(p_place + i, at, mask=row >= 0)
