"""Weights of a whole model: unpacked once, or stored blocks unpacked each time a layer is visited."""

from __future__ import annotations

from collections.abc import Callable

import torch

from appliance.model.qwen4exp.experts import stacked_experts, stored_experts
from appliance.model.qwen4exp.layers import (
    AttentionWeights,
    DraftEntry,
    GdnWeights,
    LayerWeights,
    MoeWeights,
    PleWeights,
)
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.model.qwen4exp.tensors import Tensors, raw_bytes
from kernels.hyper import ReadWeights
from kernels.ngram import GateWeights
from kernels.quant import dequantise

OUTPUT_SLICE_ROWS = 1 << 14


class Weights:
    """Layers on demand. With `once` they are built at load and kept, else built at each visit and dropped."""

    def __init__(
        self, spec: ModelSpec, *, device: torch.device, once: bool, draft: bool, progress: Callable[[str, int], None]
    ) -> None:
        self._spec = spec
        self._tensors = Tensors(spec.tensors, device)
        self._once = once
        self._output_name = "output.weight" if "output.weight" in self._tensors else "token_embd.weight"
        self._layers: list[LayerWeights] = []
        self._embedding = self._output = torch.empty(0)
        self.head_read = self._read("output_hc", inject=False)
        if draft:
            self.draft_entry = self._draft_entry()
            self.draft_head_read = self._read(f"blk.{spec.trunk_layers}.nextn.hc_head", inject=False)
        if not once:
            return
        count = spec.trunk_layers + int(draft)
        for index in range(count):
            progress("unpacking layers", 100 * index // count)
            self._layers.append(self._build(index))
        progress("unpacking embedding and head", 95)
        self._embedding = self._tensors.matrix("token_embd.weight")
        self._output = self._tensors.matrix(self._output_name).t().contiguous()

    def layer(self, index: int) -> LayerWeights:
        """Weights of a block; `trunk_layers` is the draft block."""
        return self._layers[index] if self._once else self._build(index)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Rows of the token embedding: int64 [rows] -> float32 [rows, hidden]."""
        if self._once:
            return self._embedding.index_select(0, tokens)
        info = self._tensors.info("token_embd.weight")
        raw = raw_bytes(info).index_select(0, tokens.cpu()).to(self._tensors.device)
        return dequantise(raw, info.type.name, columns=info.shape[-1])

    def project(self, mixed: torch.Tensor) -> torch.Tensor:
        """Logits: float32 [rows, hidden] -> [rows, vocabulary]."""
        if self._once:
            return torch.mm(mixed, self._output)
        info = self._tensors.info(self._output_name)
        raw, parts = raw_bytes(info), []
        for first in range(0, info.shape[0], OUTPUT_SLICE_ROWS):
            some = raw[first : first + OUTPUT_SLICE_ROWS].to(mixed.device)
            parts.append(mixed @ dequantise(some, info.type.name, columns=info.shape[-1]).t())
        return torch.cat(parts, 1)

    def _build(self, index: int) -> LayerWeights:
        spec, block = self._spec, f"blk.{index}"
        trunk = index < spec.trunk_layers
        full = not trunk or spec.full_attention[index]
        has_ple = trunk and spec.ngram is not None and spec.ngram.layer == index
        return LayerWeights(
            mixer_read=self._read(f"{block}.hc_attn", inject=True),
            mixer=self._attention(block, indexer=trunk) if full else self._gdn(block),
            moe_read=self._read(f"{block}.hc_ffn", inject=True),
            moe=self._moe(block),
            ple=self._ple(block) if has_ple else None,
        )

    def _read(self, prefix: str, *, inject: bool) -> ReadWeights:
        spec, tensors = self._spec, self._tensors
        mix = [tensors.matrix(f"{prefix}_down.weight")]
        if inject:
            mix.append(tensors.matrix(f"{prefix}_inject.weight").view(spec.streams, -1))
        return ReadWeights(
            norm=tensors.vector(f"{prefix}_norm.weight").view(spec.streams, spec.hidden),
            mix=tensors.transposed(mix).div_(spec.streams),
            up=tensors.transposed([tensors.matrix(f"{prefix}_up.weight")]),
            low=spec.low_rank,
        )

    def _gdn(self, block: str) -> GdnWeights:
        tensors = self._tensors
        names = ("attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta")
        return GdnWeights(
            mix=tensors.transposed([tensors.matrix(f"{block}.{name}.weight") for name in names]),
            conv=tensors.transposed([tensors.matrix(f"{block}.ssm_conv1d.weight")]),
            rate=tensors.vector(f"{block}.ssm_a"),
            bias=tensors.vector(f"{block}.ssm_dt.bias"),
            norm=tensors.vector(f"{block}.ssm_norm.weight"),
            out=tensors.transposed([tensors.matrix(f"{block}.ssm_out.weight")]),
        )

    def _attention(self, block: str, *, indexer: bool) -> AttentionWeights:
        spec, tensors = self._spec, self._tensors
        pairs = tensors.matrix(f"{block}.attn_q.weight").view(spec.query_heads, 2, spec.head_dim, spec.hidden)
        parts = [pairs[:, 0].reshape(-1, spec.hidden), tensors.matrix(f"{block}.attn_k.weight")]
        parts += [tensors.matrix(f"{block}.attn_v.weight"), pairs[:, 1].reshape(-1, spec.hidden)]
        if indexer:
            parts += [tensors.matrix(f"{block}.indexer.{name}_proj.weight") for name in ("q", "k")]
        query_norm = tensors.vector(f"{block}.attn_q_norm.weight") * spec.head_dim**-0.5
        key_norm = tensors.vector(f"{block}.attn_k_norm.weight")
        nothing = query_norm.new_empty(0)
        return AttentionWeights(
            mix=tensors.transposed(parts),
            norm=torch.cat((query_norm.expand(spec.query_heads, -1), key_norm.expand(spec.kv_heads, -1))),
            index_query_norm=tensors.vector(f"{block}.indexer.q_norm.weight") if indexer else nothing,
            index_key_norm=tensors.vector(f"{block}.indexer.k_norm.weight") if indexer else nothing,
            out=tensors.transposed([tensors.matrix(f"{block}.attn_output.weight")]),
        )

    def _moe(self, block: str) -> MoeWeights:
        tensors, hidden = self._tensors, self._spec.hidden
        parts = [tensors.matrix(f"{block}.ffn_gate_inp.weight")]
        parts.append(tensors.vector(f"{block}.ffn_gate_inp_shexp.weight").view(1, hidden))
        parts += [tensors.matrix(f"{block}.ffn_{name}_shexp.weight") for name in ("gate", "up")]
        return MoeWeights(
            mix=tensors.transposed(parts),
            shared_down=tensors.transposed([tensors.matrix(f"{block}.ffn_down_shexp.weight")]),
            experts=stacked_experts(tensors, block) if self._once else stored_experts(tensors, block),
        )

    def _ple(self, block: str) -> PleWeights:
        tensors = self._tensors
        shape = (self._spec.streams, self._spec.hidden)
        gate = GateWeights(
            key=tensors.transposed([tensors.matrix(f"{block}.ple_key.weight")]),
            value=tensors.transposed([tensors.matrix(f"{block}.ple_value.weight")]),
            norm_key=tensors.vector(f"{block}.ple_norm_key.weight").view(shape),
            norm_query=tensors.vector(f"{block}.ple_norm_query.weight").view(shape),
            norm_conv=tensors.vector(f"{block}.ple_norm_conv.weight").view(shape),
        )
        return PleWeights(gate=gate, conv=tensors.transposed([tensors.matrix(f"{block}.ple_conv1d.weight")]))

    def _draft_entry(self) -> DraftEntry:
        spec, tensors, prefix = self._spec, self._tensors, f"blk.{self._spec.trunk_layers}.nextn"
        if f"{prefix}.eh_proj.weight" in tensors:
            both = tensors.matrix(f"{prefix}.eh_proj.weight")
            token, state = both[:, : spec.hidden], both[:, spec.hidden :]
        else:
            token, state = (tensors.matrix(f"{prefix}.fc_{name}.weight") for name in ("embd", "hidden"))
        return DraftEntry(
            token_norm=tensors.vector(f"{prefix}.enorm.weight"),
            state_norm=tensors.vector(f"{prefix}.hnorm.weight").view(spec.streams, spec.hidden),
            from_token=token.t().contiguous(),
            from_state=state.t().contiguous(),
        )
