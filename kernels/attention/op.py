"""Attention over pages for the rows of a window, compiled for the CPU."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.compiled.arrays import Array, Bytes, Floats, Integers
from kernels.compiled.jit import compiled, compiled_sum
from kernels.compiled.scalar import exp, norm_into, sigmoid
from kernels.compiled.vector import narrow, widen
from kernels.rope.rotate import rotate


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


@compiled_sum
def _score(query: Floats, key: Array) -> np.float32:
    total = np.float32(0)
    for i in range(query.shape[0]):
        total += query[i] * widen(key[i])
    return total


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
    keys, values = pools.keys, pools.values
    kv_heads, page_tokens = keys.shape[0], keys.shape[2]
    group = heads // kv_heads
    out = np.zeros((rows, heads * dim), np.float32)
    longest = 0
    for s in range(spans.shape[0]):
        longest = max(longest, spans[s, 2] + spans[s, 3])
    seen, scores = np.empty(longest, np.int64), np.empty((group, longest), np.float32)
    for s in range(spans.shape[0]):
        for r in range(spans[s, 1], spans[s, 1] + spans[s, 2]):
            position = spans[s, 3] + r - spans[s, 1]
            count = _visible(position, chosen[r], block_tokens, seen)
            for kv in range(kv_heads):
                for n in range(count):
                    key = keys[kv, pages[s, seen[n] // page_tokens], seen[n] % page_tokens]
                    for g in range(group):
                        scores[g, n] = _score(query[r, kv * group + g], key)
                for g in range(group):
                    _softmax(scores[g, :count])
                for n in range(count):
                    value = values[kv, pages[s, seen[n] // page_tokens], seen[n] % page_tokens]
                    for g in range(group):
                        share, at = scores[g, n], (kv * group + g) * dim
                        for i in range(dim):
                            out[r, at + i] += share * widen(value[i])
            for i in range(heads * dim):
                out[r, i] *= sigmoid(gates[r, gates_at + i])
    return out


@compiled
def _visible(position: int, chosen: Bytes, block_tokens: int, seen: Integers) -> int:
    """Writes the tokens that a row at the position sees, in order; returns how many."""
    complete = (position + 1) // block_tokens if chosen.shape[0] else 0
    count = 0
    for block in range(complete):
        if chosen[block]:
            for token in range(block * block_tokens, (block + 1) * block_tokens):
                seen[count] = token
                count += 1
    for token in range(complete * block_tokens, position + 1):
        seen[count] = token
        count += 1
    return count


@compiled
def _softmax(scores: Floats) -> None:
    """In place; a NaN among the scores makes all of them NaN."""
    largest = scores[0]
    for n in range(scores.shape[0]):
        largest = max(largest, scores[n])
    total = np.float32(0)
    for n in range(scores.shape[0]):
        scores[n] = exp(scores[n] - largest)
        total += scores[n]
    for n in range(scores.shape[0]):
        scores[n] /= total
