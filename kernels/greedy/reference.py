"""Plain form of the greedy choice."""

from __future__ import annotations

import torch


def likeliest(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The first of the largest logits [rows, vocabulary], its softmax, and whether all logits of the row are finite."""
    ids = logits.argmax(1)
    shares = torch.softmax(logits, 1).gather(1, ids[:, None])[:, 0]
    return ids, shares, torch.isfinite(logits).all(1)
