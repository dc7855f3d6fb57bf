"""Batched attention over pages in plain torch."""

from __future__ import annotations

import torch

# Scores held at once; a long prompt chunk over a long context goes in slices of its queries.
SCORE_LIMIT = 1 << 24


def gather_pages(pool: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
    """Brings a batch's pages into order.

    Args:
        pool: [heads, pages, page_tokens, dim].
        pages: int64 [batch, count].

    Returns:
        [heads, batch, count * page_tokens, dim], float32.
    """
    heads, _, page_tokens, dim = pool.shape
    batch, count = pages.shape
    found = pool.index_select(1, pages.reshape(-1)).view(heads, batch, count * page_tokens, dim)
    return found if found.dtype == torch.float32 else found.to(torch.float32)


def causal_mask(positions: torch.Tensor, *, context: int) -> torch.Tensor:
    """What is added to scores so that a row sees itself and what came before.

    Args:
        positions: int64 [batch, length].
        context: tokens of the gathered keys.

    Returns:
        float32 [batch, length, context]: 0 or -inf.
    """
    index = torch.arange(context, device=positions.device)
    later = index > positions.unsqueeze(2)
    return torch.zeros(later.shape, device=positions.device).masked_fill_(later, float("-inf"))


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Softmax attention with grouped heads: query head h uses KV head h // (heads / kv_heads).

    Args:
        query: float32 [batch, length, heads, dim], already scaled.
        keys: float32 [kv_heads, batch, context, dim].
        values: the same.
        mask: float32 [batch, length, context], added to the scores; every row sees at least one token.

    Returns:
        float32 [batch, length, heads, dim].

    Raises:
        ValueError: heads are not a multiple of the KV heads, or the mask has another shape.
    """
    batch, length, heads, _ = query.shape
    kv_heads, _, context, _ = keys.shape
    if heads % kv_heads:
        raise ValueError(f"attend: {heads} query heads are not a multiple of {kv_heads} KV heads")
    if mask.shape != (batch, length, context):
        raise ValueError(f"attend: mask is {tuple(mask.shape)}, needed {(batch, length, context)}")
    rows = max(1, SCORE_LIMIT // max(1, batch * heads * context))
    if rows >= length:
        return _attend(query, keys, values, mask)
    parts = [
        _attend(query[:, first : first + rows], keys, values, mask[:, first : first + rows])
        for first in range(0, length, rows)
    ]
    return torch.cat(parts, 1)


def _attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    batch, length, heads, dim = query.shape
    kv_heads, _, context, _ = keys.shape
    group = heads // kv_heads
    folded = query.view(batch, length, kv_heads, group, dim).permute(2, 0, 3, 1, 4)
    folded = folded.reshape(kv_heads * batch, group * length, dim)
    scores = torch.bmm(folded, keys.view(kv_heads * batch, context, dim).transpose(1, 2))
    scores.view(kv_heads, batch, group, length, context).add_(mask.unsqueeze(1))
    share = torch.softmax(scores, 2)
    out = torch.bmm(share, values.view(kv_heads * batch, context, dim))
    out = out.view(kv_heads, batch, group, length, dim).permute(1, 3, 0, 2, 4)
    return out.reshape(batch, length, heads, dim)
