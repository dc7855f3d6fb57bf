"""Batched n-gram hashing and gating in plain torch; integers stay 64 bits end to end."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.norm import rms_norm


@dataclass(frozen=True, slots=True, kw_only=True)
class GateWeights:
    """Weights of the gate.

    Attributes:
        key: float32 [width, streams * hidden], transposed.
        value: float32 [width, hidden], transposed.
        norm_key: float32 [streams, hidden].
        norm_query: the same.
        norm_conv: the same.
    """

    key: torch.Tensor
    value: torch.Tensor
    norm_key: torch.Tensor
    norm_query: torch.Tensor
    norm_conv: torch.Tensor


def context_windows(tokens: torch.Tensor, history: torch.Tensor, *, reset: int) -> torch.Tensor:
    """The last `order` tokens of every row, newest first; a reset token among the predecessors hides what is older.

    Args:
        tokens: int64 [batch, length].
        history: int64 [batch, order - 1]: tokens before the first, oldest first; `reset` before the start.
        reset: id that ends the context (and stands for everything hidden).

    Returns:
        int64 [batch, length, order].
    """
    order = history.shape[1] + 1
    length = tokens.shape[1]
    rows = torch.cat((history, tokens), 1)
    columns = [tokens]
    ended = torch.zeros_like(tokens, dtype=torch.bool)
    for back in range(1, order):
        before = rows[:, order - 1 - back : order - 1 - back + length]
        ended = ended | (before == reset)
        columns.append(before.masked_fill(ended, reset))
    return torch.stack(columns, 2)


def hash_rows(
    windows: torch.Tensor, *, multipliers: torch.Tensor, head_rows: torch.Tensor, head_offsets: torch.Tensor
) -> torch.Tensor:
    """Table rows: `mix_n = xor over s < n of c_s * m_s`; head h of order n takes `mix_n mod rows_h + offset_h`.

    Args:
        windows: int64 [..., order] from `context_windows`.
        multipliers: int64 [order]; products with token ids stay below 2^63.
        head_rows: int64 [heads], orders 2, 3, ... one after the other.
        head_offsets: the same.

    Returns:
        int64 [..., heads].

    Raises:
        ValueError: heads do not divide among the orders.
    """
    order = windows.shape[-1]
    if order < 2 or head_rows.shape[0] % (order - 1):
        raise ValueError(f"hash_rows: {head_rows.shape[0]} heads do not divide among {order - 1} orders")
    heads = head_rows.shape[0] // (order - 1)
    products = windows * multipliers
    mixed = products[..., 0]
    parts = []
    for n in range(1, order):
        mixed = mixed ^ products[..., n]
        parts.append(mixed.unsqueeze(-1) % head_rows[(n - 1) * heads : n * heads])
    return torch.cat(parts, -1).add_(head_offsets)


def gate_values(
    x: torch.Tensor, rows: torch.Tensor, weights: GateWeights, *, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gated values and their normalised form, which the convolution reads.

    `s = sum(norm(key) * norm(x)) / sqrt(hidden)` per stream, `gate = sigmoid(sign(s) sqrt(max(|s|, 1e-6)))`.

    Args:
        x: float32 [rows, streams, hidden].
        rows: float32 [rows, width]: the gathered table rows of each position, concatenated.
        weights: of the gate.
        eps: of the norms, per stream.

    Returns:
        float32 [rows, streams, hidden] twice.
    """
    count, streams, hidden = x.shape
    key = rms_norm(torch.mm(rows, weights.key).view(count, streams, hidden), weights.norm_key, eps=eps)
    query = rms_norm(x, weights.norm_query, eps=eps)
    score = key.mul_(query).sum(2, keepdim=True).mul_(hidden**-0.5)
    gate = (score.sign() * score.abs_().clamp_(min=1e-6).sqrt_()).sigmoid_()
    gated = gate * torch.mm(rows, weights.value).unsqueeze(1)
    return gated, rms_norm(gated, weights.norm_conv, eps=eps)
