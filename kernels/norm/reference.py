"""Plain float32 form of the normalisation, one vector at a time."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """`x * rsqrt(mean(x^2) + eps) * weight`, vector by vector; the weight is broadcast to x."""
    width = x.shape[-1]
    vectors = x.reshape(-1, width)
    weights = weight.expand(x.shape).reshape(-1, width)
    out = torch.empty_like(vectors)
    for i in range(vectors.shape[0]):
        mean = sum(float(value) ** 2 for value in vectors[i]) / width
        out[i] = vectors[i] / (mean + eps) ** 0.5 * weights[i]
    return out.reshape(x.shape)
