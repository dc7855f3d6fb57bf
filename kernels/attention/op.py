"""Attention over pages for the rows of a window, compiled for the CPU."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.compiled.arrays import Array, Bytes, Floats, Integers
from kernels.compiled.attend import score_tokens, soften, weigh_tokens
from kernels.compiled.emit import LANES
from kernels.compiled.jit import compiled
from kernels.compiled.scalar import norm_into, sigmoid
from kernels.compiled.vector import narrow
from kernels.rope.rotate import rotate

# Rows of a span that read a page of keys while it is in the cache.
_ROWS = 8


class KvPages(NamedTuple):
    """Keys and values in pages, float32 or int16 (bf16).

    Attributes:
        keys: [kv_heads, pages, page tokens, dim].
        values: the same.
    """

    keys: Array
    values: Array


@compiled
def prepare(
    mixed: Floats, norm: Floats, cos: Floats, sin: Floats, eps: np.float32, pools: KvPages, places: Integers
) -> Floats:
    """Normalises and rotates queries and keys; writes keys and values to the pages.

    Args:
        mixed: float32 [rows, at least queries | keys | values], head after head.
        norm: float32 [query heads + kv heads, dim].
        cos: float32 [rows, dims] of each row's position.
        sin: the same, signed.
        eps: of the norm.
        pools: written.
        places: int64 [rows]: where each row's keys and values go among the tokens of all pages.

    Returns:
        Queries [rows, heads, dim].
    """
    rows, kv_heads, page_tokens, dim = mixed.shape[0], pools.keys.shape[0], pools.keys.shape[2], norm.shape[1]
    heads = norm.shape[0] - kv_heads
    query, key = np.empty((rows, heads, dim), np.float32), np.empty(dim, np.float32)
    for r in range(rows):
        page, token = places[r] // page_tokens, places[r] % page_tokens
        for h in range(heads + kv_heads):
            out = query[r, h] if h < heads else key
            norm_into(out, mixed[r, h * dim : (h + 1) * dim], norm[h], eps)
            rotate(out, cos[r], sin[r])
            if h >= heads:
                at = (kv_heads + h) * dim
                _store(pools.keys[h - heads, page, token], key)
                _store(pools.values[h - heads, page, token], mixed[r, at : at + dim])
    return query


@compiled
def _store(place: Array, values: Floats) -> None:
    for i in range(values.shape[0]):
        place[i] = narrow(values[i], place[i])


@compiled
def attend(
    query: Floats,
    pools: KvPages,
    pages: Integers,
    spans: Integers,
    chosen: Bytes,
    block_tokens: int,
    gates: Floats,
    gates_at: int,
) -> Floats:
    """Softmax attention with grouped heads, times sigmoid gates: query head h uses KV head h // (heads / kv_heads).

    Args:
        query: float32 [rows, heads, dim], already scaled.
        pools: keys and values.
        pages: int64 [spans, at least the pages of the span]: pages in the order of their tokens.
        spans: int64 [spans, 4]: slot, first row, rows, position of the first.
        chosen: uint8 [rows, blocks]: which complete blocks a row sees, beside those not complete; [rows, 0]: all.
        block_tokens: tokens of a block.
        gates: float32 [rows, columns].
        gates_at: column of the first gate.

    Returns:
        float32 [rows, heads * dim].
    """
    rows, heads, dim = query.shape
    kv_heads = pools.keys.shape[0]
    group = heads // kv_heads
    out, totals = np.zeros((rows, heads * dim), np.float32), np.empty((rows, heads), np.float32)
    longest = 0
    for s in range(spans.shape[0]):
        longest = max(longest, spans[s, 2] + spans[s, 3])
    runs, whole = np.empty((longest, 2), np.int64), -(-longest // LANES) * LANES
    scores = np.empty((_ROWS * group, whole + LANES), np.float32)
    for s in range(spans.shape[0]):
        for first in range(spans[s, 1], spans[s, 1] + spans[s, 2], _ROWS):
            stop = min(first + _ROWS, spans[s, 1] + spans[s, 2])
            if chosen.shape[1] == 0:
                for kv in range(kv_heads):
                    _attend_all(query, pools, kv, pages[s], first, stop, spans[s, 3] - spans[s, 1], scores, totals, out)
                continue
            for r in range(first, stop):
                count = _runs(spans[s, 3] + r - spans[s, 1], chosen[r], block_tokens, pools.keys.shape[2], runs)
                for kv in range(kv_heads):
                    _attend_runs(query, pools, kv, pages[s], r, runs[:count], scores, totals, out)
    for r in range(rows):
        for h in range(heads):
            share = np.float32(1) / totals[r, h]
            for i in range(h * dim, (h + 1) * dim):
                out[r, i] *= sigmoid(gates[r, gates_at + i]) * share
    return out


@compiled
def _attend_all(
    query: Floats,
    pools: KvPages,
    kv: int,
    pages: Integers,
    first: int,
    stop: int,
    start: int,
    scores: Floats,
    totals: Floats,
    out: Floats,
) -> None:
    """Rows first to stop of a span over all tokens up to their own; row r is at position `start + r`."""
    heads, dim, all_pages, page_tokens = query.shape[1], query.shape[2], pools.keys.shape[1], pools.keys.shape[2]
    group, step = heads // pools.keys.shape[0], scores.shape[1]
    for number in range((start + stop - 1) // page_tokens + 1):
        token = number * page_tokens
        at = (kv * all_pages + pages[number]) * page_tokens * dim
        for r in range(first, stop):
            count, own = min(page_tokens, start + r + 1 - token), (r - first) * group * step + token
            if count > 0:
                score_tokens(
                    query, (r * heads + kv * group) * dim, group, dim, pools.keys, at, count, scores, own, step
                )
    for r in range(first, stop):
        for g in range(group):
            own = ((r - first) * group + g) * step
            soften(scores, own, start + r + 1, totals, r * heads + kv * group + g)
    for number in range((start + stop - 1) // page_tokens + 1):
        token = number * page_tokens
        at = (kv * all_pages + pages[number]) * page_tokens * dim
        for r in range(first, stop):
            count, own = min(page_tokens, start + r + 1 - token), (r - first) * group * step + token
            if count > 0:
                weigh_tokens(
                    scores, own, step, group, pools.values, at, count, dim, out, (r * heads + kv * group) * dim
                )


@compiled
def _attend_runs(
    query: Floats,
    pools: KvPages,
    kv: int,
    pages: Integers,
    r: int,
    runs: Integers,
    scores: Floats,
    totals: Floats,
    out: Floats,
) -> None:
    """Row r over runs of tokens [runs, 2]: the first, and how many; none leaves its page."""
    heads, dim, all_pages, page_tokens = query.shape[1], query.shape[2], pools.keys.shape[1], pools.keys.shape[2]
    group, step = heads // pools.keys.shape[0], scores.shape[1]
    seen, head = 0, r * heads + kv * group
    for n in range(runs.shape[0]):
        at = ((kv * all_pages + pages[runs[n, 0] // page_tokens]) * page_tokens + runs[n, 0] % page_tokens) * dim
        score_tokens(query, head * dim, group, dim, pools.keys, at, runs[n, 1], scores, seen, step)
        seen += runs[n, 1]
    for g in range(group):
        soften(scores, g * step, seen, totals, head + g)
    seen = 0
    for n in range(runs.shape[0]):
        at = ((kv * all_pages + pages[runs[n, 0] // page_tokens]) * page_tokens + runs[n, 0] % page_tokens) * dim
        weigh_tokens(scores, seen, step, group, pools.values, at, runs[n, 1], dim, out, head * dim)
        seen += runs[n, 1]


@compiled
def _runs(position: int, chosen: Bytes, block_tokens: int, page_tokens: int, runs: Integers) -> int:
    """Writes the runs of tokens that a row at the position sees, in order; returns how many there are."""
    complete = (position + 1) // block_tokens
    count = 0
    for block in range(complete + 1):
        first = block * block_tokens
        size = block_tokens if block < complete else position + 1 - first
        if size == 0 or (block < complete and not chosen[block]):
            continue
        if count and first % page_tokens and runs[count - 1, 0] + runs[count - 1, 1] == first:
            runs[count - 1, 1] += size
        else:
            runs[count, 0], runs[count, 1] = first, size
            count += 1
    return count
