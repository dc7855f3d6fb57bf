"""Device code of the choice in decode: the exact best blocks from scores and the bins they were counted in.

The order of the choice depends on a row's scores alone: blocks above the deciding bin first, then those chosen from
it, each by rising block. Attention adds them in that order.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels.device import gdc_sync
from kernels.qsa._score import BIN_BASE, BIN_SHIFT, BINS, bin_of, chunk_tiles


@triton.jit
def place_blocks(block, page, at, mask, p_blocks, p_places, PAGE_BLOCKS: tl.constexpr):
    """Blocks to places `at` of the choice, as numbers and as places in the pool."""
    tl.store(p_blocks + at, block, mask=mask)
    tl.store(p_places + at, page * PAGE_BLOCKS + block % PAGE_BLOCKS, mask=mask)


@triton.jit
def count_reaching(p_bits, count, least, LIST: tl.constexpr):
    """Candidates in memory from `least` on."""
    found = count * 0
    first = count * 0
    while first < count:
        o_list = first + tl.arange(0, LIST)
        bits = tl.load(p_bits + o_list, mask=o_list < count, other=-1)
        found += tl.sum((bits >= least).to(tl.int32), axis=0)
        first += LIST
    return found


@triton.jit
def deciding_pattern(bits, p_bits, count, need, inner, lowest, fits, LIST: tl.constexpr):
    """(a pattern that at least `need` candidates reach, so high that none above it is reached by as many; how many
    candidates are above it). Two bits a step: three trials are counted at once. It may stop lower, where exactly
    `need` candidates reach it.
    """
    least = lowest
    found = count
    shift = tl.where(inner, BIN_SHIFT - 2, 29)
    while (shift > -2) & (found != need):
        step = 1 << tl.maximum(shift, 0)
        if fits:
            some = (bits >= least + step).to(tl.int32) + ((bits >= least + 2 * step).to(tl.int32) << 10)
            counts = tl.sum(some + ((bits >= least + 3 * step).to(tl.int32) << 20), axis=0)
            one, two, three = counts & 1023, (counts >> 10) & 1023, counts >> 20
        else:
            one = count_reaching(p_bits, count, least + step, LIST)
            two = count_reaching(p_bits, count, least + 2 * step, LIST)
            three = count_reaching(p_bits, count, least + 3 * step, LIST)
        steps = (one >= need).to(tl.int32) + (two >= need).to(tl.int32) + (three >= need).to(tl.int32)
        found = tl.where(steps == 3, three, tl.where(steps == 2, two, tl.where(steps == 1, one, found)))
        least += steps * step
        shift -= 2
    above = tl.sum((bits > least).to(tl.int32), axis=0)
    if fits == 0:
        above = count_reaching(p_bits, count, least + 1, LIST)
    return least, above


@triton.jit
def settle(p_bits, p_block, count, above, need, inner, lowest, p_blocks, p_places, p_page_row,
           PAGE_BLOCKS: tl.constexpr, LIST: tl.constexpr):  # fmt: skip
    """Chooses exactly `need` of the candidates of the deciding bin, which lie by rising block, from place `above` on.

    A list that fits is held in registers. Of candidates equal to the last one chosen, the first are taken.
    """
    o_list = tl.arange(0, LIST)
    bits = tl.load(p_bits + o_list, mask=o_list < count, other=-1)
    block = tl.load(p_block + o_list, mask=o_list < count, other=0)
    page = tl.load(p_page_row + block // PAGE_BLOCKS, mask=o_list < count, other=0)
    fits = count < LIST
    least, over = deciding_pattern(bits, p_bits, count, need, inner, lowest, fits, LIST)
    spare = need - over
    first = count * 0
    seen = count * 0
    while first < count:
        greater = (bits > least).to(tl.int32)
        equal = (bits == least).to(tl.int32)
        before = seen + tl.cumsum(greater + (equal << 16), axis=0) - greater - (equal << 16)
        equals = before >> 16
        take = (greater > 0) | ((equal > 0) & (equals < spare))
        at = above + (before & 0xFFFF) + tl.minimum(equals, spare)
        place_blocks(block, page, at, take, p_blocks, p_places, PAGE_BLOCKS)
        first += LIST
        if first < count:
            greaters = (seen & 0xFFFF) + tl.sum(greater, axis=0)
            seen = greaters + (tl.minimum((seen >> 16) + tl.sum(equal, axis=0), spare) << 16)
            m_list = first + o_list < count
            bits = tl.load(p_bits + first + o_list, mask=m_list, other=-1)
            block = tl.load(p_block + first + o_list, mask=m_list, other=0)
            page = tl.load(p_page_row + block // PAGE_BLOCKS, mask=m_list, other=0)


@triton.jit
def pick(
    p_scores, p_histogram, p_tickets, p_list_bits, p_list_block, p_blocks, p_places,
    p_slot, p_position, p_rows_used, p_pages, o_pages, longest,
    BLOCK_TOKENS: tl.constexpr, PAGE_BLOCKS: tl.constexpr, BUDGET: tl.constexpr, BLOCK_BUDGET: tl.constexpr,
    TILE: tl.constexpr, CHUNKS: tl.constexpr, STEP: tl.constexpr, LIST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (chunks, rows). Blocks above the deciding bin are chosen at once, those in it become candidates; the row's
    last program settles the candidates and clears what the next layer counts in.
    """
    i_chunk = tl.program_id(0)
    i_row = tl.program_id(1)
    live = i_row < tl.load(p_rows_used)
    slot = tl.load(p_slot + i_row).to(tl.int64)
    known = tl.where(live, (tl.load(p_position + i_row) + 1) // BLOCK_TOKENS, 0)
    p_page_row = p_pages + slot * o_pages
    p_blocks += i_row * BUDGET
    p_places += i_row * BUDGET
    share = chunk_tiles(known, TILE, CHUNKS) * TILE
    first = i_chunk * share
    end = tl.minimum(first + share, known)
    gdc_sync(PDL)
    if known <= BUDGET:
        if i_chunk == 0:
            b_choice = tl.arange(0, BLOCK_BUDGET)
            m_choice = b_choice < known
            page = tl.load(p_page_row + b_choice // PAGE_BLOCKS, mask=m_choice, other=0)
            place_blocks(b_choice, page, b_choice, m_choice, p_blocks, p_places, PAGE_BLOCKS)
        return
    if first >= end:
        return
    o_row = i_row.to(tl.int64) * longest
    p_list_bits += o_row
    p_list_block += o_row
    p_scores += o_row
    b_block = first + tl.arange(0, STEP)
    m_block = b_block < end
    value = tl.load(p_scores + b_block, mask=m_block, other=0.0)
    page = tl.load(p_page_row + b_block // PAGE_BLOCKS, mask=m_block, other=0)
    used = (known - 1) // share + 1
    b_bin = tl.arange(0, BINS)
    p_histogram += i_row * (CHUNKS * BINS) + b_bin
    histogram = tl.zeros([BINS], dtype=tl.int32)
    earlier = tl.zeros([BINS], dtype=tl.int32)
    for i in tl.static_range(CHUNKS):
        part = tl.load(p_histogram + i * BINS, mask=(b_bin >= 0) & (i < used), other=0)
        histogram += part
        earlier += tl.where(i < i_chunk, part, 0)
    reaching = known - tl.cumsum(histogram, axis=0) + histogram
    decides = tl.sum((reaching >= BUDGET).to(tl.int32), axis=0) - 1
    # Four numbers in one sum: above the deciding bin are fewer than 2^11 blocks, in it fewer than 2^20; so are those
    # of earlier chunks.
    over_bins = histogram.to(tl.int64) + (earlier.to(tl.int64) << 11)
    deciding = (histogram.to(tl.int64) << 22) + (earlier.to(tl.int64) << 42)
    counts = tl.sum(tl.where(b_bin > decides, over_bins, tl.where(b_bin == decides, deciding, 0)), axis=0)
    above = (counts & 0x7FF).to(tl.int32)
    written = ((counts >> 11) & 0x7FF).to(tl.int32)
    count = ((counts >> 22) & 0xFFFFF).to(tl.int32)
    listed = (counts >> 42).to(tl.int32)
    while first < end:
        bits = value.to(tl.int32, bitcast=True)
        own = bin_of(bits)
        over = (m_block & (own > decides)).to(tl.int32)
        equal = (m_block & (own == decides)).to(tl.int32)
        through = tl.cumsum(over + (equal << 16), axis=0)
        place_blocks(b_block, page, written + (through & 0xFFFF) - 1, over > 0, p_blocks, p_places, PAGE_BLOCKS)
        o_list = listed + (through >> 16) - 1
        tl.store(p_list_bits + o_list, bits, mask=equal > 0)
        tl.store(p_list_block + o_list, b_block, mask=equal > 0)
        first += STEP
        if first < end:
            total = tl.sum(over + (equal << 16), axis=0)
            written += total & 0xFFFF
            listed += total >> 16
            b_block = first + tl.arange(0, STEP)
            m_block = b_block < end
            value = tl.load(p_scores + b_block, mask=m_block, other=0.0)
            page = tl.load(p_page_row + b_block // PAGE_BLOCKS, mask=m_block, other=0)
    tl.debug_barrier()
    done = tl.atomic_add(p_tickets + i_row, 1, sem="acq_rel", scope="gpu")
    if done == used - 1:
        tl.debug_barrier()
        for i in tl.static_range(CHUNKS):
            tl.store(p_histogram + i * BINS, tl.zeros([BINS], dtype=tl.int32), mask=(b_bin >= 0) & (i < used))
        tl.store(p_tickets + i_row, 0)
        inner = (decides > 0) & (decides < BINS - 1)
        lowest = tl.where(inner, (decides + BIN_BASE) << BIN_SHIFT, 0)
        settle(
            p_list_bits, p_list_block, count, above, BUDGET - above, inner, lowest, p_blocks, p_places, p_page_row,
            PAGE_BLOCKS, LIST,
        )  # fmt: skip
