"""Batched root-mean-square normalisation in plain torch."""

from __future__ import annotations

from functools import lru_cache

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
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale = torch.addcmul(_constant(eps, x.device), length, length, value=1.0 / width).rsqrt_()
    return (x * scale).mul_(weight)


@lru_cache(maxsize=16)
def _constant(value: float, device: torch.device) -> torch.Tensor:
    """A number as a tensor: added to a product in one operation instead of three."""
    return torch.tensor(value, device=device)
