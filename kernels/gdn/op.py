"""Gated DeltaNet over the rows of a window, compiled for the CPU; exact for every prefix of a span's rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.compiled.arrays import Floats, Integers
from kernels.compiled.delta import delta_learn, delta_step
from kernels.compiled.jit import compiled
from kernels.compiled.record import INTEGER, fields, floats
from kernels.compiled.scalar import dot, exp, norm_scale, sigmoid, silu
from kernels.compiled.vector import TILE
from kernels.matrix import MATRIX, Matrix, group_sums, multiply, multiply_tiles

UNIT_EPS = np.float32(1e-6)
# Above this, log(1 + e^x) is x in float32.
_LINEAR = np.float32(20)


class GdnWeights(NamedTuple):
    """Of one layer.

    Attributes:
        mix: [hidden, queries | keys | values | gate | alpha | beta].
        conv: float32 [taps, channels of queries, keys and values].
        rate: float32 [heads]: -exp(A).
        bias: float32 [heads]: of the time step.
        norm: float32 [dim].
        out: [heads * dim, hidden].
        key_heads: value head v uses key head v mod key_heads.
    """

    mix: Matrix
    conv: Floats
    rate: Floats
    bias: Floats
    norm: Floats
    out: Matrix
    key_heads: int


GDN = fields(
    GdnWeights,
    mix=MATRIX,
    conv=floats(2),
    rate=floats(1),
    bias=floats(1),
    norm=floats(1),
    out=MATRIX,
    key_heads=INTEGER,
)


class DeltaRows(NamedTuple):
    """What the rows of a window do to the states; a row depends on the rows before it in its span only.

    Attributes:
        raw: float32 [rows, at least channels]: inputs of the convolution.
        key: float32 [rows, key_heads, dim], of unit length.
        update: float32 [rows, heads, dim]: `U_t = beta_t (v_t - a_t S_(t-1)' k_t)`.
        decay: float32 [rows, heads]: log a_t.
    """

    raw: Floats
    key: Floats
    update: Floats
    decay: Floats


@compiled
def run_delta(
    block: Floats, weights: GdnWeights, history: Floats, state: Floats, spans: Integers, eps: np.float32
) -> tuple[Floats, DeltaRows]:
    """Runs the mixer over all spans without changing their states.

    Args:
        block: float32 [rows, hidden].
        weights: of the layer.
        history: float32 [slots, taps - 1, channels]: inputs of the convolution before the window.
        state: float32 [slots, heads, dim (key), dim (value)].
        spans: int64 [spans, 4]: slot, first row, rows, position of the first.
        eps: of the gated norm.

    Returns:
        float32 [rows, at least hidden], and what the commit needs.
    """
    delta = delta_rows(1, block.shape[0], weights, state.shape[1], state.shape[2])
    own = DeltaRows(delta.raw[0], delta.key[0], delta.update[0], delta.decay[0])
    return fill_delta(block, weights, history, state, spans, eps, own), own


@compiled
def delta_rows(layers: int, rows: int, weights: GdnWeights, heads: int, dim: int) -> DeltaRows:
    """Room for what the rows of several layers do to their states; each array has the layers as its first axis."""
    columns = (weights.mix.codes.shape[0] + weights.mix.floats.shape[0]) * TILE
    return DeltaRows(
        np.empty((layers, rows, columns), np.float32),
        np.empty((layers, rows, weights.key_heads, dim), np.float32),
        np.empty((layers, rows, heads, dim), np.float32),
        np.empty((layers, rows, heads), np.float32),
    )


@compiled
def fill_delta(
    block: Floats,
    weights: GdnWeights,
    history: Floats,
    state: Floats,
    spans: Integers,
    eps: np.float32,
    delta: DeltaRows,
) -> Floats:
    """As `run_delta`, but what the commit needs goes into `delta`."""
    mixed, key, update, decay = delta
    multiply_tiles(block, group_sums(block, weights.mix), weights.mix, 0, mixed.shape[1] // TILE, mixed)
    heads, dim = state.shape[1], state.shape[2]
    rows, key_heads = mixed.shape[0], weights.key_heads
    channels = weights.conv.shape[1]
    gates, alphas = channels, channels + heads * dim
    inner = np.empty((rows, heads * dim), np.float32)
    signal, memory = np.empty((rows, channels), np.float32), np.empty((dim, dim), np.float32)
    for s in range(spans.shape[0]):
        slot, first = spans[s, 0], spans[s, 1]
        for t in range(spans[s, 2]):
            r = first + t
            convolve(history[slot], mixed, first, t, weights.conv, 1, signal[r])
            _unit_keys(signal[r], key[r])
            for h in range(heads):
                decay[r, h] = weights.rate[h] * _softplus(mixed[r, alphas + h] + weights.bias[h])
        for h in range(heads):
            memory[:, :] = state[slot, h]
            head, value_at = h % key_heads, (2 * key_heads + h) * dim
            for r in range(first, first + spans[s, 2]):
                share, beta = exp(decay[r, h]), sigmoid(mixed[r, alphas + heads + h])
                query_at, key_at, at = r * channels, (r * key_heads + head) * dim, (r * heads + h) * dim
                delta_step(
                    memory,
                    0,
                    signal,
                    query_at + head * dim,
                    key,
                    key_at,
                    signal,
                    query_at + value_at,
                    share,
                    beta,
                    update,
                    at,
                    inner,
                    at,
                    dim,
                )
                _gate(
                    inner[r, h * dim : (h + 1) * dim],
                    mixed[r, gates + h * dim : gates + (h + 1) * dim],
                    weights.norm,
                    eps,
                )
    return multiply(inner, weights.out)


@compiled
def commit_delta(state: Floats, rows: DeltaRows, spans: Integers, kept: Integers) -> None:
    """Brings the states [slots, heads, dim, dim] past the first `kept` rows of every span, in place."""
    heads, dim = state.shape[1], state.shape[2]
    key_heads = rows.key.shape[1]
    for s in range(spans.shape[0]):
        for h in range(heads):
            at = (spans[s, 0] * heads + h) * dim * dim
            for r in range(spans[s, 1], spans[s, 1] + kept[s]):
                key_at = (r * key_heads + h % key_heads) * dim
                delta_learn(state, at, rows.key, key_at, exp(rows.decay[r, h]), rows.update, (r * heads + h) * dim, dim)


@compiled
def commit_history(history: Floats, rows: Floats, spans: Integers, kept: Integers) -> None:
    """Moves the histories [slots, before, width] past the first `kept` rows [rows, at least width] of every span."""
    before, width = history.shape[1], history.shape[2]
    for s in range(spans.shape[0]):
        own = history[spans[s, 0]]
        for i in range(before):
            source = i + kept[s]
            if source < before:
                own[i, :] = own[source]
            else:
                own[i, :] = rows[spans[s, 1] + source - before, :width]


@compiled
def convolve(history: Floats, rows: Floats, first: int, t: int, weight: Floats, dilation: int, out: Floats) -> None:
    """Depthwise causal convolution and silu of one row.

    Args:
        history: float32 [(taps - 1) * dilation, channels] before the span.
        rows: float32 [rows, at least channels].
        first: row of the span's first.
        t: row within the span.
        weight: float32 [taps, channels]; the last tap multiplies the newest row.
        dilation: rows between two taps.
        out: float32 [channels].
    """
    before = history.shape[0]
    for tap in range(weight.shape[0]):
        at = t + tap * dilation
        source = history[at] if at < before else rows[first + at - before]
        if tap == 0:
            for i in range(out.shape[0]):
                out[i] = source[i] * weight[0, i]
        else:
            for i in range(out.shape[0]):
                out[i] += source[i] * weight[tap, i]
    for i in range(out.shape[0]):
        out[i] = silu(out[i])


@compiled
def _gate(out: Floats, gate: Floats, norm: Floats, eps: np.float32) -> None:
    """`norm(out) * sigmoid(gate)` in place."""
    scale = norm_scale(out, eps)
    for i in range(out.shape[0]):
        out[i] = out[i] * scale * norm[i] * sigmoid(gate[i])


@compiled
def _unit_keys(signal: Floats, key: Floats) -> None:
    """Scales queries (also by 1/sqrt(dim)) and keys of a row to unit length; the keys go to `key` [key_heads, dim]."""
    key_heads, dim = key.shape
    small = np.float32(1) / np.sqrt(np.float32(dim))
    for head in range(2 * key_heads):
        vector = signal[head * dim : (head + 1) * dim]
        scale = np.float32(1) / np.sqrt(dot(vector, vector) + UNIT_EPS)
        if head < key_heads:
            for i in range(dim):
                vector[i] *= scale * small
        else:
            for i in range(dim):
                key[head - key_heads, i] = vector[i] * scale


@compiled
def _softplus(x: np.float32) -> np.float32:
    return x if x > _LINEAR else np.log1p(np.exp(x))
