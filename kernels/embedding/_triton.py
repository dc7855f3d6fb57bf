"""Device code of embedding rows: tokens to streams, and the entry of a draft layer."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels._terms import sum_terms
from kernels.device import gdc_launch, gdc_wait, store_operand
from kernels.embedding._decode import decode


@triton.jit
def embed(
    p_table,
    p_token,
    p_x,
    ROW_BYTES: tl.constexpr,
    STREAMS: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK_WEIGHTS: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (rows, blocks of hidden): the token's row into every stream."""
    i_row = tl.program_id(0)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gdc_wait(PDL)
    gdc_launch(PDL)
    token = tl.load(p_token + i_row).to(tl.int64)
    value = decode(p_table + token * ROW_BYTES, k, k < HIDDEN, KIND, BLOCK_WEIGHTS, BLOCK_BYTES)
    for i in tl.static_range(STREAMS):
        tl.store(p_x + (i_row.to(tl.int64) * STREAMS + i) * HIDDEN + k, value, mask=k < HIDDEN)


@triton.jit
def entry_norm(
    p_table,
    p_token,
    p_wide,
    p_source,
    p_token_norm,
    p_state_norm,
    p_token_rows,
    p_state_rows,
    eps,
    ROW_BYTES: tl.constexpr,
    STREAMS: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    PADDED: tl.constexpr,
    KIND: tl.constexpr,
    BLOCK_WEIGHTS: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
    GROUPED: tl.constexpr,
    SOURCE: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (streams + 1, rows): normed streams of a row, and last its normed token, as operand rows.

    GROUPED: every stream has its own norm; else all of them share one.
    """
    i_stream = tl.program_id(0)
    i_row = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, BLOCK)
    m_k = k < HIDDEN
    gdc_wait(PDL)
    gdc_launch(PDL)
    if i_stream == STREAMS:
        token = tl.load(p_token + i_row).to(tl.int64)
        value = decode(p_table + token * ROW_BYTES, k, m_k, KIND, BLOCK_WEIGHTS, BLOCK_BYTES)
        value = tl.where(m_k, value, 0.0)
        value = value * tl.rsqrt(tl.sum(value * value, axis=0) / HIDDEN + eps)
        value = value * tl.load(p_token_norm + k, mask=m_k, other=0.0)
        store_operand(p_token_rows + i_row * PADDED, k, value, k < PADDED, EXACT)
    else:
        source = i_row
        if SOURCE:
            source = tl.load(p_source + i_row).to(tl.int64)
        p_row = p_wide + source * (STREAMS * HIDDEN)
        value = tl.load(p_row + i_stream * HIDDEN + k, mask=m_k, other=0.0)
        if GROUPED:
            mean = tl.sum(value * value, axis=0) / HIDDEN
        else:
            square = tl.zeros([BLOCK], dtype=tl.float32)
            for i in tl.static_range(STREAMS):
                other = tl.load(p_row + i * HIDDEN + k, mask=m_k, other=0.0)
                square = tl.fma(other, other, square)
            mean = tl.sum(square, axis=0) / (STREAMS * HIDDEN)
        value = value * tl.rsqrt(mean + eps) * tl.load(p_state_norm + i_stream * HIDDEN + k, mask=m_k, other=0.0)
        store_operand(p_state_rows + (i_row * STREAMS + i_stream) * PADDED, k, value, k < PADDED, EXACT)


@triton.jit
def entry_add(
    p_token_part,
    p_state_part,
    p_x,
    o_token_term,
    o_token_row,
    o_state_term,
    o_state_row,
    TOKEN_TERMS: tl.constexpr,
    STATE_TERMS: tl.constexpr,
    STREAMS: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (rows * streams, blocks of hidden): the stream's product plus the token's."""
    i_row = tl.program_id(0)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_k = k < HIDDEN
    gdc_wait(PDL)
    gdc_launch(PDL)
    value = sum_terms(p_state_part, i_row * o_state_row + k, o_state_term, m_k, STATE_TERMS)
    value += sum_terms(p_token_part, (i_row // STREAMS) * o_token_row + k, o_token_term, m_k, TOKEN_TERMS)
    tl.store(p_x + i_row.to(tl.int64) * HIDDEN + k, value, mask=m_k)
