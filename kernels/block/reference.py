"""Plain float32 form of what only the draft layer has."""

from __future__ import annotations

import torch


def enter_draft(
    streams: torch.Tensor,
    embedded: torch.Tensor,
    *,
    token_norm: torch.Tensor,
    state_norm: torch.Tensor,
    from_token: torch.Tensor,
    from_state: torch.Tensor,
    grouped: bool,
    eps: float,
) -> torch.Tensor:
    """`norm(streams) from_state' + norm(embedded) from_token'`; streams [rows, streams, hidden], matrices [out, in]."""
    axes = (-1,) if grouped else (-2, -1)
    state = streams / torch.sqrt((streams**2).mean(axes, keepdim=True) + eps) * state_norm
    token = embedded / torch.sqrt((embedded**2).mean(-1, keepdim=True) + eps) * token_norm
    return state @ from_state.t() + (token @ from_token.t()).unsqueeze(1)
