"""Device code of block selection in decode: scores with a histogram, then the exact best blocks in order.

A score is the sum over heads of relu(q . k). Its float32 pattern, which orders as an integer because scores are not
negative, gives its bin: 16 octaves of 16 bins around 1, the first and last also for everything below and above.
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
FAR = tl.constexpr(0x7FFFFFFF)


@triton.jit
def bin_of(bits):
    return tl.minimum(tl.maximum((bits >> BIN_SHIFT) - BIN_BASE, 0), BINS - 1)


@triton.jit
def at_row(b_row, row, values):
    """values[row] of a vector."""
    return tl.sum(tl.where(b_row == row, values, 0), axis=0)


@triton.jit
def score_tile(
    tile, b_row, starts, tiles, group_rows, positions, slots, p_query, p_keys, p_pages, o_pages,
    p_scores, p_histogram, longest, HEADS: tl.constexpr, HEAD_BLOCK: tl.constexpr, DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr, GROUP: tl.constexpr, BLOCK_TOKENS: tl.constexpr, PAGE_BLOCKS: tl.constexpr,
    BUDGET: tl.constexpr, TILE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Scores of TILE blocks for up to GROUP rows of one span; every block key is read once for all of them."""
    row = tl.sum((starts + tiles <= tile).to(tl.int32), axis=0)
    count = at_row(b_row, row, group_rows)
    position = at_row(b_row, row, positions)
    slot = at_row(b_row, row, slots).to(tl.int64)
    b_block = (tile - at_row(b_row, row, starts)) * TILE + tl.arange(0, TILE)
    b_dim = tl.arange(0, BLOCK_DIM)
    m_block = b_block < (position + count) // BLOCK_TOKENS
    page = tl.load(p_pages + slot * o_pages + b_block // PAGE_BLOCKS, mask=m_block, other=0).to(tl.int64)
    o_key = (page * PAGE_BLOCKS + b_block % PAGE_BLOCKS) * DIM
    key = tl.load(p_keys + o_key[:, None] + b_dim[None, :], mask=m_block[:, None] & (b_dim < DIM)[None, :], other=0.0)
    b_column = tl.arange(0, GROUP * HEAD_BLOCK)
    head = b_column % HEAD_BLOCK
    m_column = (head < HEADS) & (b_column // HEAD_BLOCK < count)
    o_query = ((row + b_column // HEAD_BLOCK) * HEADS + head) * DIM
    query = tl.load(
        p_query + o_query[None, :] + b_dim[:, None], mask=m_column[None, :] & (b_dim < DIM)[:, None], other=0.0
    )
    if EXACT == 0:
        key = key.to(tl.float16)
    score = tl.maximum(tile_dot(key, query, EXACT), 0.0)
    score = tl.sum(tl.reshape(score, [TILE, GROUP, HEAD_BLOCK]), axis=2)
    # Also turns -0 and NaN into 0, whose pattern orders first.
    score = tl.where(score > 0.0, score, 0.0)
    b_group = tl.arange(0, GROUP)
    known = (position + b_group + 1) // BLOCK_TOKENS
    m_score = (b_block[:, None] < known[None, :]) & (b_group < count)[None, :]
    o_row = (row + b_group).to(tl.int64)
    tl.store(p_scores + o_row[None, :] * longest + b_block[:, None], score, mask=m_score)
    p_bin = p_histogram + o_row[None, :] * BINS + bin_of(score.to(tl.int32, bitcast=True))
    tl.atomic_add(p_bin, 1, mask=m_score & (known > BUDGET)[None, :], sem="relaxed")


@triton.jit(do_not_specialize=["rows"])
def score(
    p_query, p_keys, p_pages, o_pages, p_slot, p_position, p_span, p_span_first, p_span_count, p_rows_used,
    p_scores, p_histogram, longest, rows,
    HEADS: tl.constexpr, HEAD_BLOCK: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, PAGE_BLOCKS: tl.constexpr, BUDGET: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, TILE: tl.constexpr, COPIES: tl.constexpr, EXACT: tl.constexpr, STAGES: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid (programs): each takes a run of the tiles of all groups of rows that have a choice to make."""
    b_row = tl.arange(0, BLOCK_ROWS)
    live = b_row < tl.load(p_rows_used)
    positions = tl.load(p_position + b_row, mask=live, other=0)
    slots = tl.load(p_slot + b_row, mask=live, other=0)
    span = tl.load(p_span + b_row, mask=live, other=0)
    first_rows = tl.load(p_span_first + span, mask=live, other=0)
    span_end = first_rows + tl.load(p_span_count + span, mask=live, other=0)
    leads = live & ((b_row - first_rows) % GROUP == 0)
    group_rows = tl.where(leads, tl.minimum(span_end - b_row, GROUP), 0)
    known = (positions + group_rows) // BLOCK_TOKENS
    tiles = tl.where(leads & (known > BUDGET), (known + TILE - 1) // TILE, 0)
    starts = tl.cumsum(tiles, axis=0) - tiles
    total = tl.sum(tiles, axis=0)
    share = (total + tl.num_programs(0) - 1) // tl.num_programs(0)
    tile = tl.program_id(0) * share
    end = tl.minimum(tile + share, total)
    p_histogram += (tl.program_id(0) % COPIES) * (rows * BINS)
    gdc_sync(PDL)
    if INTERPRETED:
        while tile < end:
            score_tile(
                tile, b_row, starts, tiles, group_rows, positions, slots, p_query, p_keys, p_pages,
                o_pages, p_scores, p_histogram, longest, HEADS, HEAD_BLOCK, DIM, BLOCK_DIM, GROUP, BLOCK_TOKENS,
                PAGE_BLOCKS, BUDGET, TILE, EXACT,
            )  # fmt: skip
            tile += 1
    else:
        for at in tl.range(tile, end, num_stages=STAGES):
            score_tile(
                at, b_row, starts, tiles, group_rows, positions, slots, p_query, p_keys, p_pages,
                o_pages, p_scores, p_histogram, longest, HEADS, HEAD_BLOCK, DIM, BLOCK_DIM, GROUP, BLOCK_TOKENS,
                PAGE_BLOCKS, BUDGET, TILE, EXACT,
            )  # fmt: skip


@triton.jit
def count_reaching(p_bits, p_block, count, least, tie_end, LIST: tl.constexpr):
    """Candidates in memory above `least`, or equal to it with a block before `tie_end`."""
    found = count * 0
    first = count * 0
    while first < count:
        o_list = first + tl.arange(0, LIST)
        bits = tl.load(p_bits + o_list, mask=o_list < count, other=-1)
        block = tl.load(p_block + o_list, mask=o_list < count, other=0)
        found += tl.sum(((bits > least) | ((bits == least) & (block < tie_end))).to(tl.int32), axis=0)
        first += LIST
    return found


@triton.jit
def settle(p_bits, p_block, count, above, need, inner, lowest, p_chosen, LIST: tl.constexpr):
    """Chooses exactly `need` of the candidates of the deciding bin, equal scores by the lower block, from `above` on.

    Bit by bit: the largest pattern that `need` candidates reach, then the block number that splits those equal to it.
    Stops early when exactly `need` candidates reach the pattern found so far. A list that fits is held in registers.
    """
    o_list = tl.arange(0, LIST)
    bits = tl.load(p_bits + o_list, mask=o_list < count, other=-1)
    block = tl.load(p_block + o_list, mask=o_list < count, other=0)
    fits = count <= LIST
    least = lowest
    bit = tl.where(inner, BIN_SHIFT - 1, 30)
    found = count
    while (bit >= 0) & (found != need):
        trial = least | (1 << bit)
        if fits:
            reached = tl.sum((bits >= trial).to(tl.int32), axis=0)
        else:
            reached = count_reaching(p_bits, p_block, count, trial, FAR, LIST)
        least = tl.where(reached >= need, trial, least)
        found = tl.where(reached >= need, reached, found)
        bit -= 1
    tie_end = least * 0 + FAR
    if found > need:
        tie_end = least * 0
        step = bit * 0 + 20
        while step >= 0:
            trial = tie_end | (1 << step)
            if fits:
                reached = tl.sum(((bits > least) | ((bits == least) & (block < trial))).to(tl.int32), axis=0)
            else:
                reached = count_reaching(p_bits, p_block, count, least, trial, LIST)
            tie_end = tl.where(reached < need, trial, tie_end)
            step -= 1
        tie_end += 1
    first = count * 0
    written = above
    while first < count:
        o_list = first + tl.arange(0, LIST)
        bits = tl.load(p_bits + o_list, mask=o_list < count, other=-1)
        block = tl.load(p_block + o_list, mask=o_list < count, other=0)
        take = ((bits > least) | ((bits == least) & (block < tie_end))) & (o_list < count)
        taken = take.to(tl.int32)
        tl.store(p_chosen + written + tl.cumsum(taken, axis=0) - 1, block, mask=take)
        written += tl.sum(taken, axis=0)
        first += LIST


@triton.jit
def write_in_order(p_chosen, p_blocks, p_places, p_page_row, BUDGET: tl.constexpr, BLOCK_BUDGET: tl.constexpr,
                   PAGE_BLOCKS: tl.constexpr, CHUNK: tl.constexpr):  # fmt: skip
    """Chosen blocks, found in any order, to their places by rising block: attention adds them in that order."""
    b_choice = tl.arange(0, BLOCK_BUDGET)
    m_choice = b_choice < BUDGET
    block = tl.load(p_chosen + b_choice, mask=m_choice, other=FAR)
    page = tl.load(p_page_row + block // PAGE_BLOCKS, mask=m_choice, other=0)
    rank = tl.zeros([BLOCK_BUDGET], dtype=tl.int32)
    for i in tl.static_range(0, BLOCK_BUDGET, CHUNK):
        o_other = i + tl.arange(0, CHUNK)
        other = tl.load(p_chosen + o_other, mask=o_other < BUDGET, other=FAR)
        rank += tl.sum((other[None, :] < block[:, None]).to(tl.int32), axis=1)
    tl.store(p_blocks + rank, block, mask=m_choice)
    tl.store(p_places + rank, page * PAGE_BLOCKS + block % PAGE_BLOCKS, mask=m_choice)


@triton.jit(do_not_specialize=["rows"])
def pick(
    p_scores, p_histogram, p_counts, p_list_bits, p_list_block, p_chosen, p_blocks, p_places,
    p_slot, p_position, p_rows_used, p_pages, o_pages, longest, rows,
    BLOCK_TOKENS: tl.constexpr, PAGE_BLOCKS: tl.constexpr, BUDGET: tl.constexpr, BLOCK_BUDGET: tl.constexpr,
    TILE: tl.constexpr, LIST: tl.constexpr, COPIES: tl.constexpr, CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid (programs, rows). Blocks above the deciding bin are chosen at once, those in it become candidates; the
    row's last program settles the candidates, puts the choice in order and clears what the next layer counts in.
    """
    i_part = tl.program_id(0)
    i_row = tl.program_id(1)
    live = i_row < tl.load(p_rows_used)
    slot = tl.load(p_slot + i_row).to(tl.int64)
    known = tl.where(live, (tl.load(p_position + i_row) + 1) // BLOCK_TOKENS, 0)
    p_page_row = p_pages + slot * o_pages
    p_blocks += i_row * BUDGET
    p_places += i_row * BUDGET
    gdc_sync(PDL)
    if known <= BUDGET:
        if i_part == 0:
            b_choice = tl.arange(0, BLOCK_BUDGET)
            m_choice = b_choice < known
            page = tl.load(p_page_row + b_choice // PAGE_BLOCKS, mask=m_choice, other=0)
            tl.store(p_blocks + b_choice, b_choice, mask=m_choice)
            tl.store(p_places + b_choice, page * PAGE_BLOCKS + b_choice % PAGE_BLOCKS, mask=m_choice)
        return
    o_row = i_row.to(tl.int64) * longest
    b_bin = tl.arange(0, BINS)
    histogram = tl.load(p_histogram + i_row * BINS + b_bin)
    for i in tl.static_range(1, COPIES):
        histogram += tl.load(p_histogram + (i * rows + i_row) * BINS + b_bin)
    reaching = known - tl.cumsum(histogram, axis=0) + histogram
    decides = tl.sum((reaching >= BUDGET).to(tl.int32), axis=0) - 1
    above = tl.sum(tl.where(b_bin > decides, histogram, 0), axis=0)
    p_chosen += i_row * BUDGET
    first = i_part * TILE
    while first < known:
        b_block = first + tl.arange(0, TILE)
        m_block = b_block < known
        bits = tl.load(p_scores + o_row + b_block, mask=m_block, other=0.0).to(tl.int32, bitcast=True)
        own = bin_of(bits)
        over = (m_block & (own > decides)).to(tl.int32)
        equal = (m_block & (own == decides)).to(tl.int32)
        both = tl.cumsum(over + (equal << 16), axis=0)
        total = tl.sum(over + (equal << 16), axis=0)
        if total > 0:
            before = tl.atomic_add(p_counts + i_row * 2, ((total & 0xFFFF) << 20) | (total >> 16), sem="relaxed")
            tl.store(p_chosen + (before >> 20) + (both & 0xFFFF) - 1, b_block, mask=over > 0)
            o_list = o_row + (before & 0xFFFFF) + (both >> 16) - 1
            tl.store(p_list_bits + o_list, bits, mask=equal > 0)
            tl.store(p_list_block + o_list, b_block, mask=equal > 0)
        first += tl.num_programs(0) * TILE
    tl.debug_barrier()
    done = tl.atomic_add(p_counts + i_row * 2 + 1, 1, sem="acq_rel", scope="gpu")
    if done == tl.num_programs(0) - 1:
        tl.debug_barrier()
        for i in tl.static_range(COPIES):
            tl.store(p_histogram + (i * rows + i_row) * BINS + b_bin, tl.zeros([BINS], dtype=tl.int32))
        tl.store(p_counts + i_row * 2 + tl.arange(0, 2), tl.zeros([2], dtype=tl.int32))
        count = at_row(b_bin, decides, histogram)
        inner = (decides > 0) & (decides < BINS - 1)
        lowest = tl.where(inner, (decides + BIN_BASE) << BIN_SHIFT, 0)
        settle(p_list_bits + o_row, p_list_block + o_row, count, above, BUDGET - above, inner, lowest, p_chosen, LIST)
        tl.debug_barrier()
        write_in_order(p_chosen, p_blocks, p_places, p_page_row, BUDGET, BLOCK_BUDGET, PAGE_BLOCKS, CHUNK)
