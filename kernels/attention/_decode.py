"""Device code of decode attention: online softmax over one split of a row's tokens, then the splits put together."""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from kernels._terms import sum_terms
from kernels._tile import INTERPRETED, tile_dot, when
from kernels.device import gdc_sync, store_operand

LOWEST = tl.constexpr(-1e30)


@triton.jit
def split_tokens(
    position,
    SPLITS: tl.constexpr, TILE: tl.constexpr, STEPS: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BUDGET: tl.constexpr,
    DENSE: tl.constexpr,
):  # fmt: skip
    """(tokens that the row sees, tokens of one split): a row's own position decides, nothing else in the window."""
    if DENSE:
        seen = position + 1
        share = tl.cdiv(tl.cdiv(seen, SPLITS), TILE) * TILE
    else:
        complete = (position + 1) // BLOCK_TOKENS
        seen = tl.minimum(complete, BUDGET) * BLOCK_TOKENS + (position + 1) % BLOCK_TOKENS
        share = seen * 0 + STEPS * TILE
    return seen, share


@triton.jit
def token_places(
    b_token, m_token, p_pages, p_places, page_row, i_row, position, head,
    KV_HEADS: tl.constexpr, PAGE_TOKENS: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BUDGET: tl.constexpr,
    DENSE: tl.constexpr,
):  # fmt: skip
    """Places in the pool of the row's b_token-th visible tokens: all tokens, or chosen blocks and then the tail."""
    if DENSE:
        page = tl.load(p_pages + page_row + b_token // PAGE_TOKENS, mask=m_token, other=0).to(tl.int64)
        inner = b_token % PAGE_TOKENS
    else:
        PAGE_BLOCKS: tl.constexpr = PAGE_TOKENS // BLOCK_TOKENS
        complete = (position + 1) // BLOCK_TOKENS
        chosen = tl.minimum(complete, BUDGET)
        block = b_token // BLOCK_TOKENS
        place = tl.load(p_places + i_row * BUDGET + block, mask=m_token & (block < chosen), other=0)
        tail = tl.load(p_pages + page_row + complete // PAGE_BLOCKS, mask=(position + 1) % BLOCK_TOKENS > 0, other=0)
        place = tl.where(block < chosen, place, tail * PAGE_BLOCKS + complete % PAGE_BLOCKS)
        page = (place // PAGE_BLOCKS).to(tl.int64)
        inner = place % PAGE_BLOCKS * BLOCK_TOKENS + b_token % BLOCK_TOKENS
    return (page * KV_HEADS + head) * PAGE_TOKENS + inner


@triton.jit
def in_halves(x):
    """Two bf16 whose sum has twice their bits of `x`."""
    most = x.to(tl.bfloat16)
    return most, (x - most.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def attend_tile(
    first, end, query, rest, highest, mass, sums,
    p_keys, p_values, p_key_scales, p_value_scales, p_pages, p_places, page_row, i_row, position, head, scale,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, PAGE_TOKENS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, BUDGET: tl.constexpr, TILE: tl.constexpr, DENSE: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Tokens first .. first + TILE of a row, those before `end`, into the running softmax.

    bf16 is multiplied as it lies: what a bf16 query and share round off follows as a second product.
    """
    b_token = first + tl.arange(0, TILE)
    b_dim = tl.arange(0, BLOCK_DIM)
    m_token = b_token < end
    at = token_places(
        b_token, m_token, p_pages, p_places, page_row, i_row, position, head,
        KV_HEADS, PAGE_TOKENS, BLOCK_TOKENS, BUDGET, DENSE,
    )  # fmt: skip
    o_tile = at[:, None] * DIM + b_dim[None, :]
    m_tile = m_token[:, None] & (b_dim < DIM)[None, :]
    key = tl.load(p_keys + o_tile, mask=m_tile, other=0.0)
    value = tl.load(p_values + o_tile, mask=m_tile, other=0.0)
    if KIND == 2:
        key = key.to(tl.float16)
        value = value.to(tl.float16)
    score = tile_dot(query, tl.trans(key), KIND == 0)
    if KIND == 1:
        score += tile_dot(rest, tl.trans(key), False)
    score = score * scale
    if KIND == 2:
        score = score * tl.load(p_key_scales + at, mask=m_token, other=0.0)[None, :]
    score = tl.where(m_token[None, :], score, LOWEST)
    top = tl.maximum(highest, tl.max(score, axis=1))
    share = tl.where(m_token[None, :], tl.exp(score - top[:, None]), 0.0)
    fade = tl.exp(highest - top)
    mass = mass * fade + tl.sum(share, axis=1)
    if KIND == 2:
        share = share * tl.load(p_value_scales + at, mask=m_token, other=0.0)[None, :]
    if KIND == 0:
        added = tile_dot(share, value, True)
    elif KIND == 1:
        most, little = in_halves(share)
        added = tile_dot(most, value, False) + tile_dot(little, value, False)
    else:
        added = tile_dot(share.to(tl.float16), value, False)
    return top, mass, sums * fade[:, None] + added


@triton.jit
def attend_split(
    p_query, p_keys, o_keys, p_values, o_values, p_key_scales, o_key_scales, p_value_scales, o_value_scales,
    p_slot, p_position, p_rows_used, p_pages, o_pages, p_places, p_sums, p_stats, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, BLOCK_HEADS: tl.constexpr, DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr, PAGE_TOKENS: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BUDGET: tl.constexpr,
    SPLITS: tl.constexpr, STEPS: tl.constexpr, TILE: tl.constexpr, DENSE: tl.constexpr, KIND: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (rows, KV heads, splits): sums [rows, heads, splits, dim] and (highest, mass) of one split of a row."""
    i_row = tl.program_id(0)
    head = tl.program_id(1)
    i_split = tl.program_id(2)
    live = i_row < tl.load(p_rows_used)
    slot = tl.load(p_slot + i_row).to(tl.int64)
    position = tl.load(p_position + i_row)
    seen, share = split_tokens(position, SPLITS, TILE, STEPS, BLOCK_TOKENS, BUDGET, DENSE)
    first = i_split * share
    end = tl.where(live, tl.minimum(first + share, seen), 0)
    gdc_sync(PDL)
    if first >= end:
        return
    GROUP: tl.constexpr = HEADS // KV_HEADS
    b_head = tl.arange(0, BLOCK_HEADS)
    b_dim = tl.arange(0, BLOCK_DIM)
    m_head = b_head < GROUP
    m_query = m_head[:, None] & (b_dim < DIM)[None, :]
    o_head = i_row * HEADS + head * GROUP + b_head
    query = tl.load(p_query + o_head[:, None] * DIM + b_dim[None, :], mask=m_query, other=0.0)
    rest = query
    if KIND == 1:
        query, rest = in_halves(query.to(tl.float32))
    highest = tl.full([BLOCK_HEADS], LOWEST, dtype=tl.float32)
    mass = tl.zeros([BLOCK_HEADS], dtype=tl.float32)
    sums = tl.zeros([BLOCK_HEADS, BLOCK_DIM], dtype=tl.float32)
    p_keys += o_keys
    p_values += o_values
    p_key_scales += o_key_scales
    p_value_scales += o_value_scales
    page_row = slot * o_pages
    if INTERPRETED:
        while first < end:
            highest, mass, sums = attend_tile(
                first, end, query, rest, highest, mass, sums,
                p_keys, p_values, p_key_scales, p_value_scales, p_pages, p_places, page_row, i_row, position, head,
                scale, KV_HEADS, DIM, BLOCK_DIM, PAGE_TOKENS, BLOCK_TOKENS, BUDGET, TILE, DENSE, KIND,
            )  # fmt: skip
            first += TILE
    else:
        for at in tl.range(first, end, TILE, num_stages=STAGES):
            highest, mass, sums = attend_tile(
                at, end, query, rest, highest, mass, sums,
                p_keys, p_values, p_key_scales, p_value_scales, p_pages, p_places, page_row, i_row, position, head,
                scale, KV_HEADS, DIM, BLOCK_DIM, PAGE_TOKENS, BLOCK_TOKENS, BUDGET, TILE, DENSE, KIND,
            )  # fmt: skip
    o_out = o_head * SPLITS + i_split
    tl.store(p_sums + o_out[:, None] * DIM + b_dim[None, :], sums, mask=m_query)
    tl.store(p_stats + o_out * 2, highest, mask=m_head)
    tl.store(p_stats + o_out * 2 + 1, mass, mask=m_head)


@triton.jit
def merge(
    p_sums, p_stats, p_gate, o_gate_term, o_gate_row, o_gate_head, p_position, p_rows_used, p_out,
    HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, BUDGET: tl.constexpr, SPLITS: tl.constexpr, BLOCK_SPLITS: tl.constexpr,
    STEPS: tl.constexpr, TILE: tl.constexpr, DENSE: tl.constexpr, GATE_TERMS: tl.constexpr,
    EXACT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (heads, rows): splits added in order, times sigmoid(gate), as inputs of an operand row."""
    head = tl.program_id(0)
    i_row = tl.program_id(1)
    live = i_row < tl.load(p_rows_used)
    position = tl.load(p_position + i_row)
    seen, share = split_tokens(position, SPLITS, TILE, STEPS, BLOCK_TOKENS, BUDGET, DENSE)
    used = tl.where(live, tl.cdiv(seen, share), 0)
    b_dim = tl.arange(0, BLOCK_DIM)
    m_dim = b_dim < DIM
    b_split = tl.arange(0, BLOCK_SPLITS)
    m_split = b_split < used
    gdc_sync(PDL)
    o_split = (i_row * HEADS + head) * SPLITS + b_split
    part = tl.load(p_sums + o_split[:, None] * DIM + b_dim[None, :], mask=m_split[:, None] & m_dim[None, :], other=0.0)
    highest = tl.load(p_stats + o_split * 2, mask=m_split, other=LOWEST)
    mass = tl.load(p_stats + o_split * 2 + 1, mask=m_split, other=0.0)
    weight = tl.exp(highest - tl.max(highest, axis=0))
    total = tl.sum(weight * mass, axis=0)
    sums = tl.sum(part * weight[:, None], axis=0)
    gate = sum_terms(
        p_gate, i_row * o_gate_row + head * o_gate_head + b_dim, o_gate_term, when(live, m_dim), GATE_TERMS
    )
    out = tl.where(live, sums / tl.where(live, total, 1.0), 0.0) / (1.0 + tl.exp(-gate))
    p_row = p_out + i_row * PADDED
    store_operand(p_row, head * DIM + b_dim, out, m_dim, EXACT)
    if (PADDED > HEADS * DIM) & (head == HEADS - 1):
        rest = HEADS * DIM + tl.arange(0, 128)
        store_operand(p_row, rest, tl.zeros([128], dtype=tl.float32), rest < PADDED, EXACT)
