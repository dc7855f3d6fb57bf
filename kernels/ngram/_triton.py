"""Device code of the n-gram embedding: hash and gather, gate, dilated convolution over the window and the ring."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels._terms import limit, sum_terms
from kernels.device import gdc_launch, gdc_wait, store_operand
from kernels.embedding._decode import decode
from kernels.hyper._triton import inject_gate


@triton.jit
def gather(
    p_table,
    p_token,
    p_token_ring,
    p_row_slot,
    p_row_position,
    p_row_span,
    p_span_first,
    p_rows_used,
    p_multiplier,
    p_head_rows,
    p_head_offset,
    p_number,
    p_operand,
    reset,
    ORDER: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PADDED: tl.constexpr,
    RING: tl.constexpr,
    STAGED: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK_WEIGHTS: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
    ROW_BYTES: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (rows, heads): the table row that a head's hash picks, as operand rows; padding rows become zero.

    Integers stay 64 bits. STAGED: the table holds the picked rows already, [rows, heads].
    """
    i_row = tl.program_id(0)
    i_head = tl.program_id(1)
    gdc_wait(PDL)
    gdc_launch(PDL)
    live = i_row < tl.load(p_rows_used)
    slot = tl.load(p_row_slot + i_row).to(tl.int64)
    position = tl.load(p_row_position + i_row)
    first = tl.load(p_span_first + tl.load(p_row_span + i_row, mask=live, other=0))
    mixed = tl.load(p_token + i_row).to(tl.int64) * tl.load(p_multiplier)
    depth = i_head // (HEADS // (ORDER - 1)) + 1
    ended = position < 0
    for i in tl.static_range(1, ORDER):
        inside = i_row - i >= first
        past = (i_row - i < first) & (position >= i)
        new = tl.load(p_token + i_row - i, mask=inside, other=0)
        old = tl.load(p_token_ring + slot * RING + (position - i + RING) % RING, mask=past, other=0)
        token = tl.where(inside, new, tl.where(past, old, reset))
        ended = ended | (token == reset)
        token = tl.where(ended, reset, token)
        mixed = tl.where(i <= depth, mixed ^ (token.to(tl.int64) * tl.load(p_multiplier + i)), mixed)
    number = mixed % tl.load(p_head_rows + i_head) + tl.load(p_head_offset + i_head)
    tl.store(p_number + i_row * HEADS + i_head, number)
    if STAGED:
        number = (i_row * HEADS + i_head).to(tl.int64)
    k = tl.arange(0, BLOCK)
    m_k = k < limit(WIDTH, live)
    value = decode(p_table + number * ROW_BYTES, k, m_k, KIND, BLOCK_WEIGHTS, BLOCK_BYTES)
    value = tl.where(m_k, value, 0.0)
    end = tl.where(i_head == HEADS - 1, WIDTH + PADDED - HEADS * WIDTH, WIDTH)
    store_operand(p_operand + i_row * PADDED, i_head * WIDTH + k, value, k < end, EXACT)


@triton.jit
def gate(
    p_x,
    p_part,
    p_inject,
    p_key_part,
    p_value_part,
    p_norm_key,
    p_norm_query,
    p_norm_conv,
    p_gated,
    p_normed,
    p_token,
    p_token_ring,
    p_row_slot,
    p_row_position,
    p_row_span,
    p_span_first,
    p_span_certain,
    p_rows_used,
    o_part_term,
    o_part_row,
    o_key_term,
    o_key_row,
    o_value_term,
    o_value_row,
    eps,
    TERMS: tl.constexpr,
    KEY_TERMS: tl.constexpr,
    VALUE_TERMS: tl.constexpr,
    STREAMS: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    ORDER: tl.constexpr,
    RING: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (streams, rows): adds the block before to x, gates the value; keeps the tokens that later rows may need."""
    i_stream = tl.program_id(0)
    i_row = tl.program_id(1)
    k = tl.arange(0, BLOCK)
    m_k = k < HIDDEN
    o_wide = i_stream * HIDDEN + k
    norm_key = tl.load(p_norm_key + o_wide, mask=m_k, other=0.0)
    norm_query = tl.load(p_norm_query + o_wide, mask=m_k, other=0.0)
    gdc_wait(PDL)
    gdc_launch(PDL)
    p_stream = p_x + i_row.to(tl.int64) * (STREAMS * HIDDEN) + o_wide
    x = tl.load(p_stream, mask=m_k, other=0.0)
    if TERMS:
        block = sum_terms(p_part, i_row * o_part_row + k, o_part_term, m_k, TERMS)
        x = tl.fma(block, tl.broadcast_to(inject_gate(p_inject, i_row, i_stream, STREAMS), block.shape), x)
        tl.store(p_stream, x, mask=m_k)
    key = sum_terms(p_key_part, i_row * o_key_row + o_wide, o_key_term, m_k, KEY_TERMS)
    key = key * tl.rsqrt(tl.sum(key * key, axis=0) / HIDDEN + eps) * norm_key
    query = x * tl.rsqrt(tl.sum(x * x, axis=0) / HIDDEN + eps) * norm_query
    score = tl.sum(key * query, axis=0) / tl.sqrt(HIDDEN * 1.0)
    root = tl.sqrt(tl.maximum(tl.abs(score), 1e-6))
    root = tl.where(score > 0, root, tl.where(score < 0, -root, 0.0))
    value = sum_terms(p_value_part, i_row * o_value_row + k, o_value_term, m_k, VALUE_TERMS)
    gated = value / (1.0 + tl.exp(-root))
    normed = gated * tl.rsqrt(tl.sum(gated * gated, axis=0) / HIDDEN + eps)
    normed = normed * tl.load(p_norm_conv + o_wide, mask=m_k, other=0.0)
    o_row = i_row.to(tl.int64) * (STREAMS * HIDDEN) + o_wide
    tl.store(p_gated + o_row, gated, mask=m_k)
    tl.store(p_normed + o_row, normed, mask=m_k)
    if i_stream == 0:
        live = i_row < tl.load(p_rows_used)
        span = tl.load(p_row_span + i_row, mask=live, other=0)
        place = i_row - tl.load(p_span_first + span)
        kept = live & (place >= tl.load(p_span_certain + span) - (ORDER - 1))
        slot = tl.load(p_row_slot + i_row).to(tl.int64)
        at = tl.load(p_row_position + i_row) % RING
        tl.store(p_token_ring + slot * RING + at, tl.load(p_token + i_row), mask=kept)


@triton.jit
def convolve(
    p_x,
    p_gated,
    p_normed,
    p_conv,
    p_ring,
    p_span_slot,
    p_span_first,
    p_span_count,
    p_span_start,
    p_span_certain,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    TAPS: tl.constexpr,
    DILATION: tl.constexpr,
    RING: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (spans, blocks of the wide axis): x += gated + silu(conv(normed)); then the ring gets the span's last rows.

    A program owns its columns of a slot, so it may write the ring that it has read.
    """
    i_span = tl.program_id(0)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_k = k < WIDE
    gdc_wait(PDL)
    gdc_launch(PDL)
    slot = tl.load(p_span_slot + i_span).to(tl.int64)
    first = tl.load(p_span_first + i_span).to(tl.int64)
    count = tl.load(p_span_count + i_span)
    start = tl.load(p_span_start + i_span)
    certain = tl.load(p_span_certain + i_span)
    i = 0
    while i < count:
        total = tl.zeros([BLOCK], dtype=tl.float32)
        for j in tl.static_range(TAPS):
            back = (TAPS - 1 - j) * DILATION
            m_new = k < limit(WIDE, i >= back)
            m_old = k < limit(WIDE, (i < back) & (start + i >= back))
            new = tl.load(p_normed + (first + i - back) * WIDE + k, mask=m_new, other=0.0)
            o_ring = slot * RING + (start + i - back + RING) % RING
            old = tl.load(p_ring + o_ring * WIDE + k, mask=m_old, other=0.0)
            total = tl.fma(new + old, tl.load(p_conv + j * WIDE + k, mask=m_k, other=0.0), total)
        o_row = (first + i) * WIDE + k
        x = tl.load(p_x + o_row, mask=m_k, other=0.0) + tl.load(p_gated + o_row, mask=m_k, other=0.0)
        tl.store(p_x + o_row, x + total / (1.0 + tl.exp(-total)), mask=m_k)
        i += 1
    tl.debug_barrier()
    at = tl.maximum(certain - (TAPS - 1) * DILATION, 0)
    while at < count:
        row = tl.load(p_normed + (first + at) * WIDE + k, mask=m_k, other=0.0)
        tl.store(p_ring + (slot * RING + (start + at) % RING) * WIDE + k, row, mask=m_k)
        at += 1
