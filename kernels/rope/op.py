"""Rotary tables in plain torch."""

from __future__ import annotations

import torch


def rope_tables(
    positions: torch.Tensor, *, dims: int, theta: float, sections: tuple[int, int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and signed sines for a rotation.

    The angle is a float32 product of float32 position and float32 inverse frequency, as in the reference
    implementation: at 200,000 tokens its rounding is visible, so it is repeated and not improved.

    Args:
        positions: int64 [rows] for text, or [3, rows] for time, height and width.
        dims: rotated values of a head.
        theta: base.
        sections: pairs of each axis; pair i follows the height if i mod 3 = 1 and i < 3 * sections[1], the width
            if i mod 3 = 2 and i < 3 * sections[2], else the time.

    Returns:
        float32 [rows, 1, dims] twice; the first half of the sines is negated.

    Raises:
        ValueError: positions have another shape.
    """
    inverse = 1.0 / (theta ** (torch.arange(0, dims, 2, dtype=torch.float32, device=positions.device) / dims))
    if positions.dim() == 1:
        angles = positions.to(torch.float32).unsqueeze(1) * inverse
    elif positions.dim() == 2 and positions.shape[0] == 3:
        pair = torch.arange(dims // 2, device=positions.device)
        axis = torch.zeros_like(pair)
        axis[(pair % 3 == 1) & (pair < 3 * sections[1])] = 1
        axis[(pair % 3 == 2) & (pair < 3 * sections[2])] = 2
        angles = positions.to(torch.float32)[axis].t() * inverse
    else:
        raise ValueError(
            f"rope_tables: positions have shape {tuple(positions.shape)}; allowed are [rows] and [3, rows]"
        )
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), 1).unsqueeze(1), torch.cat((-sin, sin), 1).unsqueeze(1)
