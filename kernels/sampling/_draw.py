"""Device code of the second pass over logits: candidates above the floor, sorted, filtered and drawn; or free draws."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels.device import gdc_sync
from kernels.sampling._noise import gumbel
from kernels.sampling._scan import FAR, KIND_FREE, KIND_TOP, NOTHING, NUMBERS, WHOLES, is_changed

LEAST_KEY = tl.constexpr(-0x80000000)


@triton.jit
def sort_key(value):
    """int32 that orders as the float32 value does, equal for both zeros; NaN is below everything."""
    value = tl.where(value == value, tl.where(value == 0.0, 0.0, value), NOTHING)
    bits = value.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def count_row(p_row, vocabulary, least, tie_end, BLOCK: tl.constexpr):
    """Tokens whose key is above `least`, or equal to it with an id before `tie_end`."""
    found = vocabulary * 0
    first = vocabulary * 0
    while first < vocabulary:
        token = first + tl.arange(0, BLOCK)
        m_token = token < vocabulary
        key = sort_key(tl.load(p_row + token, mask=m_token, other=NOTHING))
        found += tl.sum((m_token & ((key > least) | ((key == least) & (token < tie_end)))).to(tl.int32), axis=0)
        first += BLOCK
    return found


@triton.jit
def select_slowly(p_row, vocabulary, wanted, p_value, p_id, BLOCK: tl.constexpr):
    """The `wanted` largest, ties to the lower id, by passes over the whole row: for rows of very many equal logits."""
    least = tl.where(count_row(p_row, vocabulary, -1, FAR, BLOCK) >= wanted, 0, LEAST_KEY)
    bit = wanted * 0 + 30
    while bit >= 0:
        trial = least | (1 << bit)
        reached = count_row(p_row, vocabulary, trial, FAR, BLOCK)
        least = tl.where(reached >= wanted, trial, least)
        bit -= 1
    tie_end = wanted * 0
    bit = wanted * 0 + 30
    while bit >= 0:
        trial = tie_end | (1 << bit)
        reached = count_row(p_row, vocabulary, least, trial, BLOCK)
        tie_end = tl.where(reached < wanted, trial, tie_end)
        bit -= 1
    tie_end += 1
    first = vocabulary * 0
    written = vocabulary * 0
    while first < vocabulary:
        token = first + tl.arange(0, BLOCK)
        m_token = token < vocabulary
        value = tl.load(p_row + token, mask=m_token, other=NOTHING)
        key = sort_key(value)
        take = m_token & ((key > least) | ((key == least) & (token < tie_end)))
        place = written + tl.cumsum(take.to(tl.int32), axis=0) - 1
        tl.store(p_value + place, value, mask=take)
        tl.store(p_id + place, token, mask=take)
        written += tl.sum(take.to(tl.int32), axis=0)
        first += BLOCK


@triton.jit
def sort_best(p_value, p_id, count, wanted, p_best, p_best_id, LIST: tl.constexpr, CHUNK: tl.constexpr):
    """The `wanted` first of the candidates in falling order, ties by rising id, by counting who comes before.

    LIST candidates at a time: one shape for short and long lists, so that both are the code that is tested most.
    """
    begin = count * 0
    while begin < count:
        b_list = begin + tl.arange(0, LIST)
        m_list = b_list < count
        value = tl.load(p_value + b_list, mask=m_list, other=NOTHING)
        token = tl.load(p_id + b_list, mask=m_list, other=FAR)
        rank = tl.zeros([LIST], dtype=tl.int32)
        first = count * 0
        while first < count:
            o_other = first + tl.arange(0, CHUNK)
            m_other = o_other < count
            other = tl.load(p_value + o_other, mask=m_other, other=NOTHING)
            other_id = tl.load(p_id + o_other, mask=m_other, other=FAR)
            equal = (other[None, :] == value[:, None]) & (other_id[None, :] < token[:, None])
            ahead = m_other[None, :] & ((other[None, :] > value[:, None]) | equal)
            rank += tl.sum(ahead.to(tl.int32), axis=1)
            first += CHUNK
        m_best = m_list & (rank < wanted)
        tl.store(p_best + rank, value, mask=m_best)
        tl.store(p_best_id + rank, token, mask=m_best)
        begin += LIST


@triton.jit
def draw_top(p_best, p_best_id, count, seed, position, p_numbers, slot, TOP: tl.constexpr):
    """(id, probability) drawn from sorted candidates after top_p and min_p."""
    b_top = tl.arange(0, TOP)
    m_top = b_top < count
    value = tl.load(p_best + b_top, mask=m_top, other=NOTHING).to(tl.float64)
    token = tl.load(p_best_id + b_top, mask=m_top, other=0)
    temperature = tl.load(p_numbers + slot * NUMBERS)
    top_p = tl.load(p_numbers + slot * NUMBERS + 1)
    min_p = tl.load(p_numbers + slot * NUMBERS + 2)
    scaled = (value - tl.max(value, axis=0)) / temperature
    scaled = tl.where(m_top, scaled, NOTHING)
    weight = tl.exp(scaled)
    before = tl.cumsum(weight, axis=0) - weight
    keep = (before < top_p * tl.sum(weight, axis=0)) & (weight >= min_p) & (weight > 0.0)
    keep = keep | (b_top == 0)
    noisy = tl.where(keep, scaled + gumbel(seed, position, token), NOTHING)
    place = tl.min(tl.where(noisy == tl.max(noisy, axis=0), b_top, TOP - 1), axis=0)
    share = tl.sum(tl.where(b_top == place, weight, 0.0), axis=0) / tl.sum(tl.where(keep, weight, 0.0), axis=0)
    return tl.sum(tl.where(b_top == place, token, 0), axis=0), share.to(tl.float32)


@triton.jit
def collect(
    p_logits, o_logits, p_work, vocabulary, p_slot, p_position, p_wanted, p_numbers, p_wholes, p_seeds,
    p_tops, p_tickets, p_row_top, p_row_floor, p_row_log,
    p_list_count, p_list_value, p_list_id, p_best, p_best_id, p_free, p_free_id, p_free_mass,
    p_ids, p_shares, p_top_values, p_top_tokens, p_chosen, top_count,
    TILES: tl.constexpr, BLOCK_TILES: tl.constexpr, TILE: tl.constexpr, LIST: tl.constexpr, SHORT: tl.constexpr,
    TOP: tl.constexpr, BLOCK: tl.constexpr, RAW: tl.constexpr, KEEP_ALL: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid (tiles, rows). A row's last program draws. Greedy rows are done; wide rows are not served here."""
    i_tile = tl.program_id(0)
    i_row = tl.program_id(1)
    gdc_sync(PDL)
    if tl.load(p_wanted + i_row) == 0:
        return
    slot = tl.load(p_slot + i_row)
    position = tl.load(p_position + i_row)
    p_row = p_logits + i_row.to(tl.int64) * o_logits
    if RAW:
        kind = tl.load(p_wanted + i_row) * 0 + KIND_TOP
        wanted = tl.minimum(top_count, vocabulary)
    else:
        kind = tl.load(p_wholes + slot * WHOLES)
        wanted = tl.load(p_wholes + slot * WHOLES + 1)
        if is_changed(p_wholes, slot, position) | KEEP_ALL:
            p_row = p_work + i_row.to(tl.int64) * vocabulary
    if (kind != KIND_TOP) & (kind != KIND_FREE):
        return
    token = i_tile * TILE + tl.arange(0, TILE)
    m_token = token < vocabulary
    o_tile = i_row * TILES + i_tile
    p_value = p_list_value + i_row * LIST
    p_id = p_list_id + i_row * LIST
    if kind == KIND_TOP:
        floor = tl.load(p_row_floor + i_row)
        if tl.load(p_tops + o_tile) >= floor:
            value = tl.load(p_row + token, mask=m_token, other=NOTHING)
            take = (m_token & (value >= floor)).to(tl.int32)
            place = tl.atomic_add(p_list_count + i_row, tl.sum(take, axis=0), sem="relaxed")
            place += tl.cumsum(take, axis=0) - 1
            tl.store(p_value + place, value, mask=(take > 0) & (place < LIST))
            tl.store(p_id + place, token, mask=(take > 0) & (place < LIST))
    else:
        value = tl.load(p_row + token, mask=m_token, other=NOTHING)
        value = tl.where(value == value, value, NOTHING).to(tl.float64)
        base = tl.load(p_row_top + i_row)
        scaled = (value - tl.where(base == NOTHING, 0.0, base).to(tl.float64)) / tl.load(p_numbers + slot * NUMBERS)
        noisy = tl.where(m_token, scaled + gumbel(tl.load(p_seeds + slot), position, token), NOTHING)
        best = tl.max(noisy, axis=0)
        tl.store(p_free + o_tile, best)
        tl.store(p_free_id + o_tile, tl.min(tl.where(m_token & (noisy == best), token, FAR), axis=0))
        tl.store(p_free_mass + o_tile, tl.sum(tl.where(m_token, tl.exp(scaled), 0.0), axis=0))
    tl.debug_barrier()
    if tl.atomic_add(p_tickets + i_row * 2 + 1, 1, sem="acq_rel", scope="gpu") == TILES - 1:
        tl.debug_barrier()
        tl.store(p_tickets + i_row * 2 + 1, 0)
        if kind == KIND_FREE:
            b_tile = tl.arange(0, BLOCK_TILES)
            m_tile = b_tile < TILES
            bests = tl.load(p_free + i_row * TILES + b_tile, mask=m_tile, other=NOTHING)
            best_ids = tl.load(p_free_id + i_row * TILES + b_tile, mask=m_tile, other=FAR)
            mass = tl.sum(tl.load(p_free_mass + i_row * TILES + b_tile, mask=m_tile, other=0.0), axis=0)
            drawn = tl.min(tl.where(bests == tl.max(bests, axis=0), best_ids, FAR), axis=0)
            drawn = tl.minimum(drawn, vocabulary - 1)
            base = tl.load(p_row_top + i_row).to(tl.float64)
            own = tl.load(p_row + drawn).to(tl.float64)
            own_mass = tl.exp((own - base) / tl.load(p_numbers + slot * NUMBERS))
            tl.store(p_ids + i_row, drawn)
            tl.store(p_shares + i_row, (own_mass / mass).to(tl.float32))
        else:
            count = tl.load(p_list_count + i_row)
            # Every warp loads the count for itself; none may find it cleared.
            tl.debug_barrier()
            tl.store(p_list_count + i_row, 0)
            p_sorted = p_best + i_row * TOP
            p_sorted_id = p_best_id + i_row * TOP
            if count > LIST:
                select_slowly(p_row, vocabulary, wanted, p_value, p_id, BLOCK)
                tl.debug_barrier()
                count = wanted
            sort_best(p_value, p_id, count, wanted, p_sorted, p_sorted_id, SHORT, 32)
            tl.debug_barrier()
            if RAW:
                b_top = tl.arange(0, TOP)
                m_top = b_top < wanted
                log_mass = tl.load(p_row_log + i_row)
                best = tl.load(p_sorted + b_top, mask=m_top, other=NOTHING)
                o_out = i_row * top_count + b_top
                tl.store(p_top_values + o_out, best - log_mass, mask=m_top)
                tl.store(p_top_tokens + o_out, tl.load(p_sorted_id + b_top, mask=m_top, other=0), mask=m_top)
                tl.store(p_chosen + i_row, tl.load(p_row + tl.load(p_ids + i_row)) - log_mass)
            else:
                count = tl.minimum(count, wanted)
                drawn, share = draw_top(
                    p_sorted, p_sorted_id, count, tl.load(p_seeds + slot), position, p_numbers, slot, TOP
                )
                tl.store(p_ids + i_row, tl.minimum(tl.maximum(drawn, 0), vocabulary - 1))
                tl.store(p_shares + i_row, share)
