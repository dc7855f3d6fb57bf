"""Hyper-connection read and write over all rows of a window, compiled for the CPU."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.compiled.arrays import Floats
from kernels.compiled.jit import compiled
from kernels.compiled.record import INTEGER, fields, floats
from kernels.compiled.scalar import norm_into, sigmoid, silu
from kernels.matrix import MATRIX, Matrix, multiply


class ReadWeights(NamedTuple):
    """Weights of one read.

    Attributes:
        norm: float32 [streams, hidden].
        mix: [streams * hidden, low], or [.., low + streams] with inject: down and inject divided by `streams`.
        up: [low, streams * hidden].
        low: rank of the gates.
        injects: streams, or 0 where nothing is written back.
    """

    norm: Floats
    mix: Matrix
    up: Matrix
    low: int
    injects: int


READ = fields(ReadWeights, norm=floats(2), mix=MATRIX, up=MATRIX, low=INTEGER, injects=INTEGER)


@compiled
def read_streams(x: Floats, weights: ReadWeights, eps: np.float32) -> tuple[Floats, Floats]:
    """Reads the streams into the input of a block.

    Each stream is normalised on its own; `gate = sigmoid(silu(xn down' / streams) up')`; the result is the mean
    over streams of `gate * xn`; the inject weights are `2 sigmoid(xn inject' / streams)`.

    Args:
        x: float32 [rows, streams, hidden].
        weights: of this read.
        eps: of the norm.

    Returns:
        Block input [rows, hidden], and inject weights [rows, injects].
    """
    rows, streams, hidden = x.shape
    low = weights.low
    normed = np.empty((rows, streams * hidden), np.float32)
    for r in range(rows):
        for s in range(streams):
            norm_into(normed[r, s * hidden : (s + 1) * hidden], x[r, s], weights.norm[s], eps)
    mixed = multiply(normed, weights.mix)
    bent, inject = np.empty((rows, low), np.float32), np.empty((rows, weights.injects), np.float32)
    for r in range(rows):
        for i in range(low):
            bent[r, i] = silu(mixed[r, i])
        for s in range(weights.injects):
            inject[r, s] = np.float32(2) * sigmoid(mixed[r, low + s])
    gates = multiply(bent, weights.up)
    block = np.zeros((rows, hidden), np.float32)
    share = np.float32(1) / np.float32(streams)
    for r in range(rows):
        for s in range(streams):
            at = s * hidden
            for i in range(hidden):
                block[r, i] += sigmoid(gates[r, at + i]) * normed[r, at + i] * share
    return block, inject


@compiled
def write_streams(x: Floats, out: Floats, inject: Floats) -> None:
    """Adds a block's output to every stream in place: `x[r, s] += inject[r, s] * out[r]`.

    Args:
        x: float32 [rows, streams, hidden].
        out: float32 [rows, at least hidden].
        inject: float32 [rows, streams].
    """
    for r in range(x.shape[0]):
        for s in range(x.shape[1]):
            share = inject[r, s]
            for i in range(x.shape[2]):
                x[r, s, i] += share * out[r, i]
