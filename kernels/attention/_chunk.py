"""Device code of prompt attention: groups of rows against all tokens, or against the blocks that their rows chose.

A program takes GROUP consecutive rows and the query heads of one KV head: (row, head) pairs are the rows of its
tiles, so that every key is read once for all of them.
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202, RET505

import triton
import triton.language as tl

from kernels._many import at_rows, narrow, product
from kernels._tile import INTERPRETED

HIDDEN = tl.constexpr(-1e30)
LOWEST = tl.constexpr(-1e20)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def tokens_at(token, mask, p_page_row, head, o_head, KV_HEADS: tl.constexpr, PAGE_TOKENS: tl.constexpr,
              LINEAR: tl.constexpr):  # fmt: skip
    """Places of tokens of one KV head: in pages, or one after the other."""
    if LINEAR:
        return head.to(tl.int64) * o_head + token
    else:
        page = tl.load(p_page_row + token // PAGE_TOKENS, mask=mask, other=0).to(tl.int64)
        return (page * KV_HEADS + head) * PAGE_TOKENS + token % PAGE_TOKENS


@triton.jit
def attend_tokens(
    at, m_token, visible, query, highest, mass, sums, p_keys, p_values, p_key_scales, p_value_scales, scale,
    DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, KIND: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """A tile of tokens into the running softmax; `visible` [pairs, tokens] matters unless ALL."""
    EXACT: tl.constexpr = KIND == 0
    b_dim = tl.arange(0, BLOCK_DIM)
    o_tile = at_rows(at, DIM, b_dim)
    if ALL & (DIM == BLOCK_DIM):
        key = tl.load(p_keys + o_tile)
        value = tl.load(p_values + o_tile)
    else:
        m_tile = m_token[:, None] & (b_dim < DIM)[None, :]
        key = tl.load(p_keys + o_tile, mask=m_tile, other=0.0)
        value = tl.load(p_values + o_tile, mask=m_tile, other=0.0)
    if EXACT == 0:
        key = key.to(tl.float16)
        value = value.to(tl.float16)
    score = product(query, tl.trans(key), EXACT) * scale
    if KIND == 2:
        score = score * tl.load(p_key_scales + at, mask=m_token, other=0.0)[None, :]
    if ALL == 0:
        score = tl.where(visible, score, HIDDEN)
    top = tl.maximum(highest, tl.max(score, axis=1))
    share = tl.exp2(score - top[:, None])
    fade = tl.exp2(highest - top)
    mass = mass * fade + tl.sum(share, axis=1)
    if KIND == 2:
        share = share * tl.load(p_value_scales + at, mask=m_token, other=0.0)[None, :]
    sums = sums * fade[:, None] + product(narrow(share, EXACT), value, EXACT)
    return top, mass, sums


@triton.jit
def attend_span(
    first, end, begins, position, query, highest, mass, sums, p_keys, p_values, p_key_scales, p_value_scales,
    p_page_row, head, o_head, scale,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, PAGE_TOKENS: tl.constexpr,
    TILE: tl.constexpr, KIND: tl.constexpr, LINEAR: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """Tokens first .. first + TILE, those before `end`; a pair sees them from `begins` to its own position."""
    b_token = first + tl.arange(0, TILE)
    m_token = b_token < end
    at = tokens_at(b_token, m_token, p_page_row, head, o_head, KV_HEADS, PAGE_TOKENS, LINEAR)
    visible = (b_token[None, :] >= begins[:, None]) & (b_token[None, :] <= position[:, None])
    return attend_tokens(
        at, m_token, visible, query, highest, mass, sums, p_keys, p_values, p_key_scales, p_value_scales, scale,
        DIM, BLOCK_DIM, KIND, ALL,
    )  # fmt: skip


@triton.jit
def attend_listed(
    first, end, b_member, query, highest, mass, sums, p_keys, p_values, p_key_scales, p_value_scales, p_page_row,
    p_blocks, p_members, head, o_head, scale,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, PAGE_TOKENS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, TILE: tl.constexpr, KIND: tl.constexpr, LINEAR: tl.constexpr,
):  # fmt: skip
    """TILE tokens of the group's list of blocks; a pair sees a block whose members include its row."""
    b_entry = first + tl.arange(0, TILE) // BLOCK_TOKENS
    m_token = b_entry < end
    block = tl.load(p_blocks + b_entry, mask=m_token, other=0)
    members = tl.load(p_members + b_entry, mask=m_token, other=0)
    token = block * BLOCK_TOKENS + tl.arange(0, TILE) % BLOCK_TOKENS
    at = tokens_at(token, m_token, p_page_row, head, o_head, KV_HEADS, PAGE_TOKENS, LINEAR)
    visible = (members[None, :] & (1 << b_member)[:, None]) != 0
    return attend_tokens(
        at, m_token, visible, query, highest, mass, sums, p_keys, p_values, p_key_scales, p_value_scales, scale,
        DIM, BLOCK_DIM, KIND, False,
    )  # fmt: skip


@triton.jit(do_not_specialize=["slot", "start", "count", "o_head"])
def attend(
    p_query, p_gate, o_gate_row, o_gate_head,
    p_keys, o_keys, p_values, o_values, p_key_scales, o_key_scales, p_value_scales, o_value_scales, o_head,
    p_pages, o_pages, p_blocks, p_members, p_counts, o_list, p_out, slot, start, count, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr,
    PAGE_TOKENS: tl.constexpr, BLOCK_TOKENS: tl.constexpr, GROUP: tl.constexpr, PAIRS: tl.constexpr,
    TILE: tl.constexpr, DENSE: tl.constexpr, KIND: tl.constexpr, LINEAR: tl.constexpr, EXACT: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Grid (KV heads, groups of rows), the last group first because it has most to do."""
    SHARED: tl.constexpr = HEADS // KV_HEADS
    head = tl.program_id(0)
    group = tl.num_programs(1) - 1 - tl.program_id(1)
    b_pair = tl.arange(0, PAIRS)
    b_member = b_pair // SHARED
    row = group * GROUP + b_member
    live = (b_member < GROUP) & (row < count)
    position = start + tl.where(live, row, group * GROUP)
    b_dim = tl.arange(0, BLOCK_DIM)
    m_pair = live[:, None] & (b_dim < DIM)[None, :]
    query_head = head * SHARED + b_pair % SHARED
    o_pair = row.to(tl.int64) * HEADS + query_head
    query = tl.load(p_query + at_rows(o_pair, DIM, b_dim), mask=m_pair, other=0.0)
    highest = tl.full([PAIRS], LOWEST, dtype=tl.float32)
    mass = tl.zeros([PAIRS], dtype=tl.float32)
    sums = tl.zeros([PAIRS, BLOCK_DIM], dtype=tl.float32)
    p_keys += o_keys
    p_values += o_values
    p_key_scales += o_key_scales
    p_value_scales += o_value_scales
    p_page_row = p_pages + slot.to(tl.int64) * o_pages
    scale = scale * LOG2_E
    first = start + group * GROUP
    end = start + tl.minimum(group * GROUP + GROUP, count)
    if DENSE:
        # Whole tiles that every row of the group sees come without a mask.
        whole = (first + 1) // TILE * TILE
        begins = position * 0
        if INTERPRETED:
            at = whole * 0
            while at < whole:
                highest, mass, sums = attend_span(
                    at, end, begins, position, query, highest, mass, sums, p_keys, p_values, p_key_scales,
                    p_value_scales, p_page_row, head, o_head, scale,
                    KV_HEADS, DIM, BLOCK_DIM, PAGE_TOKENS, TILE, KIND, LINEAR, True,
                )  # fmt: skip
                at += TILE
        else:
            for at_tile in tl.range(0, whole, TILE, num_stages=STAGES):
                highest, mass, sums = attend_span(
                    at_tile, end, begins, position, query, highest, mass, sums, p_keys, p_values, p_key_scales,
                    p_value_scales, p_page_row, head, o_head, scale,
                    KV_HEADS, DIM, BLOCK_DIM, PAGE_TOKENS, TILE, KIND, LINEAR, True,
                )  # fmt: skip
        at = whole
    else:
        listed = tl.load(p_counts + group)
        p_blocks += group.to(tl.int64) * o_list
        p_members += group.to(tl.int64) * o_list
        begins = (position + 1) // BLOCK_TOKENS * BLOCK_TOKENS
        if INTERPRETED:
            at = listed * 0
            while at < listed:
                highest, mass, sums = attend_listed(
                    at, listed, b_member, query, highest, mass, sums, p_keys, p_values, p_key_scales, p_value_scales,
                    p_page_row, p_blocks, p_members, head, o_head, scale,
                    KV_HEADS, DIM, BLOCK_DIM, PAGE_TOKENS, BLOCK_TOKENS, TILE, KIND, LINEAR,
                )  # fmt: skip
                at += TILE // BLOCK_TOKENS
        else:
            for at_entry in tl.range(0, listed, TILE // BLOCK_TOKENS, num_stages=STAGES):
                highest, mass, sums = attend_listed(
                    at_entry, listed, b_member, query, highest, mass, sums, p_keys, p_values, p_key_scales,
                    p_value_scales, p_page_row, p_blocks, p_members, head, o_head, scale,
                    KV_HEADS, DIM, BLOCK_DIM, PAGE_TOKENS, BLOCK_TOKENS, TILE, KIND, LINEAR,
                )  # fmt: skip
        at = (first + 1) // BLOCK_TOKENS * BLOCK_TOKENS
    while at < end:
        highest, mass, sums = attend_span(
            at, end, begins, position, query, highest, mass, sums, p_keys, p_values, p_key_scales, p_value_scales,
            p_page_row, head, o_head, scale,
            KV_HEADS, DIM, BLOCK_DIM, PAGE_TOKENS, TILE, KIND, LINEAR, False,
        )  # fmt: skip
        at += TILE
    o_gate = row.to(tl.int64) * o_gate_row + query_head * o_gate_head
    gate = tl.load(p_gate + o_gate[:, None] + b_dim[None, :], mask=m_pair, other=0.0).to(tl.float32)
    out = sums / mass[:, None] / (1.0 + tl.exp(-gate))
    tl.store(p_out + at_rows(o_pair, DIM, b_dim), narrow(out, EXACT), mask=m_pair)
