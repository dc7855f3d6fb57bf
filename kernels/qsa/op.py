"""Block selection for the rows of a window, compiled for the CPU; equal scores go to the earlier block."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.compiled.arrays import Bytes, Floats, Integers
from kernels.compiled.jit import compiled
from kernels.compiled.scalar import dot, norm_into
from kernels.rope.rotate import rotate


class IndexPages(NamedTuple):
    """What the indexer keeps.

    Attributes:
        pooled: float32 [pages, blocks of a page, dim].
        history: float32 [slots, block_tokens - 1, dim]: raw keys before the window.
    """

    pooled: Floats
    history: Floats


@compiled
def pool_keys(
    index: IndexPages,
    keys: Floats,
    spans: Integers,
    blocks: Integers,
    cos: Floats,
    sin: Floats,
    norm: Floats,
    eps: np.float32,
) -> None:
    """Keys of the blocks that a window completes: mean of the raw keys, then norm, then rotation.

    Args:
        index: its pooled keys are written.
        keys: float32 [rows, dim]: raw keys of the window.
        spans: int64 [spans, 4]: slot, first row, rows, position of the first.
        blocks: int64 [blocks, 3]: span, position of the block's first token, where its key goes among all.
        cos: float32 [blocks, dims] of each block's first token.
        sin: the same, signed.
        norm: float32 [dim].
        eps: of the norm.
    """
    history, per_page = index.history, index.pooled.shape[1]
    before, dim = history.shape[1], history.shape[2]
    mean = np.empty(dim, np.float32)
    for b in range(blocks.shape[0]):
        span = spans[blocks[b, 0]]
        mean[:] = np.float32(0)
        for offset in range(blocks[b, 1] - span[3], blocks[b, 1] - span[3] + before + 1):
            raw = keys[span[1] + offset] if offset >= 0 else history[span[0], before + offset]
            for i in range(dim):
                mean[i] += raw[i]
        for i in range(dim):
            mean[i] /= np.float32(before + 1)
        out = index.pooled[blocks[b, 2] // per_page, blocks[b, 2] % per_page]
        norm_into(out, mean, norm, eps)
        rotate(out, cos[b], sin[b])


@compiled
def select_blocks(
    queries: Floats,
    cos: Floats,
    sin: Floats,
    norm: Floats,
    eps: np.float32,
    pooled: Floats,
    pages: Integers,
    spans: Integers,
    block_tokens: int,
    budget_blocks: int,
) -> Bytes:
    """The best complete blocks of each row: `score = sum over heads of relu(q . k)`.

    Args:
        queries: float32 [rows, heads, dim], neither normalised nor rotated.
        cos: float32 [rows, dims] of each row's position.
        sin: the same, signed.
        norm: float32 [dim]: of the queries.
        eps: of the norm.
        pooled: float32 [pages, blocks of a page, dim]; blocks that are not complete may hold anything.
        pages: int64 [spans, at least the pages of the span].
        spans: int64 [spans, 4]: slot, first row, rows, position of the first.
        block_tokens: tokens of a block.
        budget_blocks: blocks chosen at most, at least one.

    Returns:
        uint8 [rows, blocks of the longest context]: 1 where a complete block is chosen.
    """
    per_page, heads, dim = pooled.shape[1], queries.shape[1], queries.shape[2]
    longest = 0
    for s in range(spans.shape[0]):
        longest = max(longest, (spans[s, 2] + spans[s, 3]) // block_tokens)
    chosen = np.zeros((queries.shape[0], longest), np.uint8)
    scores, query = np.empty(longest, np.float32), np.empty((heads, dim), np.float32)
    for s in range(spans.shape[0]):
        for r in range(spans[s, 1], spans[s, 1] + spans[s, 2]):
            complete = (spans[s, 3] + r - spans[s, 1] + 1) // block_tokens
            if complete <= budget_blocks:
                chosen[r, :complete] = 1
                continue
            for h in range(heads):
                norm_into(query[h], queries[r, h], norm, eps)
                rotate(query[h], cos[r], sin[r])
            for block in range(complete):
                key = pooled[pages[s, block // per_page], block % per_page]
                scores[block] = np.float32(0)
                for h in range(heads):
                    scores[block] += max(np.float32(0), dot(query[h], key))
            _best(scores[:complete], budget_blocks, chosen[r])
    return chosen


@compiled
def _best(scores: Floats, count: int, chosen: Bytes) -> None:
    """Marks the `count` largest scores, of equal ones the first."""
    least = np.sort(scores)[scores.shape[0] - count]
    room = count
    for block in range(scores.shape[0]):
        if scores[block] > least:
            chosen[block] = 1
            room -= 1
    for block in range(scores.shape[0]):
        if scores[block] == least and room > 0:
            chosen[block] = 1
            room -= 1
