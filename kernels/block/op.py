"""Blocks: the streams are read, a mixer or the experts run, and the result is written back; compiled for the CPU."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.attention.op import KvPages, attend, prepare
from kernels.compiled.arrays import Bytes, Floats, Integers
from kernels.compiled.jit import compiled
from kernels.compiled.record import INTEGER, TRUTH, fields, floats, recaller
from kernels.compiled.scalar import dot
from kernels.gdn.op import GDN, DeltaRows, GdnWeights, run_delta
from kernels.hyper.op import READ, ReadWeights, read_streams, write_streams
from kernels.matrix import MATRIX, Matrix, multiply
from kernels.moe.op import EXPERTS, MIX, ExpertWeights, MixWeights, add_experts, route
from kernels.qsa.op import IndexPages, pool_keys, select_blocks


class AttentionWeights(NamedTuple):
    """Full attention with its indexer.

    Attributes:
        mix: [hidden, queries | keys | values | gates | indexer queries | indexer key]; the last two with an indexer.
        norm: float32 [query heads + kv heads, dim]; the queries' rows carry the 1/sqrt(dim) of the scores.
        query_norm: float32 [indexer dim]; empty without an indexer.
        key_norm: the same.
        out: [query heads * dim, hidden].
        index_heads: 0 without an indexer.
        block_tokens: tokens of an indexer block.
        budget_blocks: blocks that a row may choose.
    """

    mix: Matrix
    norm: Floats
    query_norm: Floats
    key_norm: Floats
    out: Matrix
    index_heads: int
    block_tokens: int
    budget_blocks: int


class LinearBlock(NamedTuple):
    """Weights of a block with Gated DeltaNet."""

    read: ReadWeights
    mixer: GdnWeights


class AttentionBlock(NamedTuple):
    """Weights of a block with attention."""

    read: ReadWeights
    mixer: AttentionWeights


class ExpertBlock(NamedTuple):
    """Weights of a block of experts."""

    read: ReadWeights
    mix: MixWeights
    experts: ExpertWeights


class HeadBlock(NamedTuple):
    """Weights from the streams to logits."""

    read: ReadWeights
    output: Matrix


class Places(NamedTuple):
    """Where the rows of a window read and write.

    Attributes:
        spans: int64 [spans, 4]: slot, first row, rows, position of the first.
        cos: float32 [rows, rope dims].
        sin: the same, signed.
        tokens: int64 [rows]: among all tokens of the pages.
        pages: int64 [spans, pages of the longest]: in the order of their tokens.
        blocks: int64 [blocks, 3] that the window completes: span, position of the first token, place among all.
        block_cos: float32 [blocks, rope dims] of each block's first token.
        block_sin: the same, signed.
        sparse: whether some row has more complete blocks than the budget.
    """

    spans: Integers
    cos: Floats
    sin: Floats
    tokens: Integers
    pages: Integers
    blocks: Integers
    block_cos: Floats
    block_sin: Floats
    sparse: bool


@compiled
def plan_rows(
    spans: Integers, pages: Integers, page_tokens: int, cos: Floats, sin: Floats, block_tokens: int, budget_blocks: int
) -> Places:
    """Plans where rows read and write.

    Args:
        spans: int64 [spans, 4], see `Places`; one at least.
        pages: int64 [slots, pages of the longest context].
        page_tokens: tokens of a page.
        cos: float32 [positions, rope dims]: what lies behind the last position is left to the caller.
        sin: the same, signed.
        block_tokens: tokens of an indexer block.
        budget_blocks: blocks that a row may choose; 0 for layers without an indexer.

    Returns:
        The plan; without indexer no blocks.
    """
    rows = blocks = longest = 0
    for s in range(spans.shape[0]):
        stop = spans[s, 3] + spans[s, 2]
        rows, longest = rows + spans[s, 2], max(longest, stop)
        if budget_blocks:
            blocks += stop // block_tokens - spans[s, 3] // block_tokens
    turned = longest if longest <= cos.shape[0] else 0
    tokens, found = np.empty(rows, np.int64), np.empty((blocks, 3), np.int64)
    own = np.empty((spans.shape[0], -(-longest // page_tokens)), np.int64)
    dims = cos.shape[1]
    row_cos, row_sin = np.empty((rows, dims), np.float32), np.empty((rows, dims), np.float32)
    block_cos, block_sin = np.empty((blocks, dims), np.float32), np.empty((blocks, dims), np.float32)
    row = block = 0
    for s in range(spans.shape[0]):
        own[s, :] = pages[spans[s, 0], : own.shape[1]]
        stop = spans[s, 3] + spans[s, 2]
        for position in range(spans[s, 3], stop):
            tokens[row] = own[s, position // page_tokens] * page_tokens + position % page_tokens
            if turned:
                row_cos[row, :], row_sin[row, :] = cos[position], sin[position]
            row += 1
        if budget_blocks == 0:
            continue
        for number in range(spans[s, 3] // block_tokens, stop // block_tokens):
            first = number * block_tokens
            found[block, 0], found[block, 1] = s, first
            found[block, 2] = (own[s, first // page_tokens] * page_tokens + first % page_tokens) // block_tokens
            if turned:
                block_cos[block, :], block_sin[block, :] = cos[first], sin[first]
            block += 1
    sparse = budget_blocks > 0 and longest // block_tokens > budget_blocks
    return Places(spans, row_cos, row_sin, tokens, own, found, block_cos, block_sin, sparse)


class EntryWeights(NamedTuple):
    """How a draft row begins.

    Attributes:
        token_norm: float32 [hidden].
        state_norm: float32 [streams, hidden].
        from_token: [hidden, hidden].
        from_state: [hidden, hidden].
        grouped: whether each stream is normalised on its own; else all at once.
    """

    token_norm: Floats
    state_norm: Floats
    from_token: Matrix
    from_state: Matrix
    grouped: bool


ATTENTION = fields(
    AttentionWeights,
    mix=MATRIX,
    norm=floats(2),
    query_norm=floats(1),
    key_norm=floats(1),
    out=MATRIX,
    index_heads=INTEGER,
    block_tokens=INTEGER,
    budget_blocks=INTEGER,
)
LINEAR_BLOCK = fields(LinearBlock, read=READ, mixer=GDN)
ATTENTION_BLOCK = fields(AttentionBlock, read=READ, mixer=ATTENTION)
EXPERT_BLOCK = fields(ExpertBlock, read=READ, mix=MIX, experts=EXPERTS)
HEAD_BLOCK = fields(HeadBlock, read=READ, output=MATRIX)
ENTRY = fields(
    EntryWeights, token_norm=floats(1), state_norm=floats(2), from_token=MATRIX, from_state=MATRIX, grouped=TRUTH
)
linear_of, attention_of, experts_of = recaller(LINEAR_BLOCK), recaller(ATTENTION_BLOCK), recaller(EXPERT_BLOCK)
head_of, entry_of = recaller(HEAD_BLOCK), recaller(ENTRY)


@compiled
def linear_block(
    x: Floats, weights: Integers, history: Floats, state: Floats, spans: Integers, eps: np.float32
) -> tuple[Floats, Floats, Floats, DeltaRows]:
    """Gated DeltaNet on the streams x [rows, streams, hidden], in place; see `run_delta`. Weights: a LINEAR_BLOCK.

    Returns:
        The block's input, the inject weights, its output, and what a commit needs.
    """
    own = linear_of(weights)
    block, inject = read_streams(x, own.read, eps)
    out, delta = run_delta(block, own.mixer, history, state, spans, eps)
    write_streams(x, out, inject)
    return block, inject, out, delta


@compiled
def attention_block(
    x: Floats,
    record: Integers,
    places: Places,
    pools: KvPages,
    index: IndexPages,
    eps: np.float32,
) -> tuple[Floats, Floats, Floats, Floats, Bytes]:
    """Attention on the streams x [rows, streams, hidden], in place; writes keys, values and pooled keys to the pages.

    The record is an ATTENTION_BLOCK.

    Returns:
        The block's input, the inject weights, its output, the raw indexer keys [rows, dim], and the chosen blocks
        [rows, blocks], which are none where every row sees everything.
    """
    own = attention_of(record)
    weights = own.mixer
    block, inject = read_streams(x, own.read, eps)
    mixed = multiply(block, weights.mix)
    query = prepare(mixed, weights.norm, places.cos, places.sin, eps, pools, places.tokens)
    heads, dim = query.shape[1], query.shape[2]
    gates_at = (heads + 2 * pools.keys.shape[0]) * dim
    index_at, width = gates_at + heads * dim, index.pooled.shape[2]
    keys_at = index_at + weights.index_heads * width
    keys = np.empty((x.shape[0], width if weights.index_heads else 0), np.float32)
    chosen = np.empty((x.shape[0], 0), np.uint8)
    if weights.index_heads:
        keys[:, :] = mixed[:, keys_at : keys_at + width]
        blocks, cos, sin = places.blocks, places.block_cos, places.block_sin
        pool_keys(index, keys, places.spans, blocks, cos, sin, weights.key_norm, eps)
        if places.sparse:
            chosen = select_blocks(
                mixed[:, index_at:keys_at].copy().reshape((x.shape[0], weights.index_heads, width)),
                places.cos,
                places.sin,
                weights.query_norm,
                eps,
                index.pooled,
                places.pages,
                places.spans,
                weights.block_tokens,
                weights.budget_blocks,
            )
    seen = attend(query, pools, places.pages, places.spans, chosen, weights.block_tokens, mixed, gates_at)
    out = multiply(seen, weights.out)
    write_streams(x, out, inject)
    return block, inject, out, keys, chosen


@compiled
def expert_block(x: Floats, weights: Integers, eps: np.float32) -> tuple[Integers, Floats]:
    """Routed and shared experts on the streams x [rows, streams, hidden], in place: expert ids, and their output.

    The weights are an EXPERT_BLOCK.
    """
    own = experts_of(weights)
    block, inject = read_streams(x, own.read, eps)
    ids, shares, out = route(block, own.mix)
    add_experts(block, ids, shares, own.experts, out)
    write_streams(x, out, inject)
    return ids, out


@compiled
def head_block(x: Floats, weights: Integers, eps: np.float32) -> tuple[Floats, Floats]:
    """What the streams x [rows, streams, hidden] are read into, and its logits; the weights are a HEAD_BLOCK."""
    own = head_of(weights)
    mixed, _ = read_streams(x, own.read, eps)
    return mixed, multiply(mixed, own.output)


@compiled
def enter_draft(streams: Floats, embedded: Floats, record: Integers, eps: np.float32) -> Floats:
    """Streams of draft rows: those of the trunk or of the row before, and the token that follows it.

    Args:
        streams: float32 [rows, streams, hidden].
        embedded: float32 [rows, hidden].
        record: an ENTRY.
        eps: of the norms.

    Returns:
        float32 [rows, streams, hidden].
    """
    weights = entry_of(record)
    rows, count, hidden = streams.shape
    token, state = np.empty((rows, hidden), np.float32), np.empty((rows * count, hidden), np.float32)
    for r in range(rows):
        scale = _scale(dot(embedded[r], embedded[r]), hidden, eps)
        for i in range(hidden):
            token[r, i] = embedded[r, i] * scale * weights.token_norm[i]
        total = np.float32(0)
        for s in range(count):
            total += dot(streams[r, s], streams[r, s])
        for s in range(count):
            scale = _scale(total, count * hidden, eps)
            if weights.grouped:
                scale = _scale(dot(streams[r, s], streams[r, s]), hidden, eps)
            for i in range(hidden):
                state[r * count + s, i] = streams[r, s, i] * scale * weights.state_norm[s, i]
    out = np.empty((rows, count, hidden), np.float32)
    from_token, from_state = multiply(token, weights.from_token), multiply(state, weights.from_state)
    for r in range(rows):
        for s in range(count):
            for i in range(hidden):
                out[r, s, i] = from_state[r * count + s, i] + from_token[r, i]
    return out


@compiled
def _scale(squares: np.float32, count: int, eps: np.float32) -> np.float32:
    scale: np.float32 = np.float32(1) / np.sqrt(squares / np.float32(count) + eps)
    return scale
