"""Device code of hyper-connections over many rows: write and norm, weights of the next write, gates and mean."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels._many import at_rows, narrow, product, summed


@triton.jit(do_not_specialize=["count"])
def write_norm(
    p_x, p_part, p_weight, p_norm, p_inject, p_normed, p_next, o_part_term, o_part_row, count, eps,
    TERMS: tl.constexpr, STREAMS: tl.constexpr, STREAMS_BLOCK: tl.constexpr, HIDDEN: tl.constexpr,
    TILE: tl.constexpr, ROWS: tl.constexpr, NORM: tl.constexpr, INJECT: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of rows): x += weight * sum of terms; with NORM each stream's norm; with INJECT the next weights."""
    WIDE: tl.constexpr = STREAMS * HIDDEN
    b_row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = b_row < count
    b_stream = tl.arange(0, STREAMS_BLOCK)
    m_side = live[:, None] & (b_stream < STREAMS)[None, :]
    o_side = b_row[:, None] * STREAMS + b_stream[None, :]
    o_stream = b_row.to(tl.int64)[:, None] * WIDE + b_stream[None, :] * HIDDEN
    square = tl.zeros([ROWS, STREAMS_BLOCK], dtype=tl.float32)
    if TERMS:
        weight = tl.load(p_weight + o_side, mask=m_side, other=0.0)
    for at in range(0, HIDDEN, TILE):
        b_hidden = at + tl.arange(0, TILE)
        m_tile = m_side[:, :, None] & (b_hidden < HIDDEN)[None, None, :]
        o_tile = o_stream[:, :, None] + b_hidden[None, None, :]
        x = tl.load(p_x + o_tile, mask=m_tile, other=0.0)
        if TERMS:
            m_part = live[:, None] & (b_hidden < HIDDEN)[None, :]
            block = summed(p_part, o_part_term, o_part_row, b_row, b_hidden, m_part, TERMS)
            x += weight[:, :, None] * block[:, None, :]
            tl.store(p_x + o_tile, x, mask=m_tile)
        square += tl.sum(x * x, axis=2)
    if NORM:
        tl.debug_barrier()
        scale = tl.rsqrt(square / HIDDEN + eps)
        sums = tl.zeros([ROWS, STREAMS_BLOCK], dtype=tl.float32)
        for at in range(0, HIDDEN, TILE):
            b_hidden = at + tl.arange(0, TILE)
            m_tile = m_side[:, :, None] & (b_hidden < HIDDEN)[None, None, :]
            o_tile = o_stream[:, :, None] + b_hidden[None, None, :]
            o_weight = b_stream[:, None] * HIDDEN + b_hidden[None, :]
            m_weight = (b_stream < STREAMS)[:, None] & (b_hidden < HIDDEN)[None, :]
            norm = tl.load(p_norm + o_weight, mask=m_weight, other=0.0)
            normed = tl.load(p_x + o_tile, mask=m_tile, other=0.0) * scale[:, :, None] * norm[None, :, :]
            tl.store(p_normed + o_tile, narrow(normed, EXACT), mask=m_tile)
            if INJECT:
                for to in tl.static_range(STREAMS):
                    inject = tl.load(p_inject + to * WIDE + o_weight, mask=m_weight, other=0.0)
                    total = tl.sum(tl.sum(normed * inject[None, :, :], axis=2), axis=1)
                    sums += tl.where((b_stream == to)[None, :], total[:, None], 0.0)
        if INJECT:
            tl.store(p_next + o_side, 2.0 / (1.0 + tl.exp(sums * (-1.0 / STREAMS))), mask=m_side)


@triton.jit
def up_tile(p_low, p_up, b_row, b_column, live, m_column, LOW: tl.constexpr, STEP: tl.constexpr,
            EXACT: tl.constexpr):  # fmt: skip
    """Rows of `low` times columns of the matrix up, float32 [rows, columns]."""
    total = tl.zeros([b_row.shape[0], b_column.shape[0]], dtype=tl.float32)
    for at in range(0, LOW, STEP):
        b_low = at + tl.arange(0, STEP)
        m_low = b_low < LOW
        low = tl.load(p_low + at_rows(b_row, LOW, b_low), mask=live[:, None] & m_low[None, :], other=0.0)
        up = tl.load(
            p_up + b_column[None, :] * LOW + b_low[:, None], mask=m_column[None, :] & m_low[:, None], other=0.0
        )
        total += product(low, up, EXACT)
    return total


@triton.jit(do_not_specialize=["count"])
def up_mix(
    p_low, p_up, p_normed, p_block, count,
    STREAMS: tl.constexpr, HIDDEN: tl.constexpr, LOW: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    STEP: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of hidden, blocks of rows): mean over streams of sigmoid(low up') * normed."""
    b_row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    b_hidden = tl.program_id(0) * TILE + tl.arange(0, TILE)
    live = b_row < count
    m_hidden = b_hidden < HIDDEN
    mask = live[:, None] & m_hidden[None, :]
    total = tl.zeros([ROWS, TILE], dtype=tl.float32)
    for stream in range(STREAMS):
        b_wide = stream * HIDDEN + b_hidden
        gate = up_tile(p_low, p_up, b_row, b_wide, live, m_hidden, LOW, STEP, EXACT)
        normed = tl.load(p_normed + at_rows(b_row, STREAMS * HIDDEN, b_wide), mask=mask, other=0.0)
        total += normed.to(tl.float32) / (1.0 + tl.exp(-gate))
    p_out = p_block + at_rows(b_row, HIDDEN, b_hidden)
    tl.store(p_out, narrow(total * (1.0 / STREAMS), EXACT), mask=mask)
