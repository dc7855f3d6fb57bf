"""Device code of block selection for a prompt chunk: scores, each row's exact threshold, lists of groups of rows.

A row's choice is kept as two numbers: the float32 pattern that its chosen scores reach (scores are not negative, so
patterns order as integers), and the block before which an equal score still counts.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202, SIM108

import triton
import triton.language as tl

from kernels._many import at_rows, load_place, product
from kernels.qsa._score import BIN_BASE, BIN_SHIFT, BINS, bin_of

ANYTHING = tl.constexpr(-(2**31))
FAR = tl.constexpr(0x7FFFFFFF)


@triton.jit(do_not_specialize=["first", "stop", "width"])
def score(
    p_query, p_keys, p_page_row, o_pages, p_scores, p_place, first, stop, width,
    HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    PAGE_BLOCKS: tl.constexpr, BUDGET: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Grid (tiles of blocks, tiles of rows): sum over heads of relu(q . k), for rows that have a choice to make."""
    slot, start, count = load_place(p_place)
    count = tl.minimum(count, stop)
    b_place = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    b_row = first + b_place
    live = b_row < count
    last = tl.minimum(first + tl.program_id(1) * ROWS + ROWS, count) - 1
    most = (start + last + 1) // BLOCK_TOKENS
    if (most <= BUDGET) | (tl.program_id(0) * TILE >= most) | (first + tl.program_id(1) * ROWS >= count):
        return
    b_block = tl.program_id(0) * TILE + tl.arange(0, TILE)
    m_block = b_block < most
    b_dim = tl.arange(0, BLOCK_DIM)
    m_dim = b_dim < DIM
    page = tl.load(p_page_row + slot * o_pages + b_block // PAGE_BLOCKS, mask=m_block, other=0)
    at = page.to(tl.int64) * PAGE_BLOCKS + b_block % PAGE_BLOCKS
    key = tl.load(p_keys + at_rows(at, DIM, b_dim), mask=m_block[:, None] & m_dim[None, :], other=0.0)
    if EXACT == 0:
        key = key.to(tl.float16)
    key = tl.trans(key)
    total = tl.zeros([ROWS, TILE], dtype=tl.float32)
    for head in tl.static_range(HEADS):
        p_head = p_query + at_rows(b_row, HEADS * DIM, head * DIM + b_dim)
        query = tl.load(p_head, mask=live[:, None] & m_dim[None, :], other=0.0)
        total += tl.maximum(product(query, key, EXACT), 0.0)
    # Also turns -0 and NaN into 0, whose pattern orders first.
    total = tl.where(total > 0.0, total, 0.0)
    tl.store(p_scores + at_rows(b_place, width, b_block), total, mask=live[:, None] & m_block[None, :])


@triton.jit
def reaching(p_bits, count, least, LIST: tl.constexpr):
    """Patterns in memory that are at least `least`."""
    found = count * 0
    at = count * 0
    while at < count:
        b_list = at + tl.arange(0, LIST)
        bits = tl.load(p_bits + b_list, mask=b_list < count, other=-1)
        found += tl.sum((bits >= least).to(tl.int32), axis=0)
        at += LIST
    return found


@triton.jit
def search(p_bits, count, need, lowest, bit, LIST: tl.constexpr):
    """(The largest pattern that `need` of the candidates reach, how many do); bit by bit, stops when just enough do."""
    b_list = tl.arange(0, LIST)
    bits = tl.load(p_bits + b_list, mask=b_list < count, other=-1)
    fits = count <= LIST
    least = lowest
    found = count
    while (bit >= 0) & (found != need):
        trial = least | (1 << bit)
        if fits:
            reached = tl.sum((bits >= trial).to(tl.int32), axis=0)
        else:
            reached = reaching(p_bits, count, trial, LIST)
        least = tl.where(reached >= need, trial, least)
        found = tl.where(reached >= need, reached, found)
        bit -= 1
    return least, found


@triton.jit
def tie_end(p_bits, known, least, BUDGET: tl.constexpr, LIST: tl.constexpr):
    """The block before which scores of pattern `least` fill the budget, lower blocks first."""
    room = BUDGET - reaching(p_bits, known, least + 1, LIST)
    end = known * 0
    at = known * 0
    while room > 0:
        b_block = at + tl.arange(0, LIST)
        equal = (tl.load(p_bits + b_block, mask=b_block < known, other=-1) == least).to(tl.int32)
        taken = (equal > 0) & (tl.cumsum(equal, axis=0) <= room)
        end = tl.maximum(end, tl.max(tl.where(taken, b_block + 1, 0), axis=0))
        room -= tl.sum(equal, axis=0)
        at += LIST
    return end


@triton.jit
def candidates(p_bits, p_list, known, BUDGET: tl.constexpr, LIST: tl.constexpr):
    """Patterns of the bin in which the budget ends, to the list: (how many, how many to choose, the bin)."""
    b_bin = tl.arange(0, BINS)
    histogram = tl.zeros([BINS], dtype=tl.int32)
    at = known * 0
    while at < known:
        b_block = at + tl.arange(0, LIST)
        m_block = b_block < known
        own = bin_of(tl.load(p_bits + b_block, mask=m_block, other=0))
        histogram += tl.histogram(own, BINS, mask=m_block)
        at += LIST
    reached = known - tl.cumsum(histogram, axis=0) + histogram
    decides = tl.sum((reached >= BUDGET).to(tl.int32), axis=0) - 1
    above = tl.sum(tl.where(b_bin > decides, histogram, 0), axis=0)
    written = known * 0
    at = known * 0
    while at < known:
        b_block = at + tl.arange(0, LIST)
        m_block = b_block < known
        bits = tl.load(p_bits + b_block, mask=m_block, other=0)
        taken = (m_block & (bin_of(bits) == decides)).to(tl.int32)
        tl.store(p_list + written + tl.cumsum(taken, axis=0) - 1, bits, mask=taken > 0)
        written += tl.sum(taken, axis=0)
        at += LIST
    return written, BUDGET - above, decides


@triton.jit(do_not_specialize=["first", "width"])
def decide(
    p_bits, p_list, p_least, p_end, p_place, first, width,
    BLOCK_TOKENS: tl.constexpr, BUDGET: tl.constexpr, LIST: tl.constexpr,
):  # fmt: skip
    """Grid (rows): the pattern and the block that bound a row's choice."""
    place = tl.program_id(0)
    _, start, count = load_place(p_place)
    known = (start + first + place + 1) // BLOCK_TOKENS
    if (known <= BUDGET) | (first + place >= count):
        tl.store(p_least + place, ANYTHING)
        tl.store(p_end + place, FAR)
        return
    o_row = place.to(tl.int64) * width
    p_bits += o_row
    if known <= LIST:
        least, found = search(p_bits, known, BUDGET, known * 0, known * 0 + 30, LIST)
        surplus = found - BUDGET
    else:
        count, need, decides = candidates(p_bits, p_list + o_row, known, BUDGET, LIST)
        tl.debug_barrier()
        bound = tl.where(decides > 0, (decides + BIN_BASE) << BIN_SHIFT, 0)
        inner = (decides > 0) & (decides < BINS - 1)
        bit = tl.where(inner, BIN_SHIFT - 1, 30)
        least, found = search(p_list + o_row, count, need, tl.where(inner, bound, 0), bit, LIST)
        # Outside its bin the search began at 0; what is below the bin is no candidate.
        least = tl.maximum(least, bound)
        surplus = found - need
    end = known * 0 + FAR
    if surplus > 0:
        end = tie_end(p_bits, known, least, BUDGET, LIST)
    tl.store(p_least + place, least)
    tl.store(p_end + place, end)


@triton.jit(do_not_specialize=["o_list", "first", "stop", "width"])
def list_blocks(
    p_bits, p_least, p_end, p_blocks, p_members, p_counts, o_list, p_place, first, stop, width,
    BLOCK_TOKENS: tl.constexpr, GROUP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Grid (groups): blocks that at least one row of the group chose, in rising order, and which rows did."""
    group = tl.program_id(0)
    _, start, count = load_place(p_place)
    rows = tl.minimum(GROUP, tl.minimum(count, stop) - first - group * GROUP)
    if rows <= 0:
        return
    most = (start + first + group * GROUP + rows) // BLOCK_TOKENS
    o_group = (first // GROUP + group).to(tl.int64) * o_list
    written = most * 0
    at = most * 0
    while at < most:
        b_block = at + tl.arange(0, TILE)
        members = tl.zeros([TILE], dtype=tl.int32)
        for i in tl.static_range(GROUP):
            place = group * GROUP + i
            known = tl.where(i < rows, (start + first + place + 1) // BLOCK_TOKENS, 0)
            m_block = b_block < known
            least = tl.load(p_least + place, mask=i < rows, other=0)
            end = tl.load(p_end + place, mask=i < rows, other=0)
            bits = tl.load(p_bits + place.to(tl.int64) * width + b_block, mask=m_block, other=0)
            chosen = m_block & ((bits > least) | ((bits == least) & (b_block < end)))
            members |= chosen.to(tl.int32) << i
        listed = (members != 0).to(tl.int32)
        o_out = o_group + written + tl.cumsum(listed, axis=0) - 1
        tl.store(p_blocks + o_out, b_block, mask=listed > 0)
        tl.store(p_members + o_out, members, mask=listed > 0)
        written += tl.sum(listed, axis=0)
        at += TILE
    tl.store(p_counts + first // GROUP + group, written)
