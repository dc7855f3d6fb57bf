"""Device code of hyper-connections: write and norm, the low-rank gates, the mean over streams."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels._terms import sum_terms
from kernels.device import gdc_launch, gdc_wait, load_operand, store_operand
from kernels.planes._decode import _multiply as multiply
from kernels.planes._decode import load_chunk, scale_words, strip_products


@triton.jit
def inject_gate(p_gate, i_row, i_stream, STREAMS: tl.constexpr):
    """Weight of a block's output in one stream: 2 sigmoid(sum of the streams' products / streams)."""
    total = tl.load(p_gate + i_row * (STREAMS * STREAMS) + i_stream)
    for i in tl.static_range(1, STREAMS):
        total += tl.load(p_gate + i_row * (STREAMS * STREAMS) + i * STREAMS + i_stream)
    return 2.0 / (1.0 + tl.exp(total * (-1.0 / STREAMS)))


@triton.jit
def write_norm(
    p_x,
    p_part,
    p_gate,
    p_norm,
    p_inject,
    p_normed,
    p_sums,
    o_part_term,
    o_part_row,
    eps,
    TERMS: tl.constexpr,
    STREAMS: tl.constexpr,
    STREAMS_BLOCK: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    PADDED: tl.constexpr,
    INJECT: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (streams, rows): x += gate * sum of the block's terms; its norm as operand rows; its products with inject.

    Sums are kept apart by stream, [row][from][to]: the reader adds them. With terms, x and the gate come from launches
    long done and are read before the wait; without, the launch before this one may have written x.
    """
    WIDE: tl.constexpr = STREAMS * HIDDEN
    i_stream = tl.program_id(0)
    i_row = tl.program_id(1)
    b_hidden = tl.arange(0, BLOCK)[None, :]
    m_hidden = b_hidden < HIDDEN
    o_wide = i_stream * HIDDEN + b_hidden
    norm = tl.load(p_norm + o_wide, mask=m_hidden, other=0.0)
    b_to = tl.arange(0, STREAMS_BLOCK)
    if INJECT:
        m_inject = (b_to < STREAMS)[:, None] & m_hidden
        inject = tl.load(p_inject + b_to[:, None] * WIDE + o_wide, mask=m_inject, other=0.0)
    p_stream = p_x + i_row.to(tl.int64) * WIDE + o_wide
    if TERMS:
        x = tl.load(p_stream, mask=m_hidden, other=0.0)
        gate = inject_gate(p_gate, i_row, i_stream, STREAMS)
        gdc_wait(PDL)
        gdc_launch(PDL)
        block = sum_terms(p_part, i_row * o_part_row + b_hidden, o_part_term, m_hidden, TERMS)
        x = tl.fma(block, tl.broadcast_to(gate, block.shape), x)
        tl.store(p_stream, x, mask=m_hidden)
    else:
        gdc_wait(PDL)
        gdc_launch(PDL)
        x = tl.load(p_stream, mask=m_hidden, other=0.0)
    square = tl.sum(x * x, axis=1, keep_dims=True)
    normed = x * tl.rsqrt(square / HIDDEN + eps) * norm
    # The last stream also clears what lies beyond the inputs.
    m_store = b_hidden < tl.where(i_stream == STREAMS - 1, HIDDEN + PADDED - WIDE, HIDDEN)
    store_operand(p_normed + i_row.to(tl.int64) * PADDED, o_wide, normed, m_store, EXACT)
    if INJECT:
        sums = tl.sum(inject * normed, axis=1)
        tl.store(p_sums + (i_row * STREAMS + i_stream) * STREAMS + b_to, sums, mask=b_to < STREAMS)


@triton.jit
def low_gate(
    p_part,
    p_low,
    o_part_term,
    o_part_row,
    TERMS: tl.constexpr,
    STREAMS: tl.constexpr,
    LOW: tl.constexpr,
    PADDED: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (rows, blocks of 128): silu(sum of terms / streams) as operand rows."""
    i_row = tl.program_id(0)
    b_low = tl.program_id(1) * 128 + tl.arange(0, 128)
    gdc_wait(PDL)
    gdc_launch(PDL)
    low = sum_terms(p_part, i_row * o_part_row + b_low, o_part_term, b_low < LOW, TERMS) * (1.0 / STREAMS)
    low = low / (1.0 + tl.exp(-low))
    store_operand(p_low + i_row * PADDED, b_low, low, b_low < PADDED, EXACT)


@triton.jit
def mix(
    p_part,
    p_normed,
    p_block,
    p_operand,
    o_part_term,
    o_part_row,
    TERMS: tl.constexpr,
    STREAMS: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    PADDED_WIDE: tl.constexpr,
    PADDED: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (rows, blocks of hidden): mean over streams of sigmoid(sum of terms) * normed; float32 and operand rows."""
    i_row = tl.program_id(0)
    b_hidden = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_hidden = b_hidden < HIDDEN
    p_row = p_normed + i_row.to(tl.int64) * PADDED_WIDE
    gdc_wait(PDL)
    gdc_launch(PDL)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for i in tl.static_range(STREAMS):
        o_wide = i * HIDDEN + b_hidden
        up = sum_terms(p_part, i_row * o_part_row + o_wide, o_part_term, m_hidden, TERMS)
        total += load_operand(p_row, o_wide, m_hidden, EXACT) / (1.0 + tl.exp(-up))
    total = total * (1.0 / STREAMS)
    tl.store(p_block + i_row * HIDDEN + b_hidden, total, mask=m_hidden)
    store_operand(p_operand + i_row * PADDED, b_hidden, total, b_hidden < PADDED, EXACT)


@triton.jit
def row_tile(i_group, rows, RT: tl.constexpr, EXACT: tl.constexpr):
    """Row numbers as `strip_products` wants them; rows beyond the last read the last."""
    if EXACT:
        tile = i_group * (8 * RT) + tl.arange(0, 8 * RT)[None, None, :]
    else:
        block = tl.arange(0, RT)[None, None, None, :, None]
        tile = i_group * (8 * RT) + block * 8 + tl.arange(0, 8)[None, :, None, None, None]
    return tl.minimum(tile, rows - 1)


@triton.jit
def down(
    p_strips,
    p_normed,
    p_part,
    p_ticket,
    p_low,
    p_grid,
    ROWS,
    FMT: tl.constexpr,
    WARPS: tl.constexpr,
    COUNT: tl.constexpr,
    RT: tl.constexpr,
    NCH: tl.constexpr,
    STRIPS: tl.constexpr,
    SPLITS: tl.constexpr,
    STREAMS: tl.constexpr,
    LOW: tl.constexpr,
    PADDED: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (strips, splits, row groups): 32 of the low products over a split of the inputs, a chunk for each warp.

    The program that finishes a strip last adds the splits, always in the same order, and stores silu(sum / streams) as
    operand rows. It leaves the ticket at zero for the next launch.
    """
    i_strip = tl.program_id(0)
    i_split = tl.program_id(1)
    i_group = tl.program_id(2)
    tile = row_tile(i_group, ROWS, RT, EXACT)
    acc = strip_products(
        p_strips, i_strip, i_split * (COUNT * WARPS), p_normed, tile, p_grid, FMT, WARPS, 1, RT, NCH, STRIPS, COUNT,
        0, 1, EXACT, PDL,
    )  # fmt: skip
    product = tl.sum(acc, axis=0)
    n = i_strip * 32 + tl.arange(0, 32)[:, None]
    r = i_group * (8 * RT) + tl.arange(0, 8 * RT)[None, :]
    m_row = r < ROWS
    if SPLITS > 1:
        tl.store(p_part + (i_split * ROWS + r) * (STRIPS * 32) + n, product, mask=m_row)
        tl.debug_barrier()
        p_mine = p_ticket + i_group * STRIPS + i_strip
        if tl.atomic_add(p_mine, 1, sem="acq_rel", scope="gpu") == SPLITS - 1:
            tl.debug_barrier()
            nt = i_strip * 32 + tl.arange(0, 32)[None, :]
            rt = i_group * (8 * RT) + tl.arange(0, 8 * RT)[:, None]
            low = sum_terms(p_part, rt * (STRIPS * 32) + nt, ROWS * (STRIPS * 32), rt < ROWS, SPLITS)
            store_low(p_low, rt, nt, low, rt < ROWS, STREAMS, LOW, PADDED, EXACT)
            tl.store(p_mine, 0)
    else:
        store_low(p_low, r, n, product, m_row, STREAMS, LOW, PADDED, EXACT)


@triton.jit
def store_low(
    p_low, r, n, low, m_row, STREAMS: tl.constexpr, LOW: tl.constexpr, PADDED: tl.constexpr, EXACT: tl.constexpr
):
    """silu(low / streams) as operand rows; zero beyond the matrix, as its strips are there."""
    low = low * (1.0 / STREAMS)
    low = low / (1.0 + tl.exp(-low))
    store_operand(p_low + r * PADDED, n, low, m_row, EXACT)
    STRIP_END: tl.constexpr = (LOW + 31) // 32 * 32
    for i in tl.static_range((PADDED - STRIP_END) // 32):
        m_last = m_row & (n >= STRIP_END - 32)
        store_operand(p_low + r * PADDED, n + 32 * (i + 1), tl.zeros_like(low), m_last, EXACT)


@triton.jit
def up(
    p_strips,
    p_low,
    p_normed,
    p_block,
    p_operand,
    p_grid,
    ROWS,
    FMT: tl.constexpr,
    RT: tl.constexpr,
    NCH: tl.constexpr,
    STREAMS: tl.constexpr,
    HIDDEN: tl.constexpr,
    PADDED_WIDE: tl.constexpr,
    PADDED: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (hidden / 32, row groups): mean over streams of sigmoid(low . up) * normed; a warp has a stream.

    All words of up to three chunks are loaded before the dependency wait.
    """
    APART: tl.constexpr = HIDDEN // 32
    STRIPS: tl.constexpr = STREAMS * APART
    i_strip = tl.program_id(0)
    i_group = tl.program_id(1)
    tile = row_tile(i_group, ROWS, RT, EXACT)
    if NCH <= 3:
        s = tl.arange(0, STREAMS)[:, None, None]
        a0, a1, a2, a3, a4, a5, a6, a7 = load_chunk(p_strips, i_strip, 0, FMT, NCH, STRIPS, STREAMS, 1, APART, 0)
        if NCH > 1:
            b0, b1, b2, b3, b4, b5, b6, b7 = load_chunk(p_strips, i_strip, 1, FMT, NCH, STRIPS, STREAMS, 1, APART, 0)
        if NCH > 2:
            c0, c1, c2, c3, c4, c5, c6, c7 = load_chunk(p_strips, i_strip, 2, FMT, NCH, STRIPS, STREAMS, 1, APART, 0)
        multiplier = tl.load(p_strips + strip_end(i_strip + s * APART, FMT, NCH)).to(tl.float32, bitcast=True)
        gdc_wait(PDL)
        gdc_launch(PDL)
        acc = tl.zeros([STREAMS, 32, 8 * RT], dtype=tl.float32)
        acc = multiply(acc, a0, a1, a2, a3, a4, a5, a6, a7, p_low, tile, 0, p_grid, FMT, STREAMS, 1, RT, NCH, 0, EXACT)
        if NCH > 1:
            acc = multiply(
                acc, b0, b1, b2, b3, b4, b5, b6, b7, p_low, tile, 1, p_grid, FMT, STREAMS, 1, RT, NCH, 0, EXACT
            )
        if NCH > 2:
            acc = multiply(
                acc, c0, c1, c2, c3, c4, c5, c6, c7, p_low, tile, 2, p_grid, FMT, STREAMS, 1, RT, NCH, 0, EXACT
            )
        acc = acc * multiplier
    else:
        acc = strip_products(
            p_strips, i_strip, 0, p_low, tile, p_grid, FMT, STREAMS, 1, RT, NCH, STRIPS, NCH, APART, 0, EXACT, PDL
        )
    s = tl.arange(0, STREAMS)[:, None, None]
    n3 = i_strip * 32 + tl.arange(0, 32)[None, :, None]
    r3 = i_group * (8 * RT) + tl.arange(0, 8 * RT)[None, None, :]
    normed = load_operand(p_normed + r3 * PADDED_WIDE, s * HIDDEN + n3, r3 < ROWS, EXACT)
    total = tl.sum(normed / (1.0 + tl.exp(-acc)), axis=0) * (1.0 / STREAMS)
    n = i_strip * 32 + tl.arange(0, 32)[:, None]
    r = i_group * (8 * RT) + tl.arange(0, 8 * RT)[None, :]
    tl.store(p_block + r * HIDDEN + n, total, mask=r < ROWS)
    store_operand(p_operand + r * PADDED, n, total, r < ROWS, EXACT)
    for i in tl.static_range((PADDED - HIDDEN) // 32):
        m_last = (r < ROWS) & (n >= HIDDEN - 32)
        store_operand(p_operand + r * PADDED, n + 32 * (i + 1), tl.zeros_like(total), m_last, EXACT)


@triton.jit
def strip_end(strip, FMT: tl.constexpr, NCH: tl.constexpr):
    """Word of a strip's multiplier."""
    CODES: tl.constexpr = 416 if (FMT >> 23) & 1 else (FMT & 63) * 128
    return strip * (NCH * (CODES + scale_words(FMT)) + 4) + NCH * (CODES + scale_words(FMT))
