"""Plain torch experts, one row and one slot at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def best_experts(logits: Tensor, *, used: int) -> tuple[list[int], Tensor]:
    """The `used` largest of [E], equal ones by lower id, and their renormalised softmax shares."""
    order = sorted(range(logits.shape[0]), key=lambda e: (-float(logits[e]), e))[:used]
    share = torch.softmax(logits, 0)[order]
    return order, share / share.sum()


def experts_reference(
    x: Tensor, logits: Tensor, weights: Sequence[tuple[Tensor, Tensor, Tensor]], *, used: int
) -> Tensor:
    """[rows, used + 1, hidden]: weighted outputs by slot, the shared expert last.

    Args:
        x: [rows, hidden].
        logits: [rows, E + 1], the shared expert's last.
        weights: gate [ff, hidden], up [ff, hidden] and down [hidden, ff] of each of the E + 1 experts.
        used: routed experts of a row.
    """
    out = x.new_empty(x.shape[0], used + 1, x.shape[1])
    for r in range(x.shape[0]):
        ids, share = best_experts(logits[r, :-1], used=used)
        chosen = [*zip(ids, share, strict=True), (len(weights) - 1, torch.sigmoid(logits[r, -1]))]
        for slot, (expert, weight) in enumerate(chosen):
            gate, up, down = weights[expert]
            inner = gate @ x[r]
            out[r, slot] = weight * (down @ (inner * torch.sigmoid(inner) * (up @ x[r])))
    return out
