"""Block selection of a prompt chunk on the device: every row's exact best blocks, listed for groups of rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kernels.chunk import Chunk
from kernels.qsa._chunk import decide, list_blocks, score
from kernels.terms import check_tensor

SCORE_VALUES = 1 << 25
"""Scores held at once: a long chunk over a long context goes in slices of its rows."""

LIST = 4096
_ROWS = 64
_TILE = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSelection:
    """What each group of consecutive rows sees besides its rows' incomplete blocks.

    Attributes:
        blocks: int32 [groups, width], rising numbers of blocks that at least one row of the group chose.
        members: int32 [groups, width], bit i set where row i of the group chose the block.
        counts: int32 [groups], how many of them there are.
        rows: of a group; the last one may have fewer.
        block_tokens: tokens of a block.
    """

    blocks: torch.Tensor
    members: torch.Tensor
    counts: torch.Tensor
    rows: int
    block_tokens: int


def select_chunk(
    query: torch.Tensor,
    pooled: torch.Tensor,
    chunk: Chunk,
    *,
    pages: torch.Tensor,
    block_tokens: int,
    budget_blocks: int,
    group_rows: int,
) -> ChunkSelection | None:
    """Chooses each row's best complete blocks: `score = sum over heads of relu(q . k)`, ties to the lower block.

    Args:
        query: [rows, heads, dim] from `prepare_chunk`: float32 for float32 block keys (exact), else fp16.
        pooled: float32, bf16 or fp16 [pages + 1, blocks of a page, dim], those of the chunk included.
        chunk: where the rows belong.
        pages: int32 [slots + 1, pages].
        block_tokens: tokens of a block.
        budget_blocks: blocks that a row chooses at most.
        group_rows: rows whose choices are listed together, at most 31.

    Returns:
        The lists; None if every row sees all its blocks, so that attention is dense.

    Raises:
        ValueError: shapes or dtypes that do not fit.
    """
    _check(query, pooled, chunk, pages, block_tokens, budget_blocks, group_rows)
    most, device, count = chunk.reach // block_tokens, query.device, chunk.rows
    if most <= budget_blocks:
        return None
    groups, width = triton.cdiv(count, group_rows), min(most, group_rows * budget_blocks)
    out = ChunkSelection(
        blocks=torch.empty(groups, width, dtype=torch.int32, device=device),
        members=torch.empty(groups, width, dtype=torch.int32, device=device),
        counts=torch.empty(groups, dtype=torch.int32, device=device),
        rows=group_rows,
        block_tokens=block_tokens,
    )
    rows = min(count, max(1, SCORE_VALUES // most // group_rows) * group_rows)
    scores = torch.empty(rows, most, device=device)
    listed = torch.empty(rows, most if most > LIST else 0, dtype=torch.int32, device=device)
    # Two tensors, not one: a pointer that is aligned for some row counts only would compile kernels twice.
    least, end = (torch.empty(rows, dtype=torch.int32, device=device) for _ in range(2))
    for first in range(0, count, rows):
        stop = min(first + rows, count)
        _score(query, pooled, chunk, pages, first=first, stop=stop, out=scores, block_tokens=block_tokens,
               budget_blocks=budget_blocks)  # fmt: skip
        bits = scores.view(torch.int32)
        decide[(stop - first,)](
            bits, listed, least, end, chunk.place, first, most,
            BLOCK_TOKENS=block_tokens, BUDGET=budget_blocks, LIST=LIST, num_warps=4,
        )  # fmt: skip
        list_blocks[(triton.cdiv(stop - first, group_rows),)](
            bits, least, end, out.blocks, out.members, out.counts, width, chunk.place, first, stop, most,
            BLOCK_TOKENS=block_tokens, GROUP=group_rows, TILE=1024, num_warps=4,
        )  # fmt: skip
    return out


def _score(
    query: torch.Tensor,
    pooled: torch.Tensor,
    chunk: Chunk,
    pages: torch.Tensor,
    *,
    first: int,
    stop: int,
    out: torch.Tensor,
    block_tokens: int,
    budget_blocks: int,
) -> None:
    """Scores of rows `first` to `stop` against all blocks, to the first rows of `out`."""
    _, heads, dim = query.shape
    exact = pooled.dtype == torch.float32
    score[(triton.cdiv(out.shape[1], _TILE), triton.cdiv(stop - first, _ROWS))](
        query, pooled, pages, pages.stride(0), out, chunk.place, first, stop, out.shape[1],
        HEADS=heads, DIM=dim, BLOCK_DIM=max(16, triton.next_power_of_2(dim)), BLOCK_TOKENS=block_tokens,
        PAGE_BLOCKS=pooled.shape[1], BUDGET=budget_blocks, ROWS=_ROWS, TILE=_TILE, EXACT=exact,
        num_warps=8 if exact else 4,
    )  # fmt: skip


def _check(
    query: torch.Tensor,
    pooled: torch.Tensor,
    chunk: Chunk,
    pages: torch.Tensor,
    block_tokens: int,
    budget_blocks: int,
    group_rows: int,
) -> None:
    _, heads, dim = query.shape
    dtype = torch.float32 if pooled.dtype == torch.float32 else torch.float16
    check_tensor("indexer queries", query, (chunk.rows, heads, dim), dtype)
    if pooled.dim() != 3 or pooled.shape[2] != dim or not pooled.is_contiguous():
        raise ValueError(f"block keys are [pages, blocks, {dim}], contiguous, found {list(pooled.shape)}")
    if budget_blocks < 1 or not 1 <= group_rows <= 31:
        raise ValueError(f"a budget of {budget_blocks} blocks for groups of {group_rows} rows; needed 1, and 1 to 31")
    room = pages.shape[1] * pooled.shape[1]
    if chunk.reach // block_tokens > room:
        raise ValueError(f"{chunk.reach // block_tokens} blocks, but pages for {room}")
