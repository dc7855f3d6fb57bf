"""Device code of the first pass over logits: changes by the request's rules, then top, mass and soundness of a row."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels.device import gdc_sync

NUMBERS = tl.constexpr(8)
WHOLES = tl.constexpr(8)
KIND_GREEDY = tl.constexpr(0)
KIND_TOP = tl.constexpr(1)
KIND_FREE = tl.constexpr(2)
BIASED = tl.constexpr(1)
COUNTED = tl.constexpr(2)
REPEATED = tl.constexpr(4)
NOTHING = tl.constexpr(float("-inf"))
FAR = tl.constexpr(0x7FFFFFFF)


@triton.jit
def is_changed(p_wholes, slot, position):
    """Whether a row's logits are not those of the model."""
    return (tl.load(p_wholes + slot * WHOLES + 2) > 0) | (position < tl.load(p_wholes + slot * WHOLES + 4))


@triton.jit
def change(
    value, token, mask, slot, position, vocabulary, p_numbers, p_wholes, p_stops, p_bias, p_generated, p_prompt,
    p_recent, recent_first, recent_count, STOPS: tl.constexpr,
):  # fmt: skip
    """Bias, repetition, frequency and presence, forbidden tokens, in this order and with the rounding of the host's."""
    flags = tl.load(p_wholes + slot * WHOLES + 2)
    o_token = slot.to(tl.int64) * vocabulary + token
    if (flags & BIASED) > 0:
        value += tl.load(p_bias + o_token, mask=mask, other=0.0)
    if (flags & (COUNTED | REPEATED)) > 0:
        count = tl.load(p_generated + o_token, mask=mask, other=0)
        i = recent_count * 0
        while i < recent_count:
            count += (token == tl.load(p_recent + recent_first + i)).to(tl.int32)
            i += 1
        if (flags & REPEATED) > 0:
            known = (count > 0) | (tl.load(p_prompt + o_token, mask=mask, other=0) > 0)
            factor = tl.load(p_numbers + slot * NUMBERS + 5).to(tl.float32) + value * 0.0
            value = tl.where(known, tl.where(value > 0, tl.div_rn(value, factor), value * factor), value)
        if (flags & COUNTED) > 0:
            frequency = tl.load(p_numbers + slot * NUMBERS + 4)
            taken = (count.to(tl.float64) * frequency + tl.load(p_numbers + slot * NUMBERS + 3)).to(tl.float32)
            value = tl.where(count > 0, value - taken, value)
    if position < tl.load(p_wholes + slot * WHOLES + 4):
        stops = tl.load(p_wholes + slot * WHOLES + 3)
        i = stops * 0
        while i < stops:
            value = tl.where(token == tl.load(p_stops + slot * STOPS + i), NOTHING, value)
            i += 1
    return value


@triton.jit
def scan(
    p_logits, o_logits, p_work, vocabulary, p_slot, p_position, p_wanted, p_recent, p_recent_first, p_recent_count,
    p_numbers, p_wholes, p_stops, p_bias, p_generated, p_prompt,
    p_tops, p_top_ids, p_masses, p_unsound, p_tickets, p_row_top, p_row_floor, p_row_log,
    p_ids, p_shares, p_bad, top_count,
    TILES: tl.constexpr, BLOCK_TILES: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr, STOPS: tl.constexpr,
    RAW: tl.constexpr, KEEP_ALL: tl.constexpr, CONFIDENCE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (tiles, rows). A row's last program puts its tiles together; a greedy row is done then.

    RAW looks at the model's own logits for log-probabilities. The floor is a value that at least as many tokens reach
    as are looked for: that many tiles have a top that high.
    """
    i_tile = tl.program_id(0)
    i_row = tl.program_id(1)
    gdc_sync(PDL)
    if tl.load(p_wanted + i_row) == 0:
        if (RAW == 0) & (i_tile == 0):
            tl.store(p_ids + i_row, 0)
            tl.store(p_shares + i_row, 0.0)
            tl.store(p_bad + i_row, 0)
        return
    slot = tl.load(p_slot + i_row)
    position = tl.load(p_position + i_row)
    token = i_tile * TILE + tl.arange(0, TILE)
    m_token = token < vocabulary
    o_row = i_row.to(tl.int64) * o_logits
    value = tl.load(p_logits + o_row + token, mask=m_token, other=0.0)
    unsound = tl.max((value - value != 0).to(tl.int32), axis=0)
    if RAW == 0:
        changed = is_changed(p_wholes, slot, position)
        if changed:
            value = change(
                value, token, m_token, slot, position, vocabulary, p_numbers, p_wholes, p_stops, p_bias, p_generated,
                p_prompt, p_recent, tl.load(p_recent_first + i_row), tl.load(p_recent_count + i_row), STOPS,
            )  # fmt: skip
        if KEEP_ALL | changed:
            tl.store(p_work + i_row.to(tl.int64) * vocabulary + token, value, mask=m_token)
    value = tl.where(m_token & (value == value), value, NOTHING)
    top = tl.max(value, axis=0)
    top_id = tl.min(tl.where(m_token & (value == top), token, FAR), axis=0)
    base = tl.where(top == NOTHING, 0.0, top)
    o_tile = i_row * TILES + i_tile
    tl.store(p_tops + o_tile, top)
    tl.store(p_top_ids + o_tile, top_id)
    tl.store(p_masses + o_tile, tl.sum(tl.exp(value - base), axis=0))
    tl.store(p_unsound + o_tile, unsound)
    tl.debug_barrier()
    if tl.atomic_add(p_tickets + i_row * 2, 1, sem="acq_rel", scope="gpu") == TILES - 1:
        tl.debug_barrier()
        b_tile = tl.arange(0, BLOCK_TILES)
        m_tile = b_tile < TILES
        tops = tl.load(p_tops + i_row * TILES + b_tile, mask=m_tile, other=NOTHING)
        top_ids = tl.load(p_top_ids + i_row * TILES + b_tile, mask=m_tile, other=FAR)
        masses = tl.load(p_masses + i_row * TILES + b_tile, mask=m_tile, other=0.0)
        unsounds = tl.load(p_unsound + i_row * TILES + b_tile, mask=m_tile, other=0)
        row_top = tl.max(tops, axis=0)
        row_base = tl.where(row_top == NOTHING, 0.0, row_top)
        total = tl.sum(masses * tl.exp(tops - row_base), axis=0)
        tl.store(p_row_top + i_row, row_top)
        tl.store(p_row_log + i_row, row_base + tl.log(total))
        if RAW:
            wanted = top_count
        else:
            wanted = tl.load(p_wholes + slot * WHOLES + 1)
            best = tl.min(tl.where(tops == row_top, top_ids, FAR), axis=0)
            tl.store(p_ids + i_row, tl.minimum(best, vocabulary - 1))
            tl.store(p_shares + i_row, 1.0 / total if CONFIDENCE else 1.0)
            bad = (tl.max(unsounds, axis=0) > 0) | (row_top == NOTHING)
            tl.store(p_bad + i_row, bad.to(tl.int32))
        higher = tl.zeros([BLOCK_TILES], dtype=tl.int32)
        for i in tl.static_range(0, BLOCK_TILES, CHUNK):
            o_other = i + tl.arange(0, CHUNK)
            other = tl.load(p_tops + i_row * TILES + o_other, mask=o_other < TILES, other=NOTHING)
            higher += tl.sum((other[None, :] > tops[:, None]).to(tl.int32), axis=1)
        floor = tl.min(tl.where(m_tile & (higher < wanted), tops, float("inf")), axis=0)
        tl.store(p_row_floor + i_row, tl.where(wanted > TILES, NOTHING, floor))
        tl.store(p_tickets + i_row * 2, 0)
