"""Batched root-mean-square normalisation in plain torch."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Normalises the last axis: `x * rsqrt(mean(x^2) + eps) * weight`.

    Args:
        x: float32 [..., width].
        weight: float32, broadcastable to x; a different weight per head or stream is [heads, width].
        eps: added to the mean of squares.

    Returns:
        A new tensor like x.

    Raises:
        ValueError: the last axes differ.
    """
    width = x.shape[-1]
    if weight.shape[-1] != width:
        raise ValueError(f"rms_norm: weight has {weight.shape[-1]} values a vector, x has {width}; they must be equal")
    length: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale = length.square_().mul_(1.0 / width).add_(eps).rsqrt_()
    return (x * scale).mul_(weight)
