"""The trunk over one window of rows: every layer, provisional until committed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from appliance.model.qwen4exp.attention import Tap, mix_attention
from appliance.model.qwen4exp.layers import GdnWeights, LayerWeights
from appliance.model.qwen4exp.linear import mix_linear
from appliance.model.qwen4exp.ngram import NgramEmbedding
from appliance.model.qwen4exp.rows import Rows
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.model.qwen4exp.stash import Stash, begin, commit
from appliance.model.qwen4exp.state import State
from appliance.model.qwen4exp.weights import Weights
from kernels.hyper import read_streams, write_streams
from kernels.moe import route


def _ignore(name: str, value: torch.Tensor) -> None:
    """The tap of a run that nobody watches."""


class Trunk:
    """Layers of the trunk."""

    def __init__(self, spec: ModelSpec, weights: Weights, state: State, ngram: NgramEmbedding | None) -> None:
        self._spec = spec
        self._weights = weights
        self._state = state
        self._ngram = ngram
        self._stashes: list[Stash] = []

    def run(self, rows: Rows, *, tap: Tap = _ignore) -> torch.Tensor:
        """Runs the window over all layers; keys and values go to their pages, everything else into the stash.

        Returns:
            Streams float32 [rows, streams, hidden] after the last layer.
        """
        spec = self._spec
        self._stashes = [begin(self._state, batch) for batch in rows.batches]
        embedded = self._weights.embed(rows.tokens).unsqueeze(1)
        x = embedded.expand(rows.count, spec.streams, spec.hidden).contiguous()
        linear = full = 0
        for index in range(spec.trunk_layers):
            layer = self._weights.layer(index)
            self._add_ngrams(x, layer, rows, tap, index)
            block, inject = read_streams(x, layer.mixer_read, eps=spec.rms_eps)
            if isinstance(layer.mixer, GdnWeights):
                out = mix_linear(
                    block, layer.mixer, rows, spec=spec, state=self._state, stashes=self._stashes, layer=linear
                )
                linear += 1
            else:
                out = mix_attention(
                    block, layer.mixer, rows, spec=spec, state=self._state, stashes=self._stashes, layer=full, tap=tap
                )
                full += 1
            write_streams(x, out, inject)
            tap(f"L{index}_attn_in", block)
            tap(f"L{index}_attn_inject", inject)
            tap(f"L{index}_mix", out)
            run_experts(x, layer, spec, tap=tap, name=f"L{index}")
        return x

    def commit(self, rows: Rows, kept: Sequence[int]) -> None:
        """Keeps the first rows of every span: `kept` in the order of rows.spans, 0 to leave a slot as it was."""
        commit(self._state, rows, self._stashes, kept)
        self._stashes = []

    def _add_ngrams(self, x: torch.Tensor, layer: LayerWeights, rows: Rows, tap: Tap, index: int) -> None:
        if layer.ple is None or self._ngram is None:
            return
        numbers = self._ngram.numbers(rows, self._state)
        added = self._ngram.add(x, self._ngram.values(numbers), layer.ple, rows, self._stashes)
        tap("ple_rows", numbers)
        tap(f"L{index}_ple", added)


def run_experts(
    x: torch.Tensor, layer: LayerWeights, spec: ModelSpec, *, tap: Tap = _ignore, name: str = "draft"
) -> None:
    """The second half of a block: routed and shared experts, written to the streams x in place."""
    block, inject = read_streams(x, layer.moe_read, eps=spec.rms_eps)
    weights, experts = layer.moe, spec.experts
    mixed = torch.mm(block, weights.mix)
    ids, shares = route(mixed[:, :experts], used=spec.experts_used)
    out = weights.experts.run(block, ids, shares)
    gate, up = mixed[:, experts + 1 :].chunk(2, 1)
    shared = torch.mm(torch.nn.functional.silu(gate).mul_(up), weights.shared_down)
    out.addcmul_(shared, mixed[:, experts : experts + 1].sigmoid())
    write_streams(x, out, inject)
    tap(f"{name}_topk_id", ids)
    tap(f"{name}_moe", out)
    tap(f"{name}_out", x)
