"""A contiguous range of layers on one device: weights, state, buffers, and the launches of a window through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.device.experts import layer_experts, layout_of
from appliance.model.qwen4exp.device.homes import Routing
from appliance.model.qwen4exp.device.hotness import Heat
from appliance.model.qwen4exp.device.layers import (
    AttentionPlanes,
    GdnPlanes,
    LayerPlanes,
    attention_planes,
    gdn_planes,
    read_planes,
)
from appliance.model.qwen4exp.device.ngram import NgramLayer
from appliance.model.qwen4exp.device.ngram_storage import StoredRows
from appliance.model.qwen4exp.device.scratch import Scratch
from appliance.model.qwen4exp.device.source import Source
from appliance.model.qwen4exp.device.state import DeviceState, make_state
from appliance.model.qwen4exp.device.store import ExpertStore, StoreLayer
from appliance.model.qwen4exp.device.streamed import Streamed
from appliance.model.qwen4exp.device.swaps import AtOnce, SideStream, Swapper
from appliance.model.qwen4exp.device.tables import MOST_ROWS, Buffers, Tables
from appliance.model.qwen4exp.device.trunk import Pending, Run, mix_attention, mix_linear, run_layer
from appliance.model.qwen4exp.spec import ModelSpec
from kernels.embedding import Table
from kernels.experts import make_buffers
from kernels.hyper.decode import new_buffers as hyper_buffers
from kernels.hyper.write import write
from kernels.ngram.decode import NgramState
from kernels.rope.frequencies import Frequencies, frequencies
from kernels.rows import SlotState


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What stages share.

    Attributes:
        spec: the model.
        plan: sizes and homes.
        pdl: whether launches may overlap (sm_90 and newer).
    """

    spec: ModelSpec
    plan: LoadPlan
    pdl: bool


class Layer:
    """One block with its state."""

    def __init__(self, weights: LayerPlanes, mix: Callable[[Run], torch.Tensor]) -> None:
        self.weights = weights
        self.mix = mix


class Stage(Streamed):
    """Layers `layers` of the trunk; a window enters and leaves as streams."""

    def __init__(self, common: Common, source: Source, layers: range, *, draft: bool) -> None:
        """Loads everything but routed experts.

        Args:
            common: shared by all stages.
            source: of the weights, on this stage's device.
            layers: of the trunk.
            draft: whether the draft layer lives here too.
        """
        super().__init__(source.device)
        spec, plan = common.spec, common.plan
        self.common, self.source, self.layers = common, source, layers
        self.has_ngram = spec.ngram is not None and spec.ngram.layer in layers
        self.state: DeviceState = make_state(
            spec, plan, layers=layers, ngram=self.has_ngram, draft=draft, device=self.device
        )
        self.slots = SlotState.empty(slots=plan.slots, draft_max=plan.draft_max, device=self.device)
        self.scratch = Scratch(self.device, most_rows=MOST_ROWS, exact=plan.exact)
        self.anchor = torch.zeros(4, dtype=torch.int32, device=self.device)
        self.frequencies: Frequencies = frequencies(
            dims=spec.rope_dims, theta=spec.rope_theta, sections=spec.rope_sections, device=self.device
        )
        self.routing = Routing.empty(layers=len(layers) + int(draft), experts=spec.experts, device=self.device)
        self.blocks = [self._layer(index) for index in layers]
        self.draft: LayerPlanes | None = self._weights(spec.trunk_layers) if draft else None
        self.store: ExpertStore | None = None
        self.swapper: Swapper | None = None
        self.ngram: NgramLayer | None = None
        self._runs: dict[int, tuple[Tables, Run]] = {}

    def give_store(self, resident: Sequence[Sequence[int]]) -> ExpertStore:
        """Makes the homes of the routed experts: those `resident` of each layer on the card, the draft layer last."""
        weights = [block.weights for block in self.blocks] + ([self.draft] if self.draft is not None else [])
        numbers = [*self.layers, *([self.common.spec.trunk_layers] if self.draft is not None else [])]
        layers = [
            StoreLayer(f"blk.{number}", one.experts, those)
            for number, one, those in zip(numbers, weights, resident, strict=True)
        ]
        self.store = ExpertStore(layers, routing=self.routing, device=self.device)
        return self.store

    def follow_routing(self, heat: NDArray[np.float32], *, every: int) -> None:
        """From now on experts change their homes; `heat`: float32 [layers, experts], what is known of the routing."""
        assert self.store is not None
        beside = SideStream(self.device) if self.device.type == "cuda" else AtOnce()
        self.swapper = Swapper(self.store, Heat(heat, every=every), every=every, beside=beside, device=self.device)

    def adapt(self) -> None:
        """Goes on with exchanges of experts, if any; called when a window was sent and not yet waited for."""
        if self.swapper is not None:
            with self.on():
                self.swapper.between()

    def close(self) -> None:
        """Gives pinned memory back; no window may run any more."""
        if self.store is not None:
            self.store.close()
        self.source.release()

    def bucket(self, rows: int) -> tuple[Tables, Run]:
        """Row tables and buffers of a bucket; the same at every call."""
        found = self._runs.get(rows)
        if found is None:
            tables = Tables.empty(rows, pairs=self.common.spec.rope_dims // 2, device=self.device)
            found = self._runs[rows] = (tables, self.new_run(tables, rows))
        return found

    def new_run(self, tables: Tables, rows: int) -> Run:
        """A window's view of the shared buffers in the shape of a bucket."""
        spec, plan = self.common.spec, self.common.plan
        some = self.blocks[0].weights
        return Run(
            rows=tables.rows,
            rope=tables.rope,
            buffers=Buffers.empty(rows, spec=spec, plan=plan, scratch=self.scratch),
            hyper=hyper_buffers(rows, weights=some.mixer_read, exact=plan.exact),
            experts=make_buffers(some.experts.layout, rows=rows, exact=plan.exact, device=self.device),
            scratch=self.scratch,
            pages=self.state.pages,
            exact=plan.exact,
            pdl=self.common.pdl,
        )

    def fill(self, rows: int) -> None:
        """Makes the window's rows from the plan that was copied to the bucket."""
        tables, _ = self.bucket(rows)
        block = self.common.spec.block_tokens
        tables.fill(self.slots, frequencies=self.frequencies, block_tokens=block, pdl=self.common.pdl)

    def run(self, rows: int, pending: Pending | None) -> Pending | None:
        """All layers of the stage over the bucket's streams."""
        _, run = self.bucket(rows)
        spec = self.common.spec
        for index, block in zip(self.layers, self.blocks, strict=True):
            if self.ngram is not None and spec.ngram is not None and index == spec.ngram.layer:
                self.ngram.gather(run)
                self.ngram.add(run, pending)
                pending = None

            def mix(block: Layer = block) -> torch.Tensor:
                return block.mix(run)

            pending = run_layer(run, block.weights, pending, spec, mix=mix)
        return pending

    def finish(self, rows: int, pending: Pending | None) -> None:
        """Writes what is pending to the streams, which alone go on to the next stage."""
        _, run = self.bucket(rows)
        if pending is not None:
            write(run.buffers.x, parts=pending.parts, gate=pending.gate, pdl=run.pdl)

    def give_ngrams(self, table: Table, stored: StoredRows | None = None) -> None:
        """Loads the n-gram layer, whose table lies where it was put."""
        assert self.state.ngram_ring is not None
        state = NgramState(tokens=self.state.token_ring, conv=self.state.ngram_ring)
        self.ngram = NgramLayer(self.source, self.common.spec, table, state, stored=stored)

    def set_pages(self, slot: int, pages: tuple[int, ...]) -> None:
        """Gives a slot its pages."""
        self.state.set_pages(slot, pages)
        self.slots.capacity[slot].fill_(len(pages) * self.common.plan.page_tokens)

    def _weights(self, index: int) -> LayerPlanes:
        spec, source, block = self.common.spec, self.source, f"blk.{index}"
        trunk = index < spec.trunk_layers
        full = not trunk or spec.full_attention[index]
        layout = layout_of(source, block, spec)
        return LayerPlanes(
            mixer_read=read_planes(source, f"{block}.hc_attn", spec, inject=True),
            mixer=attention_planes(source, block, indexer=trunk) if full else gdn_planes(source, block),
            moe_read=read_planes(source, f"{block}.hc_ffn", spec, inject=True),
            experts=layer_experts(
                source,
                block,
                spec,
                layout=layout,
                anchor=self.anchor,
                routing=self.routing.layer(index - self.layers.start),
            ),
        )

    def _layer(self, index: int) -> Layer:
        spec, weights = self.common.spec, self._weights(index)
        mixer = weights.mixer
        before = [spec.full_attention[other] for other in self.layers if other < index]
        if isinstance(mixer, GdnPlanes):
            state = self.state.delta[before.count(False)]
            return Layer(weights, lambda run: mix_linear(run, mixer, state, spec))
        assert isinstance(mixer, AttentionPlanes)
        assert mixer.index_query_norm is not None
        assert mixer.index_key_norm is not None
        number = before.count(True)
        indexer = self.state.indexer(
            number,
            query_norm=mixer.index_query_norm,
            key_norm=mixer.index_key_norm,
            block_tokens=spec.block_tokens,
        )
        pool = self.state.pools[number]
        return Layer(weights, lambda run: mix_attention(run, mixer, spec, pool=pool, indexer=indexer))
