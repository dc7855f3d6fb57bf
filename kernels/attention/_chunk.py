"""Device code of prompt attention: keys and values in order, then groups of rows against all or against chosen blocks.

A program takes GROUP consecutive rows and the query heads of one KV head: (row, head) pairs are the rows of its
tiles, so that every key is read once for all of them.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels._many import at_rows, load_place, narrow, product
from kernels._tile import INTERPRETED

HIDDEN = tl.constexpr(-1e30)
LOWEST = tl.constexpr(-1e20)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["first_head", "reach"])
def line_up(
    p_keys, o_keys, p_values, o_values, p_key_scales, o_key_scales, p_value_scales, o_value_scales,
    p_pages, o_pages, p_key_line, p_value_line, p_place, first_head, reach,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr, PAGE_TOKENS: tl.constexpr, ROWS: tl.constexpr,
    SCALED: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of tokens, heads): keys and values of a text out of their pages, one after the other."""
    i_head = tl.program_id(1)
    slot, start, count = load_place(p_place)
    b_token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = b_token < start + count
    b_dim = tl.arange(0, BLOCK)
    mask = live[:, None] & (b_dim < DIM)[None, :]
    page = tl.load(p_pages + slot * o_pages + b_token // PAGE_TOKENS, mask=live, other=0).to(tl.int64)
    at = (page * KV_HEADS + first_head + i_head) * PAGE_TOKENS + b_token % PAGE_TOKENS
    key = tl.load(p_keys + o_keys + at_rows(at, DIM, b_dim), mask=mask, other=0.0).to(tl.float32)
    value = tl.load(p_values + o_values + at_rows(at, DIM, b_dim), mask=mask, other=0.0).to(tl.float32)
    if SCALED:
        key = key * tl.load(p_key_scales + o_key_scales + at, mask=live, other=0.0)[:, None]
        value = value * tl.load(p_value_scales + o_value_scales + at, mask=live, other=0.0)[:, None]
    o_line = at_rows(i_head.to(tl.int64) * reach + b_token, DIM, b_dim)
    tl.store(p_key_line + o_line, narrow(key, EXACT), mask=mask)
    tl.store(p_value_line + o_line, narrow(value, EXACT), mask=mask)


@triton.jit
def attend_tokens(
    token, m_token, visible, query, highest, mass, sums, p_keys, p_values, scale,
    DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, ALL: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """A tile of tokens into the running softmax; `visible` [pairs, tokens] matters unless ALL."""
    b_dim = tl.arange(0, BLOCK_DIM)
    o_tile = token[:, None] * DIM + b_dim[None, :]
    if ALL & (DIM == BLOCK_DIM):
        key = tl.load(p_keys + o_tile)
        value = tl.load(p_values + o_tile)
    else:
        m_tile = m_token[:, None] & (b_dim < DIM)[None, :]
        key = tl.load(p_keys + o_tile, mask=m_tile, other=0.0)
        value = tl.load(p_values + o_tile, mask=m_tile, other=0.0)
    score = product(query, tl.trans(key), EXACT) * scale
    if ALL == 0:
        score = tl.where(visible, score, HIDDEN)
    top = tl.maximum(highest, tl.max(score, axis=1))
    share = tl.exp2(score - top[:, None])
    fade = tl.exp2(highest - top)
    mass = mass * fade + tl.sum(share, axis=1)
    share = share if EXACT else share.to(tl.float16)
    sums = sums * fade[:, None] + product(share, value, EXACT)
    return top, mass, sums


@triton.jit
def attend_span(
    first, end, begins, position, query, highest, mass, sums, p_keys, p_values, scale,
    DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, TILE: tl.constexpr, ALL: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Tokens first .. first + TILE, those before `end`; a pair sees them from `begins` to its own position."""
    b_token = first + tl.arange(0, TILE)
    visible = (b_token[None, :] >= begins[:, None]) & (b_token[None, :] <= position[:, None])
    return attend_tokens(
        b_token, b_token < end, visible, query, highest, mass, sums, p_keys, p_values, scale,
        DIM, BLOCK_DIM, ALL, EXACT,
    )  # fmt: skip


@triton.jit
def attend_listed(
    first, end, member, query, highest, mass, sums, p_keys, p_values, p_blocks, p_members, scale,
    DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr, TILE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """TILE tokens of the group's list of blocks; a pair sees a block whose members include its row."""
    b_entry = first + tl.arange(0, TILE) // BLOCK_TOKENS
    m_token = b_entry < end
    block = tl.load(p_blocks + b_entry, mask=m_token, other=0)
    members = tl.load(p_members + b_entry, mask=m_token, other=0)
    token = block * BLOCK_TOKENS + tl.arange(0, TILE) % BLOCK_TOKENS
    visible = (members[None, :] & (1 << member)[:, None]) != 0
    return attend_tokens(
        token, m_token, visible, query, highest, mass, sums, p_keys, p_values, scale, DIM, BLOCK_DIM, False, EXACT
    )


@triton.jit
def attend_whole(
    whole, position, query, highest, mass, sums, p_keys, p_values, scale,
    DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, TILE: tl.constexpr, EXACT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """All tokens before `whole`, in whole tiles that every pair sees."""
    if INTERPRETED:
        at = whole * 0
        while at < whole:
            highest, mass, sums = attend_span(
                at, whole, position, position, query, highest, mass, sums, p_keys, p_values, scale,
                DIM, BLOCK_DIM, TILE, True, EXACT,
            )  # fmt: skip
            at += TILE
    else:
        for at_tile in tl.range(0, whole, TILE, num_stages=STAGES):
            highest, mass, sums = attend_span(
                at_tile, whole, position, position, query, highest, mass, sums, p_keys, p_values, scale,
                DIM, BLOCK_DIM, TILE, True, EXACT,
            )  # fmt: skip
    return highest, mass, sums


@triton.jit
def attend_list(
    listed, member, query, highest, mass, sums, p_keys, p_values, p_blocks, p_members, scale,
    DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr, TILE: tl.constexpr,
    EXACT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """All `listed` blocks of the group."""
    if INTERPRETED:
        at = listed * 0
        while at < listed:
            highest, mass, sums = attend_listed(
                at, listed, member, query, highest, mass, sums, p_keys, p_values, p_blocks, p_members, scale,
                DIM, BLOCK_DIM, BLOCK_TOKENS, TILE, EXACT,
            )  # fmt: skip
            at += TILE // BLOCK_TOKENS
    else:
        for at_entry in tl.range(0, listed, TILE // BLOCK_TOKENS, num_stages=STAGES):
            highest, mass, sums = attend_listed(
                at_entry, listed, member, query, highest, mass, sums, p_keys, p_values, p_blocks, p_members, scale,
                DIM, BLOCK_DIM, BLOCK_TOKENS, TILE, EXACT,
            )  # fmt: skip
    return highest, mass, sums


@triton.jit(do_not_specialize=["o_list", "first_head", "reach"])
def attend(
    p_query, p_gate, o_gate_row, o_gate_head, p_keys, p_values, p_blocks, p_members, p_counts, o_list, p_out,
    p_place, first_head, reach, scale,
    HEADS: tl.constexpr, SHARED: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, GROUP: tl.constexpr, PAIRS: tl.constexpr, TILE: tl.constexpr, DENSE: tl.constexpr,
    EXACT: tl.constexpr, OUT_EXACT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid (KV heads, groups of rows), the last group first because it has most to do."""
    i_head = tl.program_id(0)
    group = tl.num_programs(1) - 1 - tl.program_id(1)
    _, start, count = load_place(p_place)
    if group * GROUP >= count:
        return
    b_pair = tl.arange(0, PAIRS)
    member = b_pair // SHARED
    row = group * GROUP + member
    live = (member < GROUP) & (row < count)
    position = start + tl.where(live, row, group * GROUP)
    b_dim = tl.arange(0, BLOCK_DIM)
    m_pair = live[:, None] & (b_dim < DIM)[None, :]
    query_head = (first_head + i_head) * SHARED + b_pair % SHARED
    o_pair = row.to(tl.int64) * HEADS + query_head
    query = tl.load(p_query + at_rows(o_pair, DIM, b_dim), mask=m_pair, other=0.0)
    highest = tl.full([PAIRS], LOWEST, dtype=tl.float32)
    mass = tl.zeros([PAIRS], dtype=tl.float32)
    sums = tl.zeros([PAIRS, BLOCK_DIM], dtype=tl.float32)
    p_keys += i_head.to(tl.int64) * reach * DIM
    p_values += i_head.to(tl.int64) * reach * DIM
    scale = scale * LOG2_E
    first = start + group * GROUP
    end = start + tl.minimum(group * GROUP + GROUP, count)
    if DENSE:
        at = (first + 1) // TILE * TILE
        begins = position * 0
        highest, mass, sums = attend_whole(
            at, position, query, highest, mass, sums, p_keys, p_values, scale, DIM, BLOCK_DIM, TILE, EXACT, STAGES
        )
    else:
        at = (first + 1) // BLOCK_TOKENS * BLOCK_TOKENS
        begins = (position + 1) // BLOCK_TOKENS * BLOCK_TOKENS
        o_group = group.to(tl.int64) * o_list
        highest, mass, sums = attend_list(
            tl.load(p_counts + group), member, query, highest, mass, sums, p_keys, p_values, p_blocks + o_group,
            p_members + o_group, scale, DIM, BLOCK_DIM, BLOCK_TOKENS, TILE, EXACT, STAGES,
        )  # fmt: skip
    while at < end:
        highest, mass, sums = attend_span(
            at, end, begins, position, query, highest, mass, sums, p_keys, p_values, scale,
            DIM, BLOCK_DIM, TILE, False, EXACT,
        )  # fmt: skip
        at += TILE
    o_gate = row.to(tl.int64) * o_gate_row + query_head * o_gate_head
    gate = tl.load(p_gate + o_gate[:, None] + b_dim[None, :], mask=m_pair, other=0.0).to(tl.float32)
    out = sums / mass[:, None] / (1.0 + tl.exp(-gate))
    tl.store(p_out + at_rows(o_pair, DIM, b_dim), narrow(out, OUT_EXACT), mask=m_pair)
