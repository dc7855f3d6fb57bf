"""Weights of a whole model on the CPU: taken apart once, or stored blocks taken apart each time a layer is visited."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from appliance.model.qwen4exp.experts import all_experts, stored_experts
from appliance.model.qwen4exp.layers import LayerWeights
from appliance.model.qwen4exp.spec import ModelSpec, NgramSpec
from appliance.model.qwen4exp.tensors import Tensors, raw_bytes
from kernels.block.op import ENTRY, HEAD_BLOCK, AttentionWeights, EntryWeights, HeadBlock, head_block
from kernels.compiled.arrays import Floats, Integers
from kernels.compiled.record import record
from kernels.compiled.vector import TILE
from kernels.gdn.op import GdnWeights
from kernels.hyper.op import ReadWeights, read_streams
from kernels.matrix import Matrix, Part, join, multiply, settle, stored
from kernels.moe.op import MixWeights
from kernels.ngram.op import PLE, PleWeights
from kernels.quant import dequantise
from kernels.trunk.op import DraftWeights, TrunkWeights

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
        self._embedding = np.empty((0, 0), np.float32)
        self._output: Matrix | None = None
        self._heads: list[Integers] = []
        self.trunk: TrunkWeights | None = None
        self.draft: DraftWeights | None = None
        self.logit_columns = spec.vocabulary
        self.head_read = self._read("output_hc", inject=False)
        if draft:
            self.draft_entry = self._draft_entry()
            self.draft_entry_record = record(self.draft_entry, ENTRY)
            self.draft_head_read = self._read(f"blk.{spec.trunk_layers}.nextn.hc_head", inject=False)
        if not once:
            return
        count = spec.trunk_layers + int(draft)
        for index in range(count):
            progress("unpacking layers", 100 * index // count)
            self._layers.append(self._build(index))
        progress("unpacking embedding and head", 95)
        self._embedding = self._tensors.matrix("token_embd.weight").numpy()
        self._output = settle(join([part_of(self._tensors, self._output_name)]))
        reads = [self.head_read, *([self.draft_head_read] if draft else [])]
        self._heads = [record(HeadBlock(read, self._output), HEAD_BLOCK) for read in reads]
        self.logit_columns = (self._output.codes.shape[0] + self._output.floats.shape[0]) * TILE
        self.trunk = self._trunk()
        if draft:
            self.draft = self._draft()

    def layer(self, index: int) -> LayerWeights:
        """Weights of a block; `trunk_layers` is the draft block."""
        return self._layers[index] if self._once else self._build(index)

    def embed(self, tokens: Integers) -> Floats:
        """Rows of the token embedding: int64 [rows] -> float32 [rows, hidden]."""
        if self._once:
            return self._embedding[tokens]
        info = self._tensors.info("token_embd.weight")
        raw = raw_bytes(info).index_select(0, torch.from_numpy(tokens))
        found: Floats = dequantise(raw, info.type.name, columns=info.shape[-1]).numpy()
        return found

    def project(self, streams: Floats, *, draft: bool = False) -> tuple[Floats, Floats]:
        """What the streams [rows, streams, hidden] are read into, and its logits [rows, vocabulary]."""
        eps = np.float32(self._spec.rms_eps)
        if self._output is not None:
            mixed, logits = head_block(streams, self._heads[draft], eps)
            return mixed, logits[:, : self._spec.vocabulary]
        mixed, _ = read_streams(streams, self.draft_head_read if draft else self.head_read, eps)
        info = self._tensors.info(self._output_name)
        raw, parts = raw_bytes(info), []
        for first in range(0, info.shape[0], OUTPUT_SLICE_ROWS):
            some = raw[first : first + OUTPUT_SLICE_ROWS]
            found = multiply(mixed, join([stored(info.type.name, some, columns=info.shape[-1])]))
            parts.append(found[:, : some.shape[0]])
        return mixed, np.concatenate(parts, 1)

    def _trunk(self) -> TrunkWeights:
        spec, layers = self._spec, self._layers[: self._spec.trunk_layers]
        ple = [(index, record(layer.ple, PLE)) for index, layer in enumerate(layers) if layer.ple is not None]
        index, numbers = ple[0] if ple else (-1, np.empty(0, np.int64))
        return TrunkWeights(
            full=np.array(spec.full_attention, dtype=np.uint8),
            mixers=_filled([layer.mixer_record for layer in layers]),
            experts=_filled([layer.expert_record for layer in layers if layer.expert_record is not None]),
            ple=numbers,
            ple_layer=index,
            head=self._heads[0],
            embedding=self._embedding,
            streams=spec.streams,
        )

    def _draft(self) -> DraftWeights:
        layer = self._layers[-1]
        assert layer.expert_record is not None
        return DraftWeights(
            entry=self.draft_entry_record,
            mixer=layer.mixer_record,
            experts=layer.expert_record,
            head=self._heads[1],
            embedding=self._embedding,
        )

    def _build(self, index: int) -> LayerWeights:
        spec, block = self._spec, f"blk.{index}"
        trunk = index < spec.trunk_layers
        full = not trunk or spec.full_attention[index]
        parts = (
            self._read(f"{block}.hc_attn", inject=True),
            self._attention(block, indexer=trunk) if full else self._gdn(block),
            self._read(f"{block}.hc_ffn", inject=True),
            self._mix(block),
            all_experts(self._tensors, block) if self._once else stored_experts(self._tensors, block),
            self._ple(block, spec.ngram) if trunk and spec.ngram and spec.ngram.layer == index else None,
        )
        return LayerWeights(*(settle(parts) if self._once else parts))

    def _read(self, prefix: str, *, inject: bool) -> ReadWeights:
        spec, tensors = self._spec, self._tensors
        mix = [part_of(tensors, f"{prefix}_down.weight")]
        if inject:
            mix.append(Part(tensors.matrix(f"{prefix}_inject.weight").view(spec.streams, -1)))
        return ReadWeights(
            norm=tensors.vector(f"{prefix}_norm.weight").view(spec.streams, spec.hidden).numpy(),
            mix=join([part.over(spec.streams) for part in mix]),
            up=join([part_of(tensors, f"{prefix}_up.weight")]),
            low=spec.low_rank,
            injects=spec.streams if inject else 0,
        )

    def _gdn(self, block: str) -> GdnWeights:
        tensors = self._tensors
        names = ("attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta")
        return GdnWeights(
            mix=join([part_of(tensors, f"{block}.{name}.weight") for name in names]),
            conv=tensors.matrix(f"{block}.ssm_conv1d.weight").t().contiguous().numpy(),
            rate=tensors.vector(f"{block}.ssm_a").numpy(),
            bias=tensors.vector(f"{block}.ssm_dt.bias").numpy(),
            norm=tensors.vector(f"{block}.ssm_norm.weight").numpy(),
            out=join([part_of(tensors, f"{block}.ssm_out.weight")]),
            key_heads=self._spec.gdn_key_heads,
        )

    def _attention(self, block: str, *, indexer: bool) -> AttentionWeights:
        spec, tensors = self._spec, self._tensors
        pairs = part_of(tensors, f"{block}.attn_q.weight")
        # Queries and gates of a head follow each other.
        places = torch.arange(2 * spec.query_heads * spec.head_dim).view(spec.query_heads, 2, spec.head_dim)
        parts = [pairs.rows(places[:, 0].reshape(-1)), part_of(tensors, f"{block}.attn_k.weight")]
        parts += [part_of(tensors, f"{block}.attn_v.weight"), pairs.rows(places[:, 1].reshape(-1))]
        if indexer:
            parts += [part_of(tensors, f"{block}.indexer.{name}_proj.weight") for name in ("q", "k")]
        query_norm = tensors.vector(f"{block}.attn_q_norm.weight") * spec.head_dim**-0.5
        key_norm = tensors.vector(f"{block}.attn_k_norm.weight")
        norms = [
            tensors.vector(f"{block}.indexer.{name}_norm.weight").numpy() if indexer else np.empty(0, np.float32)
            for name in ("q", "k")
        ]
        return AttentionWeights(
            mix=join(parts),
            norm=torch.cat((query_norm.expand(spec.query_heads, -1), key_norm.expand(spec.kv_heads, -1))).numpy(),
            query_norm=norms[0],
            key_norm=norms[1],
            out=join([part_of(tensors, f"{block}.attn_output.weight")]),
            index_heads=spec.indexer_heads if indexer else 0,
            block_tokens=spec.block_tokens,
            budget_blocks=spec.indexer_budget // spec.block_tokens,
        )

    def _mix(self, block: str) -> MixWeights:
        spec, tensors = self._spec, self._tensors
        parts = [part_of(tensors, f"{block}.ffn_{name}_shexp.weight") for name in ("gate", "up")]
        parts.append(part_of(tensors, f"{block}.ffn_gate_inp.weight"))
        parts.append(Part(tensors.vector(f"{block}.ffn_gate_inp_shexp.weight").view(1, spec.hidden)))
        return MixWeights(
            mix=join(parts),
            shared_down=join([part_of(tensors, f"{block}.ffn_down_shexp.weight")]),
            experts=spec.experts,
            used=spec.experts_used,
        )

    def _ple(self, block: str, ngram: NgramSpec) -> PleWeights:
        tensors = self._tensors
        shape = (self._spec.streams, self._spec.hidden)
        return PleWeights(
            key=join([part_of(tensors, f"{block}.ple_key.weight")]),
            value=join([part_of(tensors, f"{block}.ple_value.weight")]),
            norm_key=tensors.vector(f"{block}.ple_norm_key.weight").view(shape).numpy(),
            norm_query=tensors.vector(f"{block}.ple_norm_query.weight").view(shape).numpy(),
            norm_conv=tensors.vector(f"{block}.ple_norm_conv.weight").view(shape).numpy(),
            conv=tensors.matrix(f"{block}.ple_conv1d.weight").t().contiguous().numpy(),
            dilation=ngram.order,
        )

    def _draft_entry(self) -> EntryWeights:
        spec, tensors, prefix = self._spec, self._tensors, f"blk.{self._spec.trunk_layers}.nextn"
        if f"{prefix}.eh_proj.weight" in tensors:
            both = part_of(tensors, f"{prefix}.eh_proj.weight")
            token, state = both.inputs(0, spec.hidden), both.inputs(spec.hidden, 2 * spec.hidden)
        else:
            token, state = (part_of(tensors, f"{prefix}.fc_{name}.weight") for name in ("embd", "hidden"))
        return EntryWeights(
            token_norm=tensors.vector(f"{prefix}.enorm.weight").numpy(),
            state_norm=tensors.vector(f"{prefix}.hnorm.weight").view(spec.streams, spec.hidden).numpy(),
            from_token=join([token]),
            from_state=join([state]),
            grouped=spec.hnorm_grouped,
        )


def _filled(records: Sequence[Integers]) -> Integers:
    """Records as rows of one array, filled up with zeros."""
    width = max(one.size for one in records)
    return np.stack([np.pad(one, (0, width - one.size)) for one in records])


def part_of(tensors: Tensors, name: str) -> Part:
    """A matrix [out, in] as stored, taken apart."""
    info = tensors.info(name)
    return stored(info.type.name, raw_bytes(info), columns=info.shape[-1])
