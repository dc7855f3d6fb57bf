"""The trunk over one window of rows: every layer, provisional until committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from appliance.model.qwen4exp.attention import Tap, mix_attention
from appliance.model.qwen4exp.layers import LayerWeights
from appliance.model.qwen4exp.ngram import NgramEmbedding
from appliance.model.qwen4exp.rows import Rows
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.model.qwen4exp.stash import Stash, commit
from appliance.model.qwen4exp.state import State
from appliance.model.qwen4exp.weights import Weights
from kernels.block.op import expert_block, linear_block
from kernels.compiled.arrays import Array, Floats, Integers
from kernels.gdn.op import GdnWeights
from kernels.hyper.op import read_streams, write_streams
from kernels.moe.op import ExpertWeights, route


def _ignore(name: str, value: Array) -> None:
    """The tap of a run that nobody watches."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A window after the last layer.

    Attributes:
        rows: of the window.
        streams: float32 [rows, streams, hidden].
        stash: what a commit needs.
    """

    rows: Rows
    streams: Floats
    stash: Stash


class Trunk:
    """Layers of the trunk."""

    def __init__(self, spec: ModelSpec, weights: Weights, state: State, ngram: NgramEmbedding | None) -> None:
        self._spec = spec
        self._weights = weights
        self._state = state
        self._ngram = ngram

    def run(self, rows: Rows, *, tap: Tap = _ignore) -> Ran:
        """Runs the window over all layers; keys and values go to their pages, everything else into the stash."""
        spec, state, stash = self._spec, self._state, Stash()
        x = np.repeat(self._weights.embed(rows.tokens)[:, None], spec.streams, 1)
        for index in range(spec.trunk_layers):
            layer = self._weights.layer(index)
            self._add_ngrams(x, layer, rows, stash, tap, index)
            if isinstance(layer.mixer, GdnWeights):
                linear = len(stash.delta)
                history, memory = state.conv[linear].numpy(), state.delta[linear].numpy()
                block, inject, out, delta = linear_block(
                    x, layer.mixer_read, layer.mixer, history, memory, rows.places.spans, np.float32(spec.rms_eps)
                )
                stash.delta.append(delta)
            else:
                full = len(stash.index)
                block, inject, out, keys, chosen = mix_attention(
                    x, layer.mixer_read, layer.mixer, rows, state=state, layer=full, eps=spec.rms_eps
                )
                stash.index.append(keys)
                tap(f"qsa{full}", chosen)
            tap(f"L{index}_attn_in", block)
            tap(f"L{index}_attn_inject", inject)
            tap(f"L{index}_mix", out[:, : spec.hidden])
            ids, out = run_experts(x, layer, eps=spec.rms_eps)
            tap(f"L{index}_topk_id", ids)
            tap(f"L{index}_moe", out)
            tap(f"L{index}_out", x)
        return Ran(rows, x, stash)

    def commit(self, ran: Ran, kept: Sequence[int]) -> None:
        """Keeps the first rows of every span: `kept` in the order of the spans, 0 to leave a slot as it was."""
        commit(self._state, ran.rows, ran.stash, kept)

    def _add_ngrams(self, x: Floats, layer: LayerWeights, rows: Rows, stash: Stash, tap: Tap, index: int) -> None:
        if layer.ple is None or self._ngram is None:
            return
        numbers = self._ngram.numbers(rows, self._state)
        added = self._ngram.add(x, self._ngram.values(numbers), layer.ple, rows, self._state, stash)
        tap("ple_rows", numbers)
        tap(f"L{index}_ple", added)


def run_experts(x: Floats, layer: LayerWeights, *, eps: float) -> tuple[Integers, Floats]:
    """The second half of a layer on the streams x in place: the routed experts' ids, and what all experts add up to."""
    if isinstance(layer.experts, ExpertWeights):
        return expert_block(x, layer.moe_read, layer.mix, layer.experts, np.float32(eps))
    block, inject = read_streams(x, layer.moe_read, np.float32(eps))
    ids, shares, out = route(block, layer.mix)
    layer.experts.add(block, ids, shares, out)
    write_streams(x, out, inject)
    return ids, out
