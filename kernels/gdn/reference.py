"""Plain float32 Gated DeltaNet: token by token, head by head."""

from __future__ import annotations

import torch


def causal_conv(rows: torch.Tensor, weight: torch.Tensor, *, dilation: int = 1) -> torch.Tensor:
    """Convolution and silu; rows [batch, (taps - 1) * dilation + length, channels], weight [taps, channels]."""
    taps = weight.shape[0]
    length = rows.shape[1] - (taps - 1) * dilation
    out = torch.zeros(rows.shape[0], length, rows.shape[2])
    for t in range(length):
        for j in range(taps):
            out[:, t] += rows[:, t + j * dilation] * weight[j]
    return out * torch.sigmoid(out)


def delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step a token: `S <- a S; e = v - S'k; S <- S + k (beta e)'; o = S'q`.

    Args:
        query, key: [batch, length, key_heads, dim]; value head v uses key head v mod key_heads.
        value: [batch, length, heads, dim]. log_decay, beta: [batch, length, heads].
        state: [batch, heads, dim (key), dim (value)].

    Returns:
        Outputs like value, and the states after every token [batch, length, heads, dim, dim].
    """
    batch, length, heads, _ = value.shape
    key_heads = key.shape[2]
    out = torch.zeros_like(value)
    states = torch.zeros(batch, length, *state.shape[1:])
    for b in range(batch):
        for h in range(heads):
            memory = state[b, h].clone()
            for t in range(length):
                k, q = key[b, t, h % key_heads], query[b, t, h % key_heads]
                memory = memory * torch.exp(log_decay[b, t, h])
                error = value[b, t, h] - memory.t() @ k
                memory = memory + torch.outer(k, beta[b, t, h] * error)
                out[b, t, h] = memory.t() @ q
                states[b, t, h] = memory
    return out, states
