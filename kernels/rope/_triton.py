"""Device code of rotary tables: cosines and sines of a window's rows and of the blocks that they complete."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels.device import gdc_sync

TURN = tl.constexpr(6.283185307179586476925286766559)


@triton.jit
def circle(angle):
    """Cosine and sine of float32 angles: reduced to half a turn and summed in float64, exact at any length."""
    wide = angle.to(tl.float64)
    rest = wide - tl.floor(wide / TURN + 0.5) * TURN
    square = rest * rest
    cos = square * 0.0 + 1.0
    sin = cos
    for i in tl.static_range(13):
        cos = 1.0 - cos * square * (1.0 / ((26 - 2 * i) * (25 - 2 * i)))
        sin = 1.0 - sin * square * (1.0 / ((26 - 2 * i) * (27 - 2 * i)))
    return cos.to(tl.float32), (sin * rest).to(tl.float32)


@triton.jit(do_not_specialize=["rows"])
def rows_tables(
    p_inverse,
    p_axis,
    p_slot,
    p_position,
    p_axis_position,
    p_axis_ring,
    p_cos,
    p_sin,
    magnitude,
    rows,
    PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    RING: tl.constexpr,
    HAS_RING: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (rows, 2): tables of each row's own position, and of the first token of the block that ends with the row."""
    i_row = tl.program_id(0)
    i_which = tl.program_id(1)
    b_pair = tl.arange(0, BLOCK)
    m_pair = b_pair < PAIRS
    inverse = tl.load(p_inverse + b_pair, mask=m_pair, other=0.0)
    axis = tl.load(p_axis + b_pair, mask=m_pair, other=0)
    gdc_sync(PDL)
    at = tl.load(p_axis_position + axis * rows + i_row)
    if i_which == 1:
        if HAS_RING:
            slot = tl.load(p_slot + i_row).to(tl.int64)
            first = tl.load(p_position + i_row) - BLOCK_TOKENS + 1
            place = (slot * RING + (first + RING) % RING) * 3
            at = tl.load(p_axis_ring + place + axis)
        else:
            at = at - (BLOCK_TOKENS - 1)
    cos, sin = circle(at.to(tl.float32) * inverse)
    o_out = (i_which * rows + i_row) * PAIRS + b_pair
    tl.store(p_cos + o_out, cos * magnitude, mask=m_pair)
    tl.store(p_sin + o_out, sin * magnitude, mask=m_pair)
