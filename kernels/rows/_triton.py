"""Device code of row tables: fill a window, judge its drafts, go one step along the draft chain."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels._tile import when
from kernels.device import gdc_sync


@triton.jit
def of_span(span, b_span, values):
    """values[span] for each row, of a vector over spans."""
    return tl.sum(tl.where(b_span[None, :] == span[:, None], values[None, :], 0), axis=1)


@triton.jit(do_not_specialize=["rows", "dummy"])
def fill(
    p_plan, p_length, p_next, p_drafts, p_draft_count, p_offset, p_ring,
    p_tokens, p_slot, p_position, p_span, p_rows_used,
    p_span_slot, p_span_first, p_span_count, p_span_start, p_span_certain, p_spans_used,
    p_axis_position, p_draw_position, p_wanted, p_recent_first, p_recent_count, p_following,
    dummy, rows, BLOCK: tl.constexpr, DRAFTS: tl.constexpr, RING: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One program: the plan's spans, packed without gaps, and their rows."""
    gdc_sync(PDL)
    b_span = tl.arange(0, BLOCK)
    used = tl.load(p_plan)
    m_used = b_span < used
    p_column = p_plan + 1 + b_span
    slot = tl.load(p_column, mask=m_used, other=dummy)
    wanted = tl.load(p_column + rows, mask=m_used, other=0)
    certain = tl.load(p_column + 2 * rows, mask=m_used, other=0)
    start = tl.load(p_column + 3 * rows, mask=m_used, other=0)
    following = tl.load(p_column + 4 * rows, mask=m_used, other=-1)
    source = tl.load(p_column + 5 * rows, mask=m_used, other=0)
    given = start >= 0
    drafts = tl.load(p_draft_count + slot, mask=m_used, other=0)
    count = tl.where(given, wanted, 1 + tl.minimum(wanted - 1, drafts))
    count = tl.where(m_used, count, 0)
    start = tl.where(given, start, tl.load(p_length + slot, mask=m_used, other=0))
    ends = tl.cumsum(count, axis=0)
    first = ends - count
    m_span = b_span < rows
    tl.store(p_span_slot + b_span, slot, mask=m_span)
    tl.store(p_span_first + b_span, tl.where(m_used, first, 0), mask=m_span)
    tl.store(p_span_count + b_span, count, mask=m_span)
    tl.store(p_span_start + b_span, start, mask=m_span)
    tl.store(p_span_certain + b_span, certain, mask=m_span)
    tl.store(p_following + b_span, following, mask=m_span)
    total = tl.sum(count, axis=0)
    tl.store(p_rows_used, total)
    tl.store(p_spans_used, used)

    b_row = tl.arange(0, BLOCK)
    m_row = b_row < rows
    live = b_row < total
    span = tl.sum((m_used[None, :] & (ends[None, :] <= b_row[:, None])).to(tl.int32), axis=1)
    span = tl.where(live, span, 0)
    inner = b_row - of_span(span, b_span, first)
    row_slot = tl.where(live, of_span(span, b_span, slot), dummy)
    row_certain = of_span(span, b_span, certain)
    row_given = of_span(span, b_span, given.to(tl.int32)) > 0
    position = tl.where(live, of_span(span, b_span, start) + inner, 0)
    o_token = 1 + 6 * rows + of_span(span, b_span, source) + inner
    token = tl.load(p_plan + o_token, mask=live & row_given, other=0)
    m_known = live & (row_given == 0)
    token += tl.load(p_next + row_slot, mask=m_known & (inner == 0), other=0)
    token += tl.load(p_drafts + row_slot * DRAFTS + inner - 1, mask=m_known & (inner > 0), other=0)
    tl.store(p_tokens + b_row, token, mask=m_row)
    tl.store(p_slot + b_row, row_slot, mask=m_row)
    tl.store(p_position + b_row, position, mask=m_row)
    tl.store(p_span + b_row, span, mask=m_row)
    tl.store(p_draw_position + b_row, position + 1, mask=m_row)
    draws = live & (of_span(span, b_span, following) < 0) & (inner >= row_certain - 1)
    tl.store(p_wanted + b_row, draws.to(tl.int32), mask=m_row)
    tl.store(p_recent_first + b_row, b_row - inner + row_certain, mask=m_row)
    tl.store(p_recent_count + b_row, tl.where(live, tl.maximum(inner - row_certain + 1, 0), 0), mask=m_row)
    axis = tl.where(live, position + tl.load(p_offset + row_slot, mask=live, other=0), 0)
    for i in tl.static_range(3):
        tl.store(p_axis_position + i * rows + b_row, axis, mask=m_row)
        tl.store(p_ring + (row_slot * RING + position % RING) * 3 + i, axis, mask=live)


@triton.jit(do_not_specialize=["chain_rows", "dummy"])
def accept(
    p_ids, p_tokens, p_span_slot, p_span_first, p_span_count, p_span_start, p_span_certain, p_spans_used, p_forced,
    p_length, p_next, p_draft_count, p_draft_limit, p_capacity, p_offset, p_generated,
    p_kept, p_next_token, p_last_row, p_following,
    p_chain_slot, p_chain_position, p_chain_start, p_chain_count, p_chain_certain, p_chain_span_slot,
    p_chain_used, p_chain_spans, p_chain_axis, p_chain_tokens,
    p_draw_position, p_draw_wanted, p_recent_first, p_recent_count, p_active,
    dummy, vocabulary, chain_rows, COUNTED: tl.constexpr, BLOCK: tl.constexpr,
    DRAFTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (spans): drafts stay as far as they equal what was drawn before them; then the chain's first row."""
    i_span = tl.program_id(0)
    gdc_sync(PDL)
    used = tl.load(p_spans_used)
    live = i_span < used
    slot = tl.load(p_span_slot + i_span)
    first = tl.load(p_span_first + i_span)
    count = tl.load(p_span_count + i_span)
    certain = tl.load(p_span_certain + i_span)
    forced = tl.load(p_forced + i_span)
    b_row = tl.arange(0, BLOCK)
    drawn_from = first + certain - 1
    drafts = count - certain
    m_draft = when(live, b_row < drafts)
    drawn = tl.load(p_ids + drawn_from + b_row, mask=when(live, b_row <= drafts), other=-1)
    draft = tl.load(p_tokens + drawn_from + 1 + b_row, mask=m_draft, other=-2)
    right = tl.min(tl.where(m_draft & (drawn == draft), BLOCK, b_row), axis=0)
    right = tl.where(forced < 0, right, 0)
    kept = tl.where(live, certain + right, 0)
    chosen = tl.sum(tl.where(b_row == right, drawn, 0), axis=0)
    token = tl.where(forced < 0, chosen, forced)
    token = tl.where(live, token, 0)
    tl.store(p_kept + i_span, kept)
    tl.store(p_next_token + i_span, token)
    tl.store(p_last_row + i_span, tl.where(live, first + kept - 1, 0))
    after = tl.load(p_tokens + first + 1 + b_row, mask=when(live, b_row + 1 < kept), other=0)
    after = tl.where(b_row + 1 == kept, token, after)
    tl.store(p_following + first + b_row, after, mask=when(live, b_row < count))
    length = tl.load(p_span_start + i_span) + kept
    if live:
        tl.store(p_length + slot, length)
        tl.store(p_next + slot, token)
        tl.store(p_draft_count + slot, 0)
    if COUNTED:
        m_new = when(live & (forced < 0), b_row <= right)
        tl.atomic_add(p_generated + slot.to(tl.int64) * vocabulary + drawn, 1, mask=m_new, sem="relaxed")

    if i_span < chain_rows:
        room = tl.load(p_capacity + slot) - length
        limit = tl.minimum(tl.load(p_draft_limit + slot), tl.minimum(room, DRAFTS))
        goes = live & (limit > 0)
        # The row of the first draft has run already: it is the last kept row, at length - 1.
        position = tl.where(live, length - 1, 0)
        tl.store(p_chain_slot + i_span, tl.where(live, slot, dummy))
        tl.store(p_chain_span_slot + i_span, tl.where(live, slot, dummy))
        tl.store(p_chain_position + i_span, position)
        tl.store(p_chain_start + i_span, position)
        tl.store(p_chain_count + i_span, live.to(tl.int32))
        tl.store(p_chain_certain + i_span, live.to(tl.int32))
        tl.store(p_chain_tokens + i_span, token)
        axis = position + tl.load(p_offset + slot)
        for i in tl.static_range(3):
            tl.store(p_chain_axis + i * chain_rows + i_span, axis)
        tl.store(p_draw_position + i_span, position + 2)
        tl.store(p_draw_wanted + i_span, goes.to(tl.int32))
        tl.store(p_recent_first + i_span, slot * DRAFTS)
        tl.store(p_recent_count + i_span, 0)
        tl.store(p_active + i_span, goes.to(tl.int32))
        if i_span == 0:
            tl.store(p_chain_used, used)
            tl.store(p_chain_spans, used)


@triton.jit(do_not_specialize=["step", "furthest", "chain_rows"])
def draft_step(
    p_ids, p_shares, p_slot, p_position, p_start, p_tokens, p_spans_used, p_axis,
    p_draw_position, p_wanted, p_recent_count, p_active,
    p_length, p_drafts, p_draft_count, p_draft_share, p_draft_limit, p_draft_least, p_capacity,
    step, furthest, chain_rows, DRAFTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (chain rows): takes draft number `step` if it is likely enough, and moves the row one position on."""
    i_row = tl.program_id(0)
    gdc_sync(PDL)
    slot = tl.load(p_slot + i_row)
    token = tl.load(p_ids + i_row)
    share = tl.load(p_shares + i_row)
    room = tl.load(p_capacity + slot) - tl.load(p_length + slot)
    limit = tl.minimum(tl.load(p_draft_limit + slot), tl.minimum(room, DRAFTS))
    taken = (tl.load(p_active + i_row) > 0) & (step < limit) & (share >= tl.load(p_draft_least + slot))
    if taken:
        tl.store(p_drafts + slot * DRAFTS + step, token)
        tl.store(p_draft_share + slot * DRAFTS + step, share)
        tl.store(p_draft_count + slot, step + 1)
    goes = taken & (step + 1 < limit)
    live = i_row < tl.load(p_spans_used)
    position = tl.load(p_position + i_row)
    forth = tl.where(live & (position + 1 < furthest), 1, 0)
    tl.store(p_active + i_row, goes.to(tl.int32))
    tl.store(p_wanted + i_row, goes.to(tl.int32))
    tl.store(p_tokens + i_row, tl.where(taken, token, 0))
    tl.store(p_position + i_row, position + forth)
    tl.store(p_start + i_row, position + forth)
    tl.store(p_draw_position + i_row, position + forth + 2)
    tl.store(p_recent_count + i_row, step + 1)
    for i in tl.static_range(3):
        p_own = p_axis + i * chain_rows + i_row
        tl.store(p_own, tl.load(p_own) + forth)
