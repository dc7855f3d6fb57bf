"""Plain float32 mixture of experts, one row and one expert at a time."""

from __future__ import annotations

import torch


def mixture(
    x: torch.Tensor, logits: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, *, used: int
) -> torch.Tensor:
    """Softmax over all experts, the `used` best, renormalised; `sum w_e down_e(silu(gate_e x) * up_e x)`.

    Args:
        x: [rows, hidden]. logits: [rows, experts]. gate_up: [experts, hidden, 2 * ff]. down: [experts, ff, hidden].
    """
    out = torch.zeros_like(x)
    ff = down.shape[1]
    for r in range(x.shape[0]):
        share = torch.exp(logits[r] - logits[r].max())
        share = share / share.sum()
        best = sorted(range(len(share)), key=lambda e: -float(share[e]))[:used]
        total = sum(float(share[e]) for e in best)
        for e in best:
            both = x[r] @ gate_up[e]
            gate = both[:ff] * torch.sigmoid(both[:ff])
            out[r] += float(share[e]) / total * ((gate * both[ff:]) @ down[e])
    return out
