"""Plain float32 rotary positions, pair by pair."""

from __future__ import annotations

import math

import torch


def rotate(
    x: torch.Tensor, positions: torch.Tensor, *, dims: int, theta: float, sections: tuple[int, int, int]
) -> torch.Tensor:
    """Rotates pairs (i, i + dims/2) of the first `dims` values.

    Args:
        x: [rows, heads, width].
        positions: int64 [3, rows]: time, height, width.
    """
    out = x.clone()
    half = dims // 2
    for r in range(x.shape[0]):
        for i in range(half):
            axis = 0
            if i % 3 == 1 and i < 3 * sections[1]:
                axis = 1
            if i % 3 == 2 and i < 3 * sections[2]:
                axis = 2
            angle = float(positions[axis, r]) * theta ** (-2 * i / dims)
            cos, sin = math.cos(angle), math.sin(angle)
            for h in range(x.shape[1]):
                a, b = float(x[r, h, i]), float(x[r, h, i + half])
                out[r, h, i] = a * cos - b * sin
                out[r, h, i + half] = b * cos + a * sin
    return out
