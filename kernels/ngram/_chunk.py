"""Device code of the n-gram embedding of a prompt chunk: hash and gather, gate, dilated convolution, rings."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels._many import at_rows, load_place, narrow
from kernels.embedding._decode import decode


@triton.jit
def gather(
    p_table, p_token, p_token_ring, p_multiplier, p_head_rows, p_head_offset, p_out, reset, p_place,
    ORDER: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, RING: tl.constexpr,
    KIND: tl.constexpr, BLOCK_WEIGHTS: tl.constexpr, BLOCK_BYTES: tl.constexpr, ROW_BYTES: tl.constexpr,
    STAGED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Grid (rows, heads): the table row that a head's hash of the last tokens picks. Integers stay 64 bits.

    STAGED: the table holds the picked rows already, [rows, heads].
    """
    i_row = tl.program_id(0)
    i_head = tl.program_id(1)
    slot, start, count = load_place(p_place)
    if i_row >= count:
        return
    mixed = tl.load(p_token + i_row).to(tl.int64) * tl.load(p_multiplier)
    depth = i_head // (HEADS // (ORDER - 1)) + 1
    ended = i_row < 0
    for i in tl.static_range(1, ORDER):
        inside = i_row >= i
        past = (i_row < i) & (start + i_row >= i)
        new = tl.load(p_token + i_row - i, mask=inside, other=0)
        place = slot * RING + (start + i_row - i + RING) % RING
        old = tl.load(p_token_ring + place, mask=past, other=0)
        token = tl.where(inside, new, tl.where(past, old, reset))
        ended = ended | (token == reset)
        token = tl.where(ended, reset, token)
        mixed = tl.where(i <= depth, mixed ^ (token.to(tl.int64) * tl.load(p_multiplier + i)), mixed)
    number = mixed % tl.load(p_head_rows + i_head) + tl.load(p_head_offset + i_head)
    if STAGED:
        number = i_row.to(tl.int64) * HEADS + i_head
    k = tl.arange(0, BLOCK)
    value = decode(p_table + number * ROW_BYTES, k, k < WIDTH, KIND, BLOCK_WEIGHTS, BLOCK_BYTES)
    tl.store(p_out + (i_row.to(tl.int64) * HEADS + i_head) * WIDTH + k, narrow(value, EXACT), mask=k < WIDTH)


@triton.jit
def gate(
    p_x, p_key, p_value, p_norm_key, p_norm_query, p_norm_conv, p_gated, p_normed, eps,
    STREAMS: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Grid (streams, rows): the value times the gate that key and stream agree on, and its norm."""
    i_stream = tl.program_id(0)
    i_row = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, BLOCK)
    m_k = k < HIDDEN
    o_wide = i_stream * HIDDEN + k
    o_row = i_row * (STREAMS * HIDDEN) + o_wide
    x = tl.load(p_x + o_row, mask=m_k, other=0.0)
    key = tl.load(p_key + o_row, mask=m_k, other=0.0).to(tl.float32)
    key = key * tl.rsqrt(tl.sum(key * key, axis=0) / HIDDEN + eps) * tl.load(p_norm_key + o_wide, mask=m_k, other=0.0)
    query = x * tl.rsqrt(tl.sum(x * x, axis=0) / HIDDEN + eps) * tl.load(p_norm_query + o_wide, mask=m_k, other=0.0)
    score = tl.sum(key * query, axis=0) / tl.sqrt(HIDDEN * 1.0)
    root = tl.sqrt(tl.maximum(tl.abs(score), 1e-6))
    root = tl.where(score > 0, root, tl.where(score < 0, -root, 0.0))
    value = tl.load(p_value + i_row * HIDDEN + k, mask=m_k, other=0.0).to(tl.float32)
    gated = value / (1.0 + tl.exp(-root))
    normed = gated * tl.rsqrt(tl.sum(gated * gated, axis=0) / HIDDEN + eps)
    normed = normed * tl.load(p_norm_conv + o_wide, mask=m_k, other=0.0)
    tl.store(p_gated + o_row, narrow(gated, EXACT), mask=m_k)
    tl.store(p_normed + o_row, narrow(normed, EXACT), mask=m_k)


@triton.jit
def convolve(
    p_x, p_gated, p_normed, p_conv, p_ring, p_place,
    WIDE: tl.constexpr, BLOCK: tl.constexpr, TAPS: tl.constexpr, DILATION: tl.constexpr, RING: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of rows, blocks of the wide axis): x += gated + silu(conv(normed)), older rows from the ring."""
    slot, start, count = load_place(p_place)
    b_row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    b_wide = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = b_row < count
    m_wide = (b_wide < WIDE)[None, :]
    total = tl.zeros([ROWS, BLOCK], dtype=tl.float32)
    for i in tl.static_range(TAPS):
        source = b_row - (TAPS - 1 - i) * DILATION
        new = (live & (source >= 0))[:, None] & m_wide
        old = (live & (source < 0) & (start + source >= 0))[:, None] & m_wide
        tap = tl.load(p_conv + i * WIDE + b_wide, mask=b_wide < WIDE, other=0.0)[None, :]
        total += tl.load(p_normed + at_rows(source, WIDE, b_wide), mask=new, other=0.0).to(tl.float32) * tap
        place = slot * RING + (start + source + RING) % RING
        total += tl.load(p_ring + at_rows(place, WIDE, b_wide), mask=old, other=0.0) * tap
    mask = live[:, None] & m_wide
    o_tile = at_rows(b_row, WIDE, b_wide)
    x = tl.load(p_x + o_tile, mask=mask, other=0.0) + tl.load(p_gated + o_tile, mask=mask, other=0.0).to(tl.float32)
    tl.store(p_x + o_tile, x + total / (1.0 + tl.exp(-total)), mask=mask)


@triton.jit
def note(
    p_normed, p_token, p_ring, p_token_ring, p_place,
    WIDE: tl.constexpr, BLOCK: tl.constexpr, RING: tl.constexpr,
):  # fmt: skip
    """Grid (ring positions, blocks of the wide axis): the last rows to the rings, after everything that reads them."""
    slot, start, count = load_place(p_place)
    row = count - 1 - tl.program_id(0)
    b_wide = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (b_wide < WIDE) & (row >= 0)
    place = slot * RING + (start + row + RING) % RING
    normed = tl.load(p_normed + row.to(tl.int64) * WIDE + b_wide, mask=mask, other=0.0).to(tl.float32)
    tl.store(p_ring + place * WIDE + b_wide, normed, mask=mask)
    if tl.program_id(1) == 0:
        tl.store(p_token_ring + place, tl.load(p_token + row, mask=row >= 0, other=0), mask=row >= 0)
