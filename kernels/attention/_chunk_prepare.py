"""Device code before the attention of a prompt chunk: norms, rotation, keys and values to pages, keys of blocks."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels._many import at_rows, load_place
from kernels.attention._prepare import INT8_MAX


@triton.jit
def normed_turned(x, swapped, norm, swapped_norm, p_cos, p_sin, b_row, live, b_dim, eps,
                  DIM: tl.constexpr, PAIRS: tl.constexpr):  # fmt: skip
    """Norm and rotation of rows [rows, dim]; `swapped` holds the partner of each of the first 2 * PAIRS values."""
    scale = 1.0 / tl.sqrt_rn(tl.sum(x * x, axis=1) / DIM + eps)
    m_turn = live[:, None] & (b_dim < 2 * PAIRS)[None, :]
    o_pair = at_rows(b_row, PAIRS, b_dim % PAIRS)
    cos = tl.load(p_cos + o_pair, mask=m_turn, other=1.0)
    sin = tl.load(p_sin + o_pair, mask=m_turn, other=0.0)
    x = x * scale[:, None] * norm[None, :]
    swapped = swapped * scale[:, None] * swapped_norm[None, :]
    return x * cos + tl.where((b_dim < PAIRS)[None, :], -swapped, swapped) * sin


@triton.jit
def loaded(p_head, o_row, b_row, live, p_norm, p_cos, p_sin, eps,
           DIM: tl.constexpr, BLOCK: tl.constexpr, PAIRS: tl.constexpr):  # fmt: skip
    """One head of some rows, normed and rotated."""
    b_dim = tl.arange(0, BLOCK)
    partner = tl.where(b_dim < PAIRS, b_dim + PAIRS, b_dim - PAIRS)
    m_dim = b_dim < DIM
    m_turn = b_dim < 2 * PAIRS
    x = tl.load(p_head + at_rows(b_row, o_row, b_dim), mask=live[:, None] & m_dim[None, :], other=0.0)
    swapped = tl.load(p_head + at_rows(b_row, o_row, partner), mask=live[:, None] & m_turn[None, :], other=0.0)
    norm = tl.load(p_norm + b_dim, mask=m_dim, other=0.0)
    swapped_norm = tl.load(p_norm + partner, mask=m_turn, other=0.0)
    return normed_turned(
        x.to(tl.float32), swapped.to(tl.float32), norm, swapped_norm, p_cos, p_sin, b_row, live, b_dim, eps, DIM, PAIRS
    )


@triton.jit
def store_cached(p_pool, o_pool, p_scales, o_scales, x, at, live, DIM: tl.constexpr, BLOCK: tl.constexpr,
                 KIND: tl.constexpr):  # fmt: skip
    """One head of some tokens to their pages: float32, bf16, or int8 with the largest magnitude at 127."""
    b_dim = tl.arange(0, BLOCK)
    mask = live[:, None] & (b_dim < DIM)[None, :]
    p_out = p_pool + o_pool + at_rows(at, DIM, b_dim)
    if KIND == 2:
        largest = tl.max(tl.abs(x), axis=1)
        inverse = tl.where(largest > 0, INT8_MAX / tl.where(largest > 0, largest, 1.0), 0.0)
        tl.store(p_out, tl.floor(x * inverse[:, None] + 0.5).to(tl.int8), mask=mask)
        tl.store(p_scales + o_scales + at, largest / INT8_MAX, mask=live)
    else:
        tl.store(p_out, x.to(p_pool.dtype.element_ty), mask=mask)


@triton.jit
def pool_blocks(p_key, o_row, p_ring, p_norm, p_pooled, p_cos, p_sin, b_row, live, position, slot, page, eps,
                DIM: tl.constexpr, BLOCK: tl.constexpr, PAIRS: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
                PAGE_BLOCKS: tl.constexpr, RING: tl.constexpr):  # fmt: skip
    """Keys of the blocks that rows complete: mean of raw keys, older ones from the ring, normed, rotated, stored."""
    b_dim = tl.arange(0, BLOCK)
    partner = tl.where(b_dim < PAIRS, b_dim + PAIRS, b_dim - PAIRS)
    m_dim = b_dim < DIM
    m_turn = b_dim < 2 * PAIRS
    ends = live & ((position + 1) % BLOCK_TOKENS == 0)
    total = tl.zeros([b_row.shape[0], BLOCK], dtype=tl.float32)
    swapped = tl.zeros([b_row.shape[0], BLOCK], dtype=tl.float32)
    for i in tl.static_range(BLOCK_TOKENS):
        source = b_row - (BLOCK_TOKENS - 1 - i)
        new = (ends & (source >= 0))[:, None]
        old = (ends & (source < 0))[:, None]
        place = slot * RING + (position - (BLOCK_TOKENS - 1 - i) + RING) % RING
        total += tl.load(p_key + at_rows(source, o_row, b_dim), mask=new & m_dim[None, :], other=0.0).to(tl.float32)
        total += tl.load(p_ring + at_rows(place, DIM, b_dim), mask=old & m_dim[None, :], other=0.0)
        turned = tl.load(p_key + at_rows(source, o_row, partner), mask=new & m_turn[None, :], other=0.0)
        swapped += turned.to(tl.float32)
        swapped += tl.load(p_ring + at_rows(place, DIM, partner), mask=old & m_turn[None, :], other=0.0)
    norm = tl.load(p_norm + b_dim, mask=m_dim, other=0.0)
    swapped_norm = tl.load(p_norm + partner, mask=m_turn, other=0.0)
    key = normed_turned(
        total / BLOCK_TOKENS, swapped / BLOCK_TOKENS, norm, swapped_norm, p_cos, p_sin, b_row, ends, b_dim, eps,
        DIM, PAIRS,
    )  # fmt: skip
    at = page * PAGE_BLOCKS + position // BLOCK_TOKENS % PAGE_BLOCKS
    tl.store(p_pooled + at_rows(at, DIM, b_dim), key.to(p_pooled.dtype.element_ty), mask=ends[:, None] & m_dim[None, :])


@triton.jit(do_not_specialize=["rows"])
def prepare(
    p_query, p_key, p_value, p_index_query, p_index_key,
    o_query_row, o_query_head, o_key_row, o_key_head, o_value_row, o_value_head, o_iq_row, o_iq_head, o_ik_row,
    p_query_norm, p_key_norm, p_iq_norm, p_ik_norm, p_cos, p_sin, p_pages, o_pages,
    p_keys, o_keys, p_values, o_values, p_key_scales, o_key_scales, p_value_scales, o_value_scales,
    p_ring, p_pooled, p_query_out, p_iq_out, p_place, rows, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, INDEX_HEADS: tl.constexpr,
    DIM: tl.constexpr, BLOCK: tl.constexpr, INDEX_DIM: tl.constexpr, INDEX_BLOCK: tl.constexpr, PAIRS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, PAGE_TOKENS: tl.constexpr, RING: tl.constexpr, KIND: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of rows, heads): query heads, key heads, value heads, indexer query heads, indexer key."""
    i_head = tl.program_id(1)
    slot, start, count = load_place(p_place)
    b_row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = b_row < count
    position = start + b_row
    page = tl.load(p_pages + slot * o_pages + position // PAGE_TOKENS, mask=live, other=0).to(tl.int64)
    if i_head < HEADS:
        x = loaded(p_query + i_head * o_query_head, o_query_row, b_row, live, p_query_norm, p_cos, p_sin, eps,
                   DIM, BLOCK, PAIRS)  # fmt: skip
        b_dim = tl.arange(0, BLOCK)
        p_out = p_query_out + at_rows(b_row, HEADS * DIM, i_head * DIM + b_dim)
        tl.store(p_out, x.to(p_query_out.dtype.element_ty), mask=live[:, None] & (b_dim < DIM)[None, :])
    elif i_head < HEADS + KV_HEADS:
        head = i_head - HEADS
        x = loaded(p_key + head * o_key_head, o_key_row, b_row, live, p_key_norm, p_cos, p_sin, eps,
                   DIM, BLOCK, PAIRS)  # fmt: skip
        at = (page * KV_HEADS + head) * PAGE_TOKENS + position % PAGE_TOKENS
        store_cached(p_keys, o_keys, p_key_scales, o_key_scales, x, at, live, DIM, BLOCK, KIND)
    elif i_head < HEADS + 2 * KV_HEADS:
        head = i_head - HEADS - KV_HEADS
        b_dim = tl.arange(0, BLOCK)
        p_head = p_value + head * o_value_head + at_rows(b_row, o_value_row, b_dim)
        x = tl.load(p_head, mask=live[:, None] & (b_dim < DIM)[None, :], other=0.0).to(tl.float32)
        at = (page * KV_HEADS + head) * PAGE_TOKENS + position % PAGE_TOKENS
        store_cached(p_values, o_values, p_value_scales, o_value_scales, x, at, live, DIM, BLOCK, KIND)
    elif INDEX_HEADS > 0:
        if i_head < HEADS + 2 * KV_HEADS + INDEX_HEADS:
            head = i_head - HEADS - 2 * KV_HEADS
            x = loaded(p_index_query + head * o_iq_head, o_iq_row, b_row, live, p_iq_norm, p_cos, p_sin, eps,
                       INDEX_DIM, INDEX_BLOCK, PAIRS)  # fmt: skip
            b_index = tl.arange(0, INDEX_BLOCK)
            p_out = p_iq_out + at_rows(b_row, INDEX_HEADS * INDEX_DIM, head * INDEX_DIM + b_index)
            tl.store(p_out, x.to(p_iq_out.dtype.element_ty), mask=live[:, None] & (b_index < INDEX_DIM)[None, :])
        else:
            pool_blocks(
                p_index_key, o_ik_row, p_ring, p_ik_norm, p_pooled, p_cos + rows * PAIRS, p_sin + rows * PAIRS,
                b_row, live, position, slot, page, eps,
                INDEX_DIM, INDEX_BLOCK, PAIRS, BLOCK_TOKENS, PAGE_TOKENS // BLOCK_TOKENS, RING,
            )  # fmt: skip


@triton.jit
def note_keys(p_key, p_ring, o_row, p_place, DIM: tl.constexpr, BLOCK: tl.constexpr, RING: tl.constexpr):
    """Grid (ring positions): the last raw indexer keys to the ring, after every block that began before the chunk."""
    slot, start, count = load_place(p_place)
    row = count - 1 - tl.program_id(0)
    b_dim = tl.arange(0, BLOCK)
    mask = (b_dim < DIM) & (row >= 0)
    key = tl.load(p_key + row.to(tl.int64) * o_row + b_dim, mask=mask, other=0.0).to(tl.float32)
    place = slot * RING + (start + row + RING) % RING
    tl.store(p_ring + place * DIM + b_dim, key, mask=mask)
