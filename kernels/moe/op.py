"""Mixture of experts over all rows of a window, compiled for the CPU; an expert's tiles are read once a window."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from kernels.compiled.arrays import Floats, Integers
from kernels.compiled.jit import compiled
from kernels.compiled.record import INTEGER, fields
from kernels.compiled.scalar import exp, sigmoid, silu
from kernels.compiled.vector import TILE
from kernels.matrix import MATRIX, Matrix, group_sums, multiply, multiply_tiles


class MixWeights(NamedTuple):
    """What every row of a block needs.

    Attributes:
        mix: [hidden, shared gate | shared up | router | the shared expert's gate].
        shared_down: [shared ff, hidden].
        experts: that there are.
        used: experts of a row.
    """

    mix: Matrix
    shared_down: Matrix
    experts: int
    used: int


class ExpertWeights(NamedTuple):
    """The routed experts, one after the other.

    Attributes:
        gate_up: [hidden, for each expert its gates, filled up to whole tiles, then as many columns of ups].
        down: [ff, for each expert its columns, filled up to whole tiles].
        experts: that there are.
    """

    gate_up: Matrix
    down: Matrix
    experts: int


MIX = fields(MixWeights, mix=MATRIX, shared_down=MATRIX, experts=INTEGER, used=INTEGER)
EXPERTS = fields(ExpertWeights, gate_up=MATRIX, down=MATRIX, experts=INTEGER)


@compiled
def route(x: Floats, weights: MixWeights) -> tuple[Integers, Floats, Floats]:
    """Chooses experts and computes the shared one. Renormalised shares of a softmax are the softmax of the chosen.

    Args:
        x: float32 [rows, hidden].
        weights: of the block; as many experts as are used, or more.

    Returns:
        Expert ids int64 [rows, used], best first (of equals the earlier); their shares float32 [rows, used]; the
        shared expert's part of the result float32 [rows, hidden].
    """
    rows, hidden, used, experts = x.shape[0], x.shape[1], weights.used, weights.experts
    ids, shares = np.empty((rows, used), np.int64), np.empty((rows, used), np.float32)
    ff = max(weights.shared_down.codes.shape[1], weights.shared_down.floats.shape[1])
    mixed = multiply(x, weights.mix)
    inner = np.empty((rows, ff), np.float32)
    for r in range(rows):
        for i in range(ff):
            inner[r, i] = silu(mixed[r, i]) * mixed[r, ff + i]
        _best(mixed[r, 2 * ff : 2 * ff + experts], ids[r], shares[r])
    shared = multiply(inner, weights.shared_down)
    out = np.empty((rows, hidden), np.float32)
    for r in range(rows):
        gate = sigmoid(mixed[r, 2 * ff + experts])
        for i in range(hidden):
            out[r, i] = gate * shared[r, i]
    return ids, shares, out


@compiled
def add_experts(x: Floats, ids: Integers, shares: Floats, weights: ExpertWeights, out: Floats) -> None:
    """Adds `sum over chosen e of share_e down_e(silu(gate_e x) * up_e x)` to out, experts in the order of their ids.

    Args:
        x: float32 [rows, hidden].
        ids: int64 [rows, used].
        shares: float32 [rows, used].
        weights: of the experts.
        out: float32 [rows, hidden].
    """
    used, hidden = ids.shape[1], x.shape[1]
    gate_up, down = weights.gate_up, weights.down
    ff = max(down.codes.shape[1], down.floats.shape[1])
    ups = (gate_up.codes.shape[0] + gate_up.floats.shape[0]) // weights.experts
    downs = (down.codes.shape[0] + down.floats.shape[0]) // weights.experts
    starts, pairs = _by_expert(ids, weights.experts)
    most = 0
    for expert in range(weights.experts):
        most = max(most, starts[expert + 1] - starts[expert])
    sums = group_sums(x, gate_up)
    some, some_sums = np.empty((most, hidden), np.float32), np.empty((most, sums.shape[1]), np.float32)
    inner, both = np.empty((most, ff), np.float32), np.empty((most, ups * TILE), np.float32)
    result, up_at = np.empty((most, downs * TILE), np.float32), ups * TILE // 2
    for expert in range(weights.experts):
        first, count = starts[expert], starts[expert + 1] - starts[expert]
        if count == 0:
            continue
        for n in range(count):
            r = pairs[first + n] // used
            for i in range(hidden):
                some[n, i] = x[r, i]
            for i in range(sums.shape[1]):
                some_sums[n, i] = sums[r, i]
        multiply_tiles(some[:count], some_sums[:count], gate_up, expert * ups, (expert + 1) * ups, both[:count])
        for n in range(count):
            for i in range(ff):
                inner[n, i] = silu(both[n, i]) * both[n, up_at + i]
        own = inner[:count]
        multiply_tiles(own, group_sums(own, down), down, expert * downs, (expert + 1) * downs, result[:count])
        for n in range(count):
            r, share = pairs[first + n] // used, shares[pairs[first + n] // used, pairs[first + n] % used]
            for i in range(hidden):
                out[r, i] += share * result[n, i]


@compiled
def _by_expert(ids: Integers, experts: int) -> tuple[Integers, Integers]:
    """Where each expert's pairs of row and place begin, [experts + 1]; and the pairs, `row * used + place`."""
    used = ids.shape[1]
    starts, pairs = np.zeros(experts + 2, np.int64), np.empty(ids.shape[0] * used, np.int64)
    for r in range(ids.shape[0]):
        for place in range(used):
            starts[ids[r, place] + 2] += 1
    for expert in range(experts):
        starts[expert + 2] += starts[expert + 1]
    for r in range(ids.shape[0]):
        for place in range(used):
            expert = ids[r, place] + 1
            pairs[starts[expert]] = r * used + place
            starts[expert] += 1
    return starts, pairs


def add_fetched(x: Floats, ids: Integers, shares: Floats, fetch: Callable[[int], ExpertWeights], out: Floats) -> None:
    """The same, one touched expert after the other; no more than one is held at a time.

    Args:
        x: float32 [rows, hidden].
        ids: int64 [rows, used].
        shares: float32 [rows, used].
        fetch: brings one expert.
        out: float32 [rows, hidden].
    """
    for expert in np.unique(ids).tolist():
        row, place = np.nonzero(ids == expert)
        some = out[row]
        add_experts(x[row], np.zeros((row.size, 1), np.int64), shares[row, place][:, None].copy(), fetch(expert), some)
        out[row] = some


@compiled
def _best(logits: Floats, ids: Integers, shares: Floats) -> None:
    """The largest logits, best first, and their softmax."""
    used = ids.shape[0]
    for place in range(used):
        best = -1
        for e in range(logits.shape[0]):
            taken = False
            for before in range(place):
                taken |= ids[before] == e
            if not taken and (best < 0 or logits[e] > logits[best]):
                best = e
        ids[place] = best
        shares[place] = logits[best]
    total, largest = np.float32(0), shares[0]
    for place in range(used):
        shares[place] = exp(shares[place] - largest)
        total += shares[place]
    for place in range(used):
        shares[place] /= total
