"""Batched hyper-connection read and write in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.norm import rms_norm


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadWeights:
    """Weights of one read, laid out for few products.

    Attributes:
        norm: float32 [streams, hidden].
        mix: float32 [streams * hidden, low] or [.., low + streams]: transposed down (and inject) divided by `streams`.
        up: float32 [low, streams * hidden]: transposed.
        low: rank of the gates.
    """

    norm: torch.Tensor
    mix: torch.Tensor
    up: torch.Tensor
    low: int


def read_streams(x: torch.Tensor, weights: ReadWeights, *, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Reads the streams into the input of a block.

    Each stream is normalised on its own; `gate = sigmoid(silu(xn down' / streams) up')`; the result is the mean
    over streams of `gate * xn`; the inject weights are `2 sigmoid(xn inject' / streams)`.

    Args:
        x: float32 [rows, streams, hidden].
        weights: of this read.
        eps: of the norm.

    Returns:
        Block input [rows, hidden], and inject weights [rows, streams] ([rows, 0] when `mix` has none).

    Raises:
        ValueError: shapes do not belong together.
    """
    rows, streams, hidden = x.shape
    if weights.norm.shape != (streams, hidden) or weights.up.shape != (weights.low, streams * hidden):
        raise ValueError(
            f"read_streams: weights are not for {streams} streams of {hidden}; found norm {tuple(weights.norm.shape)}"
        )
    normed = rms_norm(x, weights.norm, eps=eps).view(rows, streams * hidden)
    mixed = torch.mm(normed, weights.mix)
    low = torch.nn.functional.silu(mixed[:, : weights.low])
    gate = torch.mm(low, weights.up).sigmoid_().mul_(normed)
    block = gate.view(rows, streams, hidden).sum(1).mul_(1.0 / streams)
    inject = mixed[:, weights.low :].sigmoid().mul_(2.0)
    return block, inject


def write_streams(x: torch.Tensor, out: torch.Tensor, inject: torch.Tensor) -> None:
    """Adds a block's output to every stream in place: `x[r, s] += inject[r, s] * out[r]`.

    Args:
        x: float32 [rows, streams, hidden].
        out: float32 [rows, hidden].
        inject: float32 [rows, streams].

    Raises:
        ValueError: row or stream counts differ.
    """
    if x.shape[:2] != inject.shape or out.shape != (x.shape[0], x.shape[2]):
        raise ValueError(
            f"write_streams: x {tuple(x.shape)}, out {tuple(out.shape)}, inject {tuple(inject.shape)} do not match"
        )
    x.addcmul_(inject.unsqueeze(2), out.unsqueeze(1))
