"""Plain float32 hyper-connections, one row and one stream at a time."""

from __future__ import annotations

import torch


def read_streams(
    x: torch.Tensor, *, norm: torch.Tensor, down: torch.Tensor, up: torch.Tensor, inject: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reads the streams as the formulas say.

    Args:
        x: [rows, streams, hidden]. norm: [streams, hidden]. down: [low, wide]. up: [wide, low].
        inject: [streams, wide].
        eps: of the norm, per stream.

    Returns:
        Block input [rows, hidden] and inject weights [rows, streams].
    """
    rows, streams, hidden = x.shape
    block = torch.zeros(rows, hidden)
    weights = torch.zeros(rows, streams)
    for r in range(rows):
        parts = []
        for s in range(streams):
            parts.append(x[r, s] / torch.sqrt((x[r, s] ** 2).mean() + eps) * norm[s])
        flat = torch.cat(parts)
        low = down @ flat / streams
        low = low * torch.sigmoid(low)
        gate = torch.sigmoid(up @ low)
        for s in range(streams):
            block[r] += gate[s * hidden : (s + 1) * hidden] * parts[s] / streams
            weights[r, s] = 2 * torch.sigmoid(inject[s] @ flat / streams)
    return block, weights


def write_streams(x: torch.Tensor, out: torch.Tensor, inject: torch.Tensor) -> torch.Tensor:
    """`x[r, s] + inject[r, s] * out[r]` as a new tensor."""
    result = x.clone()
    for r in range(x.shape[0]):
        for s in range(x.shape[1]):
            result[r, s] += inject[r, s] * out[r]
    return result
