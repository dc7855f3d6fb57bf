"""The trunk over one window of rows: every layer, provisional until committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from appliance.model.qwen4exp.attention import Tap, mix_attention
from appliance.model.qwen4exp.layers import LayerWeights
from appliance.model.qwen4exp.ngram import NgramEmbedding
from appliance.model.qwen4exp.rows import Rows, SpanRows
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.model.qwen4exp.stash import commit
from appliance.model.qwen4exp.state import State
from appliance.model.qwen4exp.weights import Weights
from kernels.block.op import expert_block, linear_block
from kernels.compiled.arrays import Array, Floats, Integers
from kernels.gdn.op import DeltaRows, GdnWeights
from kernels.hyper.op import read_streams, write_streams
from kernels.moe.op import ExpertWeights, route
from kernels.trunk.op import Undecided, run_trunk


def _ignore(name: str, value: Array) -> None:
    """The tap of a run that nobody watches."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A window after the last layer.

    Attributes:
        rows: of the window.
        streams: float32 [rows, streams, hidden].
        undecided: what a commit needs.
    """

    rows: Rows
    streams: Floats
    undecided: Undecided


class Trunk:
    """Layers of the trunk."""

    def __init__(self, spec: ModelSpec, weights: Weights, state: State, ngram: NgramEmbedding | None) -> None:
        self._spec = spec
        self._weights = weights
        self._state = state
        self._ngram = ngram

    def look_up(self, spans: Sequence[SpanRows]) -> tuple[Integers, Floats]:
        """Numbers and values of the rows' n-grams; nothing for each row where there are none."""
        if self._ngram is None:
            rows = sum(span.count for span in spans)
            return np.empty((rows, 0), np.int64), np.empty((rows, 0), np.float32)
        return self._ngram.look_up(spans, self._state)

    def run(
        self, rows: Rows, ngrams: tuple[Integers, Floats], wanted: Integers, logits: Floats, *, tap: Tap = _ignore
    ) -> Ran:
        """Runs the window over all layers; keys and values go to their pages, all else waits for the commit.

        Args:
            rows: of the window.
            ngrams: see `look_up`.
            wanted: int64 [some rows]: whose logits are wanted.
            logits: float32 [some rows, columns]: written; the vocabulary comes first.
            tap: of tests, which a window meets only when it goes block by block.
        """
        if tap is not _ignore or self._weights.trunk is None:
            return self._by_blocks(rows, ngrams, wanted, logits, tap)
        eps = np.float32(self._spec.rms_eps)
        state, weights = self._state.arrays, self._weights.trunk
        return Ran(rows, *run_trunk(rows.tokens, ngrams[1], weights, rows.places, state, wanted, eps, logits))

    def _by_blocks(
        self, rows: Rows, ngrams: tuple[Integers, Floats], wanted: Integers, logits: Floats, tap: Tap
    ) -> Ran:
        spec, slots = self._spec, self._state.arrays
        x = np.repeat(self._weights.embed(rows.tokens)[:, None], spec.streams, 1)
        delta: list[DeltaRows] = []
        index_keys: list[Floats] = []
        ple = np.empty((0, 0), np.float32)
        for index in range(spec.trunk_layers):
            layer = self._weights.layer(index)
            if layer.ple is not None and self._ngram is not None:
                added, ple = self._ngram.add(x, ngrams[1], layer.ple, rows, self._state)
                tap("ple_rows", ngrams[0])
                tap(f"L{index}_ple", added)
            if isinstance(layer.mixer, GdnWeights):
                own, eps = len(delta), np.float32(spec.rms_eps)
                block, inject, out, change = linear_block(
                    x, layer.mixer_record, slots.conv[own], slots.delta[own], rows.places.spans, eps
                )
                delta.append(change)
            else:
                full = len(index_keys)
                block, inject, out, raw, chosen = mix_attention(
                    x, layer, rows, state=self._state, index=full, eps=spec.rms_eps
                )
                index_keys.append(raw)
                tap(f"qsa{full}", chosen)
            tap(f"L{index}_attn_in", block)
            tap(f"L{index}_attn_inject", inject)
            tap(f"L{index}_mix", out[:, : spec.hidden])
            ids, out = run_experts(x, layer, eps=spec.rms_eps)
            tap(f"L{index}_topk_id", ids)
            tap(f"L{index}_moe", out)
            tap(f"L{index}_out", x)
        tap("wide", x[wanted])
        mixed, logits[:, : spec.vocabulary] = self._weights.project(x[wanted])
        tap("mixed", mixed)
        nothing = [DeltaRows(*(np.empty((0,) * axes, np.float32) for axes in (2, 3, 3, 2)))]
        changes = DeltaRows(*(np.stack(part)[: len(delta)] for part in zip(*(delta or nothing), strict=True)))
        keys = np.stack(index_keys or [np.empty((0, 0), np.float32)])[: len(index_keys)]
        return Ran(rows, x, Undecided(changes, keys, ple))

    def commit(self, ran: Ran, kept: Sequence[int]) -> None:
        """Keeps the first rows of every span: `kept` in the order of the spans, 0 to leave a slot as it was."""
        commit(self._state, ran.rows, ran.undecided, kept)


def run_experts(x: Floats, layer: LayerWeights, *, eps: float) -> tuple[Integers, Floats]:
    """The second half of a layer on the streams x in place: the routed experts' ids, and what all experts add up to."""
    if layer.expert_record is not None:
        return expert_block(x, layer.expert_record, np.float32(eps))
    assert not isinstance(layer.experts, ExpertWeights)
    block, inject = read_streams(x, layer.moe_read, np.float32(eps))
    ids, shares, out = route(block, layer.mix)
    layer.experts.add(block, ids, shares, out)
    write_streams(x, out, inject)
    return ids, out
