"""Plain n-gram hashing with Python integers and plain float32 gating."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def hash_rows(
    tokens: Sequence[int],
    *,
    reset: int,
    multipliers: Sequence[int],
    head_rows: Sequence[int],
    head_offsets: Sequence[int],
) -> list[list[int]]:
    """Table rows of every position of a sequence that starts at position 0."""
    order = len(multipliers)
    heads = len(head_rows) // (order - 1)
    result = []
    for t in range(len(tokens)):
        window = [tokens[t]]
        ended = False
        for s in range(1, order):
            ended = ended or t - s < 0 or tokens[t - s] == reset
            window.append(reset if ended else tokens[t - s])
        mixed = window[0] * multipliers[0]
        rows = []
        for n in range(1, order):
            mixed ^= window[n] * multipliers[n]
            for head in range((n - 1) * heads, n * heads):
                rows.append(mixed % head_rows[head] + head_offsets[head])
        result.append(rows)
    return result


def gate_values(
    x: torch.Tensor,
    rows: torch.Tensor,
    *,
    key: torch.Tensor,
    value: torch.Tensor,
    norm_key: torch.Tensor,
    norm_query: torch.Tensor,
    norm_conv: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gated values and their normalised form, stream by stream; key [wide, width], value [hidden, width]."""
    count, streams, hidden = x.shape
    gated, normed = torch.zeros_like(x), torch.zeros_like(x)

    def norm(vector: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return vector / torch.sqrt((vector**2).mean() + eps) * weight

    for r in range(count):
        keys = (key @ rows[r]).reshape(streams, hidden)
        for s in range(streams):
            score = torch.dot(norm(keys[s], norm_key[s]), norm(x[r, s], norm_query[s])) / hidden**0.5
            root = torch.sign(score) * torch.sqrt(score.abs().clamp(min=1e-6))
            gated[r, s] = torch.sigmoid(root) * (value @ rows[r])
            normed[r, s] = norm(gated[r, s], norm_conv[s])
    return gated, normed
