"""N-gram hashing and gating over the rows of a window, compiled for the CPU; integers stay 64 bits end to end."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.compiled.arrays import Floats, Integers
from kernels.compiled.jit import compiled
from kernels.compiled.record import INTEGER, fields, floats
from kernels.compiled.scalar import dot, norm_into, sigmoid
from kernels.gdn.op import convolve
from kernels.matrix import MATRIX, Matrix, multiply


class PleWeights(NamedTuple):
    """Weights of the gate and the convolution.

    Attributes:
        key: [width, streams * hidden].
        value: [width, hidden].
        norm_key: float32 [streams, hidden].
        norm_query: the same.
        norm_conv: the same.
        conv: float32 [taps, streams * hidden].
        dilation: rows between two taps.
    """

    key: Matrix
    value: Matrix
    norm_key: Floats
    norm_query: Floats
    norm_conv: Floats
    conv: Floats
    dilation: int


PLE = fields(
    PleWeights,
    key=MATRIX,
    value=MATRIX,
    norm_key=floats(2),
    norm_query=floats(2),
    norm_conv=floats(2),
    conv=floats(2),
    dilation=INTEGER,
)


class Hash(NamedTuple):
    """Constants of the hash.

    Attributes:
        multipliers: int64 [order]; products with token ids stay below 2^63.
        head_rows: int64 [heads]: rows of each head's table, orders 2, 3, ... one after the other.
        head_offsets: int64 [heads]: where each head's table begins.
        reset: token that ends the context, and stands for everything hidden.
    """

    multipliers: Integers
    head_rows: Integers
    head_offsets: Integers
    reset: int


@compiled
def hash_rows(tokens: Integers, history: Integers, spans: Integers, constants: Hash) -> Integers:
    """Table rows: `mix_n = xor over s < n of c_s * m_s`; head h of order n takes `mix_n mod rows_h + offset_h`.

    c_0 is the row's token, c_s the one s before it; a reset token among the predecessors hides what is older.

    Args:
        tokens: int64 [rows].
        history: int64 [spans, order - 1]: tokens before each span, oldest first; reset before the start.
        spans: int64 [spans, 4]: slot, first row, rows, position of the first.
        constants: of the hash; its heads divide evenly among the orders.

    Returns:
        int64 [rows, heads].
    """
    multipliers, head_rows, reset = constants.multipliers, constants.head_rows, constants.reset
    order = multipliers.shape[0]
    heads = head_rows.shape[0] // (order - 1)
    numbers = np.empty((tokens.shape[0], head_rows.shape[0]), np.int64)
    for s in range(spans.shape[0]):
        first = spans[s, 1]
        for t in range(spans[s, 2]):
            mixed = tokens[first + t] * multipliers[0]
            ended = False
            for back in range(1, order):
                token = tokens[first + t - back] if back <= t else history[s, order - 1 + t - back]
                ended = ended or token == reset
                mixed ^= (reset if ended else token) * multipliers[back]
                for head in range((back - 1) * heads, back * heads):
                    numbers[first + t, head] = mixed % head_rows[head] + constants.head_offsets[head]
    return numbers


@compiled
def add_values(
    x: Floats, found: Floats, weights: PleWeights, history: Floats, spans: Integers, eps: np.float32
) -> tuple[Floats, Floats]:
    """Adds gated values and their convolution to the streams, in place.

    `s = sum(norm(key) * norm(x)) / sqrt(hidden)` per stream, `gate = sigmoid(sign(s) sqrt(max(|s|, 1e-6)))`; added is
    `gate * value + convolution(norm(gate * value))`.

    Args:
        x: float32 [rows, streams, hidden].
        found: float32 [rows, width]: the gathered table rows of each position, one after the other.
        weights: of gate and convolution.
        history: float32 [slots, (taps - 1) * dilation, streams * hidden]: inputs of the convolution before the window.
        spans: int64 [spans, 4]: slot, first row, rows, position of the first.
        eps: of the norms, per stream.

    Returns:
        What was added [rows, streams, hidden], and the inputs of the convolution [rows, streams * hidden].
    """
    rows, streams, hidden = x.shape
    key, value = multiply(found, weights.key), multiply(found, weights.value)
    added, normed = np.empty(x.shape, np.float32), np.empty((rows, streams * hidden), np.float32)
    mixed = np.empty(streams * hidden, np.float32)
    left, right = np.empty(hidden, np.float32), np.empty(hidden, np.float32)
    for r in range(rows):
        for s in range(streams):
            at = s * hidden
            norm_into(left, key[r, at : at + hidden], weights.norm_key[s], eps)
            norm_into(right, x[r, s], weights.norm_query[s], eps)
            gate = _open(dot(left, right) / np.sqrt(np.float32(hidden)))
            for i in range(hidden):
                added[r, s, i] = gate * value[r, i]
            norm_into(normed[r, at : at + hidden], added[r, s], weights.norm_conv[s], eps)
    for n in range(spans.shape[0]):
        slot, first = spans[n, 0], spans[n, 1]
        for t in range(spans[n, 2]):
            convolve(history[slot], normed, first, t, weights.conv, weights.dilation, mixed)
            for s in range(streams):
                for i in range(hidden):
                    added[first + t, s, i] += mixed[s * hidden + i]
                    x[first + t, s, i] += added[first + t, s, i]
    return added, normed


@compiled
def _open(score: np.float32) -> np.float32:
    """The gate of a score."""
    root = np.sqrt(max(abs(score), np.float32(1e-6)))
    if score == np.float32(0):
        root = np.float32(0)
    return sigmoid(-root if score < np.float32(0) else root)
