"""Device code of block scores in decode: the score of every block a row knows, and how many fall in each bin.

A score is the sum over heads of relu(q . k). Its float32 pattern, which orders as an integer because scores are not
negative, gives its bin: 16 octaves of 16 bins around 1, the first and last also for everything below and above.
A row's blocks are cut into equal chunks by how many it knows; bins are counted for each chunk, so that every chunk
finds its place in the choice without asking the others.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels._tile import INTERPRETED, tile_dot
from kernels.device import gdc_sync

BINS = tl.constexpr(256)
BIN_SHIFT = tl.constexpr(19)
BIN_BASE = tl.constexpr((127 - 8) << 4)


@triton.jit
def bin_of(bits):
    return tl.minimum(tl.maximum((bits >> BIN_SHIFT) - BIN_BASE, 0), BINS - 1)


@triton.jit
def chunk_tiles(known, TILE: tl.constexpr, CHUNKS: tl.constexpr):
    """Tiles of each of a row's chunks; two at least, because every chunk costs a program."""
    return tl.maximum((known + (TILE * CHUNKS - 1)) // (TILE * CHUNKS), 2)


@triton.jit
def at_row(b_row, row, values):
    """values[row] of a vector."""
    return tl.sum(tl.where(b_row == row, values, 0), axis=0)


@triton.jit
def group_at(tile, end, b_row, starts, tiles, group_rows, positions, slots, firsts):
    """The group of rows that a tile belongs to: row, rows, position, slot, blocks older than the window, its tiles."""
    row = tl.sum((starts + tiles <= tile).to(tl.int32), axis=0)
    begin = at_row(b_row, row, starts)
    last = tl.minimum(begin + at_row(b_row, row, tiles), end)
    count = at_row(b_row, row, group_rows)
    position = at_row(b_row, row, positions)
    slot = at_row(b_row, row, slots)
    old = at_row(b_row, row, positions - b_row + firsts)
    return row, begin, last, count, position, slot, old


@triton.jit
def load_keys(p_keys, p_page_row, b_block, m_block, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr,
              PAGE_BLOCKS: tl.constexpr):  # fmt: skip
    """Keys of blocks, [blocks, BLOCK_DIM]."""
    b_dim = tl.arange(0, BLOCK_DIM)
    page = tl.load(p_page_row + b_block // PAGE_BLOCKS, mask=m_block, other=0).to(tl.int64)
    o_key = (page * PAGE_BLOCKS + b_block % PAGE_BLOCKS) * DIM
    return tl.load(p_keys + o_key[:, None] + b_dim[None, :], mask=m_block[:, None] & (b_dim < DIM)[None, :], other=0.0)


@triton.jit
def over_heads(score, TILE: tl.constexpr, GROUP: tl.constexpr, HEAD_BLOCK: tl.constexpr):
    """Sums [TILE, GROUP * HEAD_BLOCK] over heads in pairs, so that the order is the same for any number of rows."""
    if HEAD_BLOCK > 1:
        first, second = tl.split(tl.reshape(score, [TILE, GROUP * HEAD_BLOCK // 2, 2]))
        out = over_heads(first + second, TILE, GROUP, HEAD_BLOCK // 2)
    else:
        out = score
    return out


@triton.jit
def keep_scores(
    score, block, tile, row, known, wanted, p_scores, p_histogram, longest,
    BUDGET: tl.constexpr, TILE: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Stores the scores of blocks that rows know, and counts those of rows that have a choice."""
    # Also turns -0 and NaN into 0, whose pattern orders first.
    score = tl.where(score > 0.0, score, 0.0)
    mask = (block < known) & wanted
    tl.store(p_scores + row * longest + block, score, mask=mask)
    o_chunk = (row * CHUNKS + tile // chunk_tiles(known, TILE, CHUNKS)) * BINS
    p_bin = p_histogram + o_chunk + bin_of(score.to(tl.int32, bitcast=True))
    tl.atomic_add(p_bin, 1, mask=mask & (known > BUDGET), sem="relaxed")


@triton.jit
def score_tile(
    key, query, b_block, tile, row, count, position, p_scores, p_histogram, longest,
    HEAD_BLOCK: tl.constexpr, GROUP: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BUDGET: tl.constexpr,
    TILE: tl.constexpr, CHUNKS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Scores of a tile of blocks for up to GROUP rows of one span: stored and counted."""
    if EXACT == 0:
        key = key.to(tl.float16)
    product = tl.maximum(tile_dot(key, query, EXACT), 0.0)
    if count == 1:
        # Zeros between the heads' own sums change nothing: the order is that of `over_heads`.
        b_column = tl.arange(0, GROUP * HEAD_BLOCK)
        alone = tl.sum(tl.where(b_column[None, :] < HEAD_BLOCK, product, 0.0), axis=1)
        keep_scores(
            alone, b_block, tile, row.to(tl.int64), (position + 1) // BLOCK_TOKENS, True, p_scores, p_histogram,
            longest, BUDGET, TILE, CHUNKS,
        )  # fmt: skip
    else:
        b_group = tl.arange(0, GROUP)[None, :]
        keep_scores(
            over_heads(product, TILE, GROUP, HEAD_BLOCK), b_block[:, None], tile, (row + b_group).to(tl.int64),
            (position + b_group + 1) // BLOCK_TOKENS, b_group < count, p_scores, p_histogram,
            longest, BUDGET, TILE, CHUNKS,
        )  # fmt: skip


@triton.jit
def score(
    p_query, p_keys, p_pages, o_pages, p_slot, p_position, p_span, p_span_first, p_span_count, p_rows_used,
    p_scores, p_histogram, longest,
    HEADS: tl.constexpr, HEAD_BLOCK: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, PAGE_BLOCKS: tl.constexpr, BUDGET: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, TILE: tl.constexpr, CHUNKS: tl.constexpr, EXACT: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid (programs): each takes a run of the tiles of all groups of rows that have a choice to make.

    Every block key is read once for all rows of a group. The keys of the first tile are read before the wait, except
    blocks that this window completes.
    """
    b_row = tl.arange(0, BLOCK_ROWS)
    live = b_row < tl.load(p_rows_used)
    positions = tl.load(p_position + b_row, mask=live, other=0)
    slots = tl.load(p_slot + b_row, mask=live, other=0)
    span = tl.load(p_span + b_row, mask=live, other=0)
    firsts = tl.load(p_span_first + span, mask=live, other=0)
    span_end = firsts + tl.load(p_span_count + span, mask=live, other=0)
    leads = live & ((b_row - firsts) % GROUP == 0)
    group_rows = tl.where(leads, tl.minimum(span_end - b_row, GROUP), 0)
    known = (positions + group_rows) // BLOCK_TOKENS
    tiles = tl.where(leads & (known > BUDGET), (known + TILE - 1) // TILE, 0)
    starts = tl.cumsum(tiles, axis=0) - tiles
    total = tl.sum(tiles, axis=0)
    share = (total + tl.num_programs(0) - 1) // tl.num_programs(0)
    tile = tl.program_id(0) * share
    end = tl.minimum(tile + share, total)
    row, begin, last, count, position, slot, old = group_at(
        tile, end, b_row, starts, tiles, group_rows, positions, slots, firsts
    )
    b_tile = tl.arange(0, TILE)
    b_dim = tl.arange(0, BLOCK_DIM)
    b_column = tl.arange(0, GROUP * HEAD_BLOCK)
    head = b_column % HEAD_BLOCK
    p_page_row = p_pages + slot.to(tl.int64) * o_pages
    b_block = (tile - begin) * TILE + b_tile
    old = old // BLOCK_TOKENS
    m_old = (b_block < old) & (tile < end)
    ahead = load_keys(p_keys, p_page_row, b_block, m_old, DIM, BLOCK_DIM, PAGE_BLOCKS)
    gdc_sync(PDL)
    fresh = count * 0 + 1
    while tile < end:
        m_column = (head < HEADS) & (b_column // HEAD_BLOCK < count)
        o_query = ((row + b_column // HEAD_BLOCK) * HEADS + head) * DIM
        query = tl.load(
            p_query + o_query[None, :] + b_dim[:, None], mask=m_column[None, :] & (b_dim < DIM)[:, None], other=0.0
        )
        complete = (position + count) // BLOCK_TOKENS
        if fresh > 0:
            m_new = (b_block >= old) & (b_block < complete)
            new = load_keys(p_keys, p_page_row, b_block, m_new, DIM, BLOCK_DIM, PAGE_BLOCKS)
            key = tl.where((b_block < old)[:, None], ahead, new)
            score_tile(
                key, query, b_block, tile - begin, row, count, position, p_scores, p_histogram, longest, HEAD_BLOCK,
                GROUP, BLOCK_TOKENS, BUDGET, TILE, CHUNKS, EXACT,
            )  # fmt: skip
            tile += 1
            fresh = fresh * 0
        if INTERPRETED:
            while tile < last:
                b_more = (tile - begin) * TILE + b_tile
                key = load_keys(p_keys, p_page_row, b_more, b_more < complete, DIM, BLOCK_DIM, PAGE_BLOCKS)
                score_tile(
                    key, query, b_more, tile - begin, row, count, position, p_scores, p_histogram, longest, HEAD_BLOCK,
                    GROUP, BLOCK_TOKENS, BUDGET, TILE, CHUNKS, EXACT,
                )  # fmt: skip
                tile += 1
        else:
            for at in tl.range(tile, last, num_stages=STAGES):
                b_more = (at - begin) * TILE + b_tile
                key = load_keys(p_keys, p_page_row, b_more, b_more < complete, DIM, BLOCK_DIM, PAGE_BLOCKS)
                score_tile(
                    key, query, b_more, at - begin, row, count, position, p_scores, p_histogram, longest, HEAD_BLOCK,
                    GROUP, BLOCK_TOKENS, BUDGET, TILE, CHUNKS, EXACT,
                )  # fmt: skip
        tile = last
        row, begin, last, count, position, slot, old = group_at(
            tile, end, b_row, starts, tiles, group_rows, positions, slots, firsts
        )
        p_page_row = p_pages + slot.to(tl.int64) * o_pages
