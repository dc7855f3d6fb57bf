"""Batched block selection in plain torch; equal scores go to the earlier block, whatever else is in the batch."""

from __future__ import annotations

import torch

from kernels.norm import rms_norm
from kernels.rope import rotate_


def pool_keys(
    raw: torch.Tensor, index: torch.Tensor, norm: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """Keys of blocks: mean of the raw keys, then norm, then rotation at the block's first token.

    Args:
        raw: float32 [rows, dim].
        index: int64 [blocks, block_tokens]: the rows of each block.
        norm: float32 [dim].
        cos: [blocks, 1, dims] of each block's first token, from `rope_tables`.
        sin: the same.
        eps: of the norm.

    Returns:
        float32 [blocks, dim].
    """
    blocks, tokens = index.shape
    mean = raw.index_select(0, index.reshape(-1)).view(blocks, tokens, raw.shape[1]).mean(1)
    return rotate_(rms_norm(mean, norm, eps=eps).unsqueeze(1), cos, sin).squeeze(1)


def select_blocks(
    query: torch.Tensor, pooled: torch.Tensor, complete: torch.Tensor, *, budget_blocks: int
) -> torch.Tensor:
    """The best complete blocks of each query: `score = sum over heads of relu(q . k)`.

    Args:
        query: float32 [batch, length, heads, dim].
        pooled: float32 [batch, blocks, dim]; blocks that are not complete may hold anything.
        complete: int64 [batch, length]: how many blocks are complete for the query.
        budget_blocks: blocks chosen at most.

    Returns:
        bool [batch, length, blocks].

    Raises:
        ValueError: budget below one block.
    """
    if budget_blocks < 1:
        raise ValueError(f"select_blocks: budget is {budget_blocks} blocks; needed at least 1")
    batch, length, heads, dim = query.shape
    blocks = pooled.shape[1]
    products = torch.bmm(query.reshape(batch, length * heads, dim), pooled.transpose(1, 2)).relu_()
    scores = products.view(batch, length, heads, blocks).sum(2)
    known = torch.arange(blocks, device=query.device) < complete.unsqueeze(2)
    if blocks <= budget_blocks:
        return known
    scores.masked_fill_(known.logical_not(), -1.0)
    least = scores.topk(budget_blocks, dim=2, sorted=True).values[:, :, -1:]
    above, equal = scores > least, scores == least
    room = budget_blocks - above.sum(2, keepdim=True)
    return above.logical_or_(equal.logical_and_(equal.cumsum(2) <= room)).logical_and_(known)


def selection_mask(selected: torch.Tensor, positions: torch.Tensor, *, block_tokens: int) -> torch.Tensor:
    """What is added to scores so that a row sees its chosen blocks and the incomplete tail, itself included.

    Args:
        selected: bool [batch, length, blocks] from `select_blocks`.
        positions: int64 [batch, length].
        block_tokens: tokens of a block.

    Returns:
        float32 [batch, length, blocks * block_tokens]: 0 or -inf.
    """
    batch, length, blocks = selected.shape
    context = blocks * block_tokens
    index = torch.arange(context, device=selected.device)
    position = positions.unsqueeze(2)
    tail = (index <= position).logical_and_(index >= (position + 1) // block_tokens * block_tokens)
    chosen = selected.unsqueeze(3).expand(batch, length, blocks, block_tokens).reshape(batch, length, context)
    hidden = chosen.logical_or_(tail).logical_not_()
    return torch.zeros(hidden.shape, device=selected.device).masked_fill_(hidden, float("-inf"))
