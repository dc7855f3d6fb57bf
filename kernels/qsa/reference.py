"""Plain float32 block selection, one query at a time."""

from __future__ import annotations

import torch


def visible_tokens(
    query: torch.Tensor, pooled: torch.Tensor, positions: torch.Tensor, *, block_tokens: int, budget_blocks: int
) -> torch.Tensor:
    """Tokens each query sees: the best complete blocks, ties to the earlier block, and the incomplete tail.

    Args:
        query: [batch, length, heads, dim]. pooled: [batch, blocks, dim]. positions: int64 [batch, length].

    Returns:
        bool [batch, length, blocks * block_tokens].
    """
    batch, length = positions.shape
    seen = torch.zeros(batch, length, pooled.shape[1] * block_tokens, dtype=torch.bool)
    for b in range(batch):
        for t in range(length):
            position = int(positions[b, t])
            complete = (position + 1) // block_tokens
            scores = []
            for block in range(complete):
                total = 0.0
                for head in range(query.shape[2]):
                    total += max(0.0, float(torch.dot(query[b, t, head], pooled[b, block])))
                scores.append(total)
            best = sorted(range(complete), key=lambda block: (-scores[block], block))[:budget_blocks]
            for block in best:
                seen[b, t, block * block_tokens : (block + 1) * block_tokens] = True
            seen[b, t, complete * block_tokens : position + 1] = True
    return seen
