"""Inverse frequencies of rotary pairs, with the scalings for contexts beyond the trained one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """How positions are stretched.

    Attributes:
        kind: "linear" divides every frequency; "yarn" divides the slow ones and leaves the fast ones.
        factor: stretched over trained context, at least 1.
        trained_tokens: the trained context; only for yarn.
        fast_turns, slow_turns: pairs that turn more often than this within the trained context are left, those that
            turn more rarely are divided, and between them the share goes in a straight line.
    """

    kind: str
    factor: float
    trained_tokens: int = 0
    fast_turns: float = 32.0
    slow_turns: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in ("linear", "yarn"):
            raise ValueError(f"rope scaling is {self.kind!r}; allowed are 'linear' and 'yarn'")
        if not 1.0 <= self.factor < math.inf:
            raise ValueError(f"rope scaling factor is {self.factor}; allowed are finite numbers from 1")
        if self.kind == "yarn" and self.trained_tokens < 1:
            raise ValueError(f"rope scaling by yarn needs the trained context, found {self.trained_tokens} tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frequencies:
    """What turns positions into angles.

    Attributes:
        inverse: float32 [pairs]; the angle of pair i is the float32 product with the position.
        axis: int32 [pairs]: 0 time, 1 height, 2 width.
        magnitude: factor of cosines and sines (YaRN's attention factor; else 1).
    """

    inverse: torch.Tensor
    axis: torch.Tensor
    magnitude: float = 1.0

    @property
    def pairs(self) -> int:
        """Rotated pairs of a head."""
        return self.inverse.shape[0]


def frequencies(
    *,
    dims: int,
    theta: float,
    sections: tuple[int, int, int],
    scaling: Scaling | None = None,
    device: torch.device | str = "cpu",
) -> Frequencies:
    """The table, made on the host in float32 in the same steps as `rope_tables`, then brought to the device.

    Args:
        dims: rotated values of a head.
        theta: base.
        sections: pairs of each axis, interleaved as `rope_tables` says.
        scaling: for long contexts. Source of YaRN: arXiv 2309.00071, with the attention factor 0.1 ln(factor) + 1.
        device: where kernels read it.

    Raises:
        ValueError: dims is not a positive even number.
    """
    if dims < 2 or dims % 2:
        raise ValueError(f"rope rotates pairs: dims is {dims}, allowed are even numbers from 2")
    inverse = 1.0 / (theta ** (torch.arange(0, dims, 2, dtype=torch.float32) / dims))
    pair = torch.arange(dims // 2)
    axis = torch.zeros(dims // 2, dtype=torch.int32)
    axis[(pair % 3 == 1) & (pair < 3 * sections[1])] = 1
    axis[(pair % 3 == 2) & (pair < 3 * sections[2])] = 2
    magnitude = 1.0
    if scaling is not None and scaling.kind == "linear":
        inverse = inverse / scaling.factor
    if scaling is not None and scaling.kind == "yarn":
        low = max(math.floor(_pair_of(scaling.fast_turns, scaling.trained_tokens, dims, theta)), 0)
        high = min(math.ceil(_pair_of(scaling.slow_turns, scaling.trained_tokens, dims, theta)), dims - 1)
        stretched = ((pair.to(torch.float32) - low) / max(high - low, 0.001)).clamp(0, 1)
        inverse = inverse / scaling.factor * stretched + inverse * (1 - stretched)
        magnitude = 0.1 * math.log(scaling.factor) + 1.0
    return Frequencies(inverse=inverse.to(device), axis=axis.to(device), magnitude=magnitude)


def _pair_of(turns: float, tokens: int, dims: int, theta: float) -> float:
    """The pair (a real number) that turns so often within `tokens`."""
    return dims * math.log(tokens / (turns * 2 * math.pi)) / (2 * math.log(theta))
