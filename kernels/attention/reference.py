"""Plain float32 attention, one query head of one row at a time."""

from __future__ import annotations

import torch


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Softmax attention; query head h uses KV head h // (heads / kv_heads).

    Args:
        query: [batch, length, heads, dim], already scaled.
        keys, values: [kv_heads, batch, context, dim].
        visible: bool [batch, length, context]; a row sees at least one token.
    """
    out = torch.zeros_like(query)
    group = query.shape[2] // keys.shape[0]
    for b in range(query.shape[0]):
        for t in range(query.shape[1]):
            seen = visible[b, t].nonzero()[:, 0]
            for h in range(query.shape[2]):
                scores = torch.stack([torch.dot(query[b, t, h], keys[h // group, b, i]) for i in seen])
                share = torch.exp(scores - scores.max())
                share = share / share.sum()
                for weight, i in zip(share, seen, strict=True):
                    out[b, t, h] += weight * values[h // group, b, i]
    return out
