"""Device code of experts over many rows: pairs of row and expert in the order of experts, tiles, and their products.

A tile is up to BM pairs of one expert. Its product has the weights on the left, straight from planes in registers, and
the gathered rows on the right. The inputs of a row are permuted inside every 128 (see `kernels.experts.prompt`), so
that a lane's words of the planes are its share of the left side: k = 64 mj + 16 b + 8 mr + 4 h + i lies at
32 i + 16 mj + 8 mr + 2 b + h.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels.device import HALF_MAX, pair
from kernels.experts._route import NONE
from kernels.planes._decode import _codes, _operand, _scales
from kernels.planes._load import load_chunk, scale_words


@triton.jit
def _ids(p_ids, q, PAIRS, USED: tl.constexpr, W: tl.constexpr):
    """Experts of the pairs q, -1 beyond the last."""
    return tl.load(p_ids + (q // USED) * W + q % USED, mask=q < PAIRS, other=-1)


@triton.jit(do_not_specialize=["PAIRS"])
def count_pairs(p_ids, p_counts, PAIRS, E: tl.constexpr, USED: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr,
                TILE: tl.constexpr):  # fmt: skip
    """Grid (blocks of BLOCK pairs, E / TILE): counts [blocks, E], how many of a block's pairs each expert has."""
    i_block = tl.program_id(0)
    e = tl.program_id(1) * TILE + tl.arange(0, TILE)
    ids = _ids(p_ids, i_block * BLOCK + tl.arange(0, BLOCK), PAIRS, USED, W)
    found = tl.sum((ids[None, :] == e[:, None]).to(tl.int32), axis=1)
    tl.store(p_counts + i_block * E + e, found, mask=e < E)


@triton.jit(do_not_specialize=["BLOCKS", "TILES"])
def list_tiles(p_counts, p_first, p_count, p_before, p_tile_expert, p_tile_first, BLOCKS, TILES, E: tl.constexpr,
               E2: tl.constexpr, BM: tl.constexpr, LIST: tl.constexpr):  # fmt: skip
    """Grid (experts + 1,): each one's place among the pairs, that of its pairs of every block (before [blocks, E]), and
    its tiles; the last program ends the list."""
    expert = tl.program_id(0)
    e = tl.arange(0, E2)
    total = tl.zeros([E2], dtype=tl.int32)
    block = BLOCKS * 0
    while block < BLOCKS:
        total += tl.load(p_counts + block * E + e, mask=e < E, other=0)
        block += 1
    first = tl.sum(tl.where(e < expert, total, 0), axis=0)
    count = tl.sum(tl.where(e == expert, total, 0), axis=0)
    tile = tl.sum(tl.where(e < expert, (total + BM - 1) // BM, 0), axis=0)
    if expert == E:
        b = tl.arange(0, LIST)
        while tile < TILES:
            tl.store(p_tile_expert + tile + b, 0 * b - 1, mask=tile + b < TILES)
            tile += LIST
    else:
        tl.store(p_first + expert, first)
        tl.store(p_count + expert, count)
        start = count * 0
        while start < count:
            tl.store(p_tile_expert + tile + start // BM, expert)
            tl.store(p_tile_first + tile + start // BM, first + start)
            start += BM
        place = first
        block = BLOCKS * 0
        while block < BLOCKS:
            tl.store(p_before + block * E + expert, place)
            place += tl.load(p_counts + block * E + expert)
            block += 1


@triton.jit(do_not_specialize=["PAIRS"])
def place_pairs(p_ids, p_weights, p_before, p_row, p_out, p_share, PAIRS, E: tl.constexpr, USED: tl.constexpr,
                W: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    """Grid (blocks of BLOCK pairs, BLOCK / TILE): pairs to their places, those of an expert in the order of rows."""
    i_block = tl.program_id(0)
    b_all = tl.arange(0, BLOCK)
    b_own = tl.program_id(1) * TILE + tl.arange(0, TILE)
    q = i_block * BLOCK + b_own
    every = _ids(p_ids, i_block * BLOCK + b_all, PAIRS, USED, W)
    mine = _ids(p_ids, q, PAIRS, USED, W)
    same = (every[None, :] == mine[:, None]) & (b_all[None, :] < b_own[:, None])
    m = mine >= 0
    at = tl.load(p_before + i_block * E + mine, mask=m, other=0) + tl.sum(same.to(tl.int32), axis=1)
    tl.store(p_row + at, q // USED, mask=m)
    tl.store(p_out + at, (q // USED) * (USED + 1) + q % USED, mask=m)
    tl.store(p_share + at, tl.load(p_weights + (q // USED) * W + q % USED, mask=m, other=0.0), mask=m)


@triton.jit
def _left(value, T: tl.constexpr):
    """[b, a, 1, T, qg, m, h] to the left side [32 T, 32]: rows (g, t, q, a), inputs (mj, mr, b, h)."""
    p = value.reshape(4, 8, T, 2, 2, 2, 2, 2)  # b a T q g mj mr h
    return tl.permute(p, (4, 2, 3, 1, 5, 6, 0, 7)).reshape(32 * T, 32)


@triton.jit
def _chunk_product(acc, r0, r1, r2, r3, r4, r5, r6, r7, p_rows, chunk, p_grid, FMT: tl.constexpr, T: tl.constexpr,
                   EXACT: tl.constexpr):  # fmt: skip
    """acc [32 T, BM] plus the product of one chunk, whose words are r0 to r7."""
    BITS: tl.constexpr = FMT & 63
    if BITS < 16:
        even, odd, offset = _scales(r4, r5, r6, FMT, 1, T, EXACT)
        codes, high_codes = _codes(r0, r1, r2, p_grid, FMT, 1, T)
    for i in tl.static_range(4):
        x = tl.load(p_rows + chunk * 128 + i * 32)
        if BITS >= 16:
            if i == 0:
                first = r0
                second = r4
            elif i == 1:
                first = r1
                second = r5
            elif i == 2:
                first = r2
                second = r6
            else:
                first = r3
                second = r7
        if BITS == 16:
            w = pair(first)
            acc = _dot(_left(w.to(tl.float32) if EXACT else w, T), x, acc, EXACT)
        elif BITS == 32:
            full = tl.join(first.to(tl.float32, bitcast=True), second.to(tl.float32, bitcast=True))
            if EXACT:
                acc = _dot(_left(full, T), x, acc, EXACT)
            else:  # two halves hold 22 bits of a float32; their products with fp16 inputs are exact
                w = full.to(tl.float16)
                acc = _dot(_left(w, T), x, acc, EXACT)
                acc = _dot(_left((full - w.to(tl.float32)).to(tl.float16), T), x, acc, EXACT)
        else:
            w = _operand(codes, high_codes, even, odd, offset, i, FMT, EXACT)
            acc = _dot(_left(w if EXACT else pair(w), T), x, acc, EXACT)
    return acc


@triton.jit
def _tile_product(p_strips, strip, p_x, rows, o_row, p_grid, FMT: tl.constexpr, T: tl.constexpr, BM: tl.constexpr,
                  NCH: tl.constexpr, STRIPS: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """float32 [32 T, BM]: T strips times the rows that `rows` [BM] names, multiplier applied.

    Row 16 g + 8 q + a of strip t is row 16 T g + 16 t + 8 q + a of the result: so a warp has whole strips.
    """
    BITS: tl.constexpr = FMT & 63
    acc = tl.zeros([32 * T, BM], dtype=tl.float32)
    k = tl.arange(0, 32)[:, None]
    p_rows = p_x + rows[None, :].to(tl.int64) * o_row + k
    # Words go through registers, a chunk ahead; inputs through shared memory, as the compiler's pipeline has them.
    r0, r1, r2, r3, r4, r5, r6, r7 = load_chunk(p_strips, strip, 0, FMT, NCH, STRIPS, 1, T, T, 0)
    for chunk in range(NCH - 1):
        n0, n1, n2, n3, n4, n5, n6, n7 = load_chunk(p_strips, strip, chunk + 1, FMT, NCH, STRIPS, 1, T, T, 0)
        acc = _chunk_product(acc, r0, r1, r2, r3, r4, r5, r6, r7, p_rows, chunk, p_grid, FMT, T, EXACT)
        r0, r1, r2, r3, r4, r5, r6, r7 = n0, n1, n2, n3, n4, n5, n6, n7
    acc = _chunk_product(acc, r0, r1, r2, r3, r4, r5, r6, r7, p_rows, NCH - 1, p_grid, FMT, T, EXACT)
    row = tl.arange(0, 32 * T)
    LENGTH: tl.constexpr = NCH * ((416 if (FMT >> 23) & 1 else BITS * 128) + scale_words(FMT)) + 4
    tail = (tl.minimum(strip + row // 16 % T, STRIPS - 1) + 1) * LENGTH - 4
    return acc * tl.load(p_strips + tail).to(tl.float32, bitcast=True)[:, None]


@triton.jit
def _stored(value, EXACT: tl.constexpr):
    """What fp16 can hold of float32 values: an outlier stays finite, NaN stays NaN."""
    if not EXACT:
        value = tl.maximum(value, -HALF_MAX, propagate_nan=tl.PropagateNan.ALL)
        value = tl.minimum(value, HALF_MAX, propagate_nan=tl.PropagateNan.ALL)
    return value


@triton.jit
def _dot(w, x, acc, EXACT: tl.constexpr):
    return tl.dot(w, x, acc, input_precision="ieee" if EXACT else "tf32")


@triton.jit
def _tile(p_table, p_tile_expert, p_tile_first, p_first, p_count, tile):
    """Base of the tile's expert, its first pair, and the pair after its expert's last; base NONE: no tile."""
    expert = tl.load(p_tile_expert + tile)
    at = tl.maximum(expert, 0)
    base = tl.where(expert >= 0, tl.load(p_table + at), NONE)
    return base, tl.load(p_tile_first + tile), tl.load(p_first + at) + tl.load(p_count + at)


@triton.jit
def gate_up_tiles(p_anchor, p_table, p_tile_expert, p_tile_first, p_first, p_count, p_row, p_x, p_h, p_grid,
                  FORM: tl.constexpr, FMT: tl.constexpr, BM: tl.constexpr, NCH: tl.constexpr, STRIPS: tl.constexpr,
                  EXACT: tl.constexpr):  # fmt: skip
    """Grid (tiles * strips / 4,): h [pairs, 16 STRIPS] = silu(gate) * up of the tiles whose expert has this form."""
    BLOCKS: tl.constexpr = STRIPS // 4
    tile = tl.program_id(0) // BLOCKS
    block = tl.program_id(0) % BLOCKS
    base, first, stop = _tile(p_table, p_tile_expert, p_tile_first, p_first, p_count, tile)
    if (base != NONE) & ((base & 1) == FORM):
        pairs = first + tl.arange(0, BM)
        rows = tl.load(p_row + pairs, mask=pairs < stop, other=0)
        acc = _tile_product(p_anchor + (base >> 1) * 4, block * 4, p_x, rows, NCH * 128, p_grid, FMT, 4, BM, NCH,
                            STRIPS, EXACT)  # fmt: skip
        gate, up = tl.split(tl.permute(acc.reshape(2, 64, BM), (1, 2, 0)))
        h = gate / (1.0 + tl.exp(-gate)) * up  # (b mr h i), pair; the block is half mj of a chunk
        h = tl.permute(h.reshape(4, 2, 2, 4, BM), (4, 3, 1, 0, 2)).reshape(BM, 4, 16)
        i = tl.arange(0, 4)[None, :, None]
        inner = tl.arange(0, 16)[None, None, :]
        at = pairs[:, None, None].to(tl.int64) * (STRIPS * 16) + (block // 2) * 128 + i * 32 + (block % 2) * 16 + inner
        tl.store(p_h + at, _stored(h, EXACT).to(p_h.dtype.element_ty), mask=pairs[:, None, None] < stop)


@triton.jit
def down_tiles(p_anchor, p_table, p_tile_expert, p_tile_first, p_first, p_count, p_out, p_share, p_h, p_y, p_grid, N,
               FORM: tl.constexpr, FMT: tl.constexpr, SKIP: tl.constexpr, BM: tl.constexpr, NCH: tl.constexpr,
               STRIPS: tl.constexpr, EXACT: tl.constexpr):  # fmt: skip
    """Grid (tiles * ceil(strips / 4),): y [rows * (used + 1), N], weighted products of (row, slot); SKIP: words of
    gate-up planes before the down planes."""
    BLOCKS: tl.constexpr = (STRIPS + 3) // 4
    tile = tl.program_id(0) // BLOCKS
    block = tl.program_id(0) % BLOCKS
    base, first, stop = _tile(p_table, p_tile_expert, p_tile_first, p_first, p_count, tile)
    if (base != NONE) & ((base & 1) == FORM):
        pairs = first + tl.arange(0, BM)
        m_pair = pairs < stop
        at = tl.where(m_pair, pairs, first)
        acc = _tile_product(p_anchor + (base >> 1) * 4 + SKIP, block * 4, p_h, at, NCH * 128, p_grid, FMT, 4, BM, NCH,
                            STRIPS, EXACT)  # fmt: skip
        acc = tl.permute(acc.reshape(2, 4, 16, BM), (3, 1, 0, 2)).reshape(BM, 128)
        y = acc * tl.load(p_share + pairs, mask=m_pair, other=0.0)[:, None]
        out = tl.load(p_out + pairs, mask=m_pair, other=0).to(tl.int64)
        n = block * 128 + tl.arange(0, 128)
        tl.store(
            p_y + out[:, None] * N + n[None, :], y.to(p_y.dtype.element_ty), mask=m_pair[:, None] & (n < N)[None, :]
        )


@triton.jit
def swiglu_rows(p_both, p_h, o_both, FF: tl.constexpr, BLOCK: tl.constexpr, EXACT: tl.constexpr):
    """Grid (rows, FF / BLOCK): h [rows, FF] = silu(gate) * up of rows whose columns are 16 gates and their 16 ups in
    turn."""
    i_row = tl.program_id(0)
    f = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    p_gate = p_both + i_row.to(tl.int64) * o_both + (f // 16) * 32 + f % 16
    gate = tl.load(p_gate, mask=f < FF, other=0.0).to(tl.float32)
    h = gate / (1.0 + tl.exp(-gate)) * tl.load(p_gate + 16, mask=f < FF, other=0.0).to(tl.float32)
    tl.store(p_h + i_row.to(tl.int64) * FF + f, _stored(h, EXACT).to(p_h.dtype.element_ty), mask=f < FF)
