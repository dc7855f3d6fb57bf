"""Device code before attention: norms, rotation, keys and values to their pages, indexer keys to ring and pool."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels._terms import sum_terms
from kernels._tile import when
from kernels.device import gdc_sync

INT8_MAX = tl.constexpr(127.0)


@triton.jit
def scale_of(square_sum, DIM: tl.constexpr, eps):
    """1 / root mean square."""
    return 1.0 / tl.sqrt_rn(square_sum / DIM + eps)


@triton.jit
def turn(x, swapped, p_cos, p_sin, b_dim, PAIRS: tl.constexpr):
    """Rotates pairs (i, i + PAIRS) of the first 2 * PAIRS values; `swapped` holds each value's partner."""
    m_turn = b_dim < 2 * PAIRS
    pair = b_dim % PAIRS
    cos = tl.load(p_cos + pair, mask=m_turn, other=1.0)
    sin = tl.load(p_sin + pair, mask=m_turn, other=0.0)
    return x * cos + tl.where(b_dim < PAIRS, -swapped, swapped) * sin


@triton.jit
def normed_turned(
    p_terms,
    o_head,
    o_term,
    p_norm,
    p_cos,
    p_sin,
    eps,
    live,
    TERMS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """One head: sum of its terms, norm, rotation."""
    b_dim = tl.arange(0, BLOCK)
    m_dim = when(live, b_dim < DIM)
    partner = tl.where(b_dim < PAIRS, b_dim + PAIRS, b_dim - PAIRS)
    m_turn = when(live, b_dim < 2 * PAIRS)
    x = sum_terms(p_terms, o_head + b_dim, o_term, m_dim, TERMS)
    swapped = sum_terms(p_terms, o_head + partner, o_term, m_turn, TERMS)
    scale = scale_of(tl.sum(x * x, axis=0), DIM, eps)
    x = x * scale * tl.load(p_norm + b_dim, mask=m_dim, other=0.0)
    swapped = swapped * scale * tl.load(p_norm + partner, mask=m_turn, other=0.0)
    return turn(x, swapped, p_cos, p_sin, b_dim, PAIRS)


@triton.jit
def store_cached(p_pool, o_pool, p_scales, o_scales, x, at, b_dim, mask, live, DIM: tl.constexpr, KIND: tl.constexpr):
    """One head of one token to its page: float32, bf16, or int8 with the largest magnitude at 127."""
    p_out = p_pool + o_pool + at * DIM + b_dim
    if KIND == 2:
        largest = tl.max(tl.abs(x), axis=0)
        inverse = tl.where(largest > 0, INT8_MAX / largest, 0.0)
        tl.store(p_out, tl.floor(x * inverse + 0.5).to(tl.int8), mask=mask)
        tl.store(p_scales + o_scales + at, largest / INT8_MAX, mask=live)
    else:
        tl.store(p_out, x.to(p_pool.dtype.element_ty), mask=mask)


@triton.jit
def pool_block(
    p_terms,
    o_term,
    o_row,
    p_ring,
    p_norm,
    p_pooled,
    p_cos,
    p_sin,
    i_row,
    first_row,
    position,
    slot,
    page,
    eps,
    live,
    TERMS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    PAGE_BLOCKS: tl.constexpr,
    RING: tl.constexpr,
):
    """The row's raw indexer key to the ring; if it completes a block, the block's key to the pool.

    Keys of earlier rows come from the window's own products, or from the ring if they are older than the span.
    """
    b_dim = tl.arange(0, BLOCK)
    m_dim = when(live, b_dim < DIM)
    own = sum_terms(p_terms, i_row * o_row + b_dim, o_term, m_dim, TERMS)
    tl.store(p_ring + (slot * RING + position % RING) * DIM + b_dim, own, mask=m_dim)
    if live & ((position + 1) % BLOCK_TOKENS == 0):
        partner = tl.where(b_dim < PAIRS, b_dim + PAIRS, b_dim - PAIRS)
        m_turn = b_dim < 2 * PAIRS
        total = own * 0.0
        swapped = own * 0.0
        for i in tl.static_range(BLOCK_TOKENS):
            back = BLOCK_TOKENS - 1 - i
            new = i_row - back >= first_row
            o_new = (i_row - back) * o_row
            o_old = (slot * RING + (position - back) % RING) * DIM
            total += sum_terms(p_terms, o_new + b_dim, o_term, when(new, m_dim), TERMS)
            total += tl.load(p_ring + o_old + b_dim, mask=when(new == 0, m_dim), other=0.0)
            swapped += sum_terms(p_terms, o_new + partner, o_term, when(new, m_turn), TERMS)
            swapped += tl.load(p_ring + o_old + partner, mask=when(new == 0, m_turn), other=0.0)
        total = total / BLOCK_TOKENS
        swapped = swapped / BLOCK_TOKENS
        scale = scale_of(tl.sum(total * total, axis=0), DIM, eps)
        total = total * scale * tl.load(p_norm + b_dim, mask=m_dim, other=0.0)
        swapped = swapped * scale * tl.load(p_norm + partner, mask=m_turn, other=0.0)
        key = turn(total, swapped, p_cos, p_sin, b_dim, PAIRS)
        place = page * PAGE_BLOCKS + position // BLOCK_TOKENS % PAGE_BLOCKS
        tl.store(p_pooled + place * DIM + b_dim, key.to(p_pooled.dtype.element_ty), mask=m_dim)


@triton.jit(do_not_specialize=["rows"])
def prepare(
    p_query, p_key, p_value, p_index_query, p_index_key,
    o_query_term, o_query_row, o_query_head,
    o_key_term, o_key_row, o_key_head,
    o_value_term, o_value_row, o_value_head,
    o_iq_term, o_iq_row, o_iq_head,
    o_ik_term, o_ik_row,
    p_query_norm, p_key_norm, p_iq_norm, p_ik_norm,
    p_cos, p_sin,
    p_slot, p_position, p_span, p_span_first, p_rows_used, p_pages, o_pages,
    p_keys, o_keys, p_values, o_values, p_key_scales, o_key_scales, p_value_scales, o_value_scales,
    p_ring, p_pooled, p_query_out, p_iq_out,
    eps, rows,
    QUERY_TERMS: tl.constexpr, KEY_TERMS: tl.constexpr, VALUE_TERMS: tl.constexpr,
    IQ_TERMS: tl.constexpr, IK_TERMS: tl.constexpr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, INDEX_HEADS: tl.constexpr,
    DIM: tl.constexpr, BLOCK: tl.constexpr, INDEX_DIM: tl.constexpr, INDEX_BLOCK: tl.constexpr, PAIRS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, PAGE_TOKENS: tl.constexpr, RING: tl.constexpr,
    KIND: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (heads, rows): query heads, key heads, value heads, indexer query heads, indexer key; one head a program."""
    i_head = tl.program_id(0)
    i_row = tl.program_id(1)
    live = i_row < tl.load(p_rows_used)
    slot = tl.load(p_slot + i_row).to(tl.int64)
    position = tl.load(p_position + i_row)
    page = tl.load(p_pages + slot * o_pages + position // PAGE_TOKENS).to(tl.int64)
    b_dim = tl.arange(0, BLOCK)
    m_dim = b_dim < DIM
    p_cos += i_row * PAIRS
    p_sin += i_row * PAIRS
    gdc_sync(PDL)
    if i_head < HEADS:
        o_head = i_row * o_query_row + i_head * o_query_head
        x = normed_turned(
            p_query, o_head, o_query_term, p_query_norm, p_cos, p_sin, eps, live, QUERY_TERMS, DIM, BLOCK, PAIRS
        )
        p_out = p_query_out + (i_row * HEADS + i_head) * DIM + b_dim
        tl.store(p_out, x.to(p_query_out.dtype.element_ty), mask=m_dim)
    elif i_head < HEADS + KV_HEADS:
        head = i_head - HEADS
        o_head = i_row * o_key_row + head * o_key_head
        x = normed_turned(p_key, o_head, o_key_term, p_key_norm, p_cos, p_sin, eps, live, KEY_TERMS, DIM, BLOCK, PAIRS)
        at = (page * KV_HEADS + head) * PAGE_TOKENS + position % PAGE_TOKENS
        store_cached(p_keys, o_keys, p_key_scales, o_key_scales, x, at, b_dim, when(live, m_dim), live, DIM, KIND)
    elif i_head < HEADS + 2 * KV_HEADS:
        head = i_head - HEADS - KV_HEADS
        o_head = i_row * o_value_row + head * o_value_head
        x = sum_terms(p_value, o_head + b_dim, o_value_term, when(live, m_dim), VALUE_TERMS)
        at = (page * KV_HEADS + head) * PAGE_TOKENS + position % PAGE_TOKENS
        store_cached(
            p_values, o_values, p_value_scales, o_value_scales, x, at, b_dim, when(live, m_dim), live, DIM, KIND
        )
    elif INDEX_HEADS > 0:
        if i_head < HEADS + 2 * KV_HEADS + INDEX_HEADS:
            head = i_head - HEADS - 2 * KV_HEADS
            o_head = i_row * o_iq_row + head * o_iq_head
            b_index = tl.arange(0, INDEX_BLOCK)
            x = normed_turned(
                p_index_query, o_head, o_iq_term, p_iq_norm, p_cos, p_sin, eps, live,
                IQ_TERMS, INDEX_DIM, INDEX_BLOCK, PAIRS,
            )  # fmt: skip
            p_out = p_iq_out + (i_row * INDEX_HEADS + head) * INDEX_DIM + b_index
            tl.store(p_out, x.to(p_iq_out.dtype.element_ty), mask=b_index < INDEX_DIM)
        else:
            first_row = tl.load(p_span_first + tl.load(p_span + i_row))
            pool_block(
                p_index_key, o_ik_term, o_ik_row, p_ring, p_ik_norm, p_pooled,
                p_cos + rows * PAIRS, p_sin + rows * PAIRS, i_row, first_row, position, slot, page, eps, live,
                IK_TERMS, INDEX_DIM, INDEX_BLOCK, PAIRS, BLOCK_TOKENS, PAGE_TOKENS // BLOCK_TOKENS, RING,
            )  # fmt: skip
