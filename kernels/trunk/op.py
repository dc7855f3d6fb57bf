"""A window over all layers, its commit, and a pass of the draft layer: one compiled call each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.attention.op import KvPages
from kernels.block.op import Places, attention_block, enter_draft, expert_block, head_of, linear_of
from kernels.compiled.arrays import Array, Floats, Integers
from kernels.compiled.jit import compiled
from kernels.compiled.record import recaller
from kernels.gdn.op import DeltaRows, commit_delta, commit_history, delta_rows, fill_delta
from kernels.hyper.op import read_streams, write_streams
from kernels.matrix import group_sums, multiply_tiles
from kernels.ngram.op import PLE, add_values
from kernels.qsa.op import IndexPages
from kernels.trunk.slots import Slots

_ple_of = recaller(PLE)


class TrunkWeights(NamedTuple):
    """Records of the layers, and what lies around them.

    Attributes:
        full: uint8 [layers]: whether a layer attends to everything.
        mixers: int64 [layers, numbers]: an ATTENTION_BLOCK or a LINEAR_BLOCK each, filled up with zeros.
        experts: int64 [layers, numbers]: an EXPERT_BLOCK each.
        ple: int64 [numbers]: a PLE.
        ple_layer: before which it is added; -1 for none.
        head: int64 [numbers]: a HEAD_BLOCK.
        embedding: float32 [vocabulary, hidden].
        streams: that a token's row is spread to.
    """

    full: Array
    mixers: Integers
    experts: Integers
    ple: Integers
    ple_layer: int
    head: Integers
    embedding: Floats
    streams: int


class Undecided(NamedTuple):
    """What a window leaves behind until it is committed.

    Attributes:
        delta: of the linear layers, which are the first axis of each array.
        index: float32 [full layers, rows, indexer dim]: raw indexer keys.
        ple: float32 [rows, streams * hidden]: inputs of the n-gram convolution; [0, 0] without.
    """

    delta: DeltaRows
    index: Floats  # type: ignore[assignment]  # instead of the search that every tuple has
    ple: Floats


@compiled
def run_trunk(
    tokens: Integers,
    found: Floats,
    weights: TrunkWeights,
    places: Places,
    slots: Slots,
    wanted: Integers,
    eps: np.float32,
    logits: Floats,
) -> tuple[Floats, Undecided]:
    """Runs rows over all layers.

    Args:
        tokens: int64 [rows].
        found: float32 [rows, width]: their n-gram rows; [rows, 0] without.
        weights: of the trunk.
        places: where the rows read and write.
        slots: of the model; only pages are written.
        wanted: int64 [some rows]: whose logits are wanted.
        eps: of the norms.
        logits: float32 [some rows, tiles of the vocabulary]: written.

    Returns:
        Streams [rows, streams, hidden], and what a commit needs.
    """
    rows, hidden, streams = tokens.shape[0], weights.embedding.shape[1], weights.streams
    x = np.empty((rows, streams, hidden), np.float32)
    for r in range(rows):
        for s in range(streams):
            for i in range(hidden):
                x[r, s, i] = weights.embedding[tokens[r], i]
    layers = weights.full.shape[0]
    linear = full = 0
    delta = DeltaRows(
        np.empty((0, rows, 0), np.float32),
        np.empty((0, rows, 0, 0), np.float32),
        np.empty((0, rows, 0, 0), np.float32),
        np.empty((0, rows, 0), np.float32),
    )
    index = np.empty((slots.index.shape[0], rows, slots.index.shape[3]), np.float32)
    ple = np.empty((0, 0), np.float32)
    for layer in range(layers):
        if layer == weights.ple_layer:
            _, ple = add_values(x, found, _ple_of(weights.ple), slots.ple, places.spans, eps)
        if weights.full[layer]:
            pools = KvPages(slots.keys[full], slots.values[full])
            pages = IndexPages(slots.pooled[full], slots.index[full])
            _, _, _, keys, _ = attention_block(x, weights.mixers[layer], places, pools, pages, eps)
            index[full, :, :] = keys
            full += 1
        else:
            own = linear_of(weights.mixers[layer])
            if linear == 0:
                delta = delta_rows(slots.conv.shape[0], rows, own.mixer, slots.delta.shape[2], slots.delta.shape[3])
            block, inject = read_streams(x, own.read, eps)
            room = DeltaRows(delta.raw[linear], delta.key[linear], delta.update[linear], delta.decay[linear])
            out = fill_delta(block, own.mixer, slots.conv[linear], slots.delta[linear], places.spans, eps, room)
            write_streams(x, out, inject)
            linear += 1
        expert_block(x, weights.experts[layer], eps)
    _project(x, wanted, weights.head, eps, logits)
    return x, Undecided(delta, index, ple)


@compiled
def commit_rows(slots: Slots, undecided: Undecided, spans: Integers, kept: Integers) -> None:
    """Brings the states of all layers past the first `kept` rows of every span."""
    delta = undecided.delta
    for layer in range(slots.delta.shape[0]):
        commit_history(slots.conv[layer], delta.raw[layer], spans, kept)
        own = DeltaRows(delta.raw[layer], delta.key[layer], delta.update[layer], delta.decay[layer])
        commit_delta(slots.delta[layer], own, spans, kept)
    for layer in range(slots.index.shape[0]):
        commit_history(slots.index[layer], undecided.index[layer], spans, kept)
    if undecided.ple.shape[0]:
        commit_history(slots.ple, undecided.ple, spans, kept)


class DraftWeights(NamedTuple):
    """Records of the draft layer.

    Attributes:
        entry: int64 [numbers]: an ENTRY.
        mixer: an ATTENTION_BLOCK.
        experts: an EXPERT_BLOCK.
        head: a HEAD_BLOCK.
        embedding: float32 [vocabulary, hidden].
    """

    entry: Integers
    mixer: Integers
    experts: Integers
    head: Integers
    embedding: Floats


@compiled
def run_draft(
    streams: Floats,
    tokens: Integers,
    weights: DraftWeights,
    places: Places,
    slots: Slots,
    wanted: Integers,
    eps: np.float32,
    logits: Floats,
) -> Floats:
    """Runs rows over the draft layer, whose pages are the last.

    Args:
        streams: float32 [rows, streams, hidden]: of the trunk, or of the draft row before.
        tokens: int64 [rows]: that follow.
        weights: of the layer.
        places: where the rows read and write.
        slots: of the model.
        wanted: int64 [some rows]: whose logits are wanted.
        eps: of the norms.
        logits: float32 [some rows, tiles of the vocabulary]: written.

    Returns:
        Streams [rows, streams, hidden].
    """
    embedded = np.empty((tokens.shape[0], weights.embedding.shape[1]), np.float32)
    for r in range(tokens.shape[0]):
        for i in range(embedded.shape[1]):
            embedded[r, i] = weights.embedding[tokens[r], i]
    x = enter_draft(streams, embedded, weights.entry, eps)
    last = slots.keys.shape[0] - 1
    pools, pages = KvPages(slots.keys[last], slots.values[last]), IndexPages(slots.pooled[0], slots.index[0])
    attention_block(x, weights.mixer, places, pools, pages, eps)
    expert_block(x, weights.experts, eps)
    _project(x, wanted, weights.head, eps, logits)
    return x


@compiled
def _project(x: Floats, wanted: Integers, head: Integers, eps: np.float32, logits: Floats) -> None:
    """Logits of some rows of the streams x [rows, streams, hidden]."""
    own = head_of(head)
    some = np.empty((wanted.shape[0], x.shape[1], x.shape[2]), np.float32)
    for n in range(wanted.shape[0]):
        some[n, :, :] = x[wanted[n]]
    mixed, _ = read_streams(some, own.read, eps)
    tiles = own.output.codes.shape[0] + own.output.floats.shape[0]
    multiply_tiles(mixed, group_sums(mixed, own.output), own.output, 0, tiles, logits)
