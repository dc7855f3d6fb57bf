"""A stage's layers over prompt chunks, on the weights and the state that its windows use."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from appliance.model.qwen4exp.device.drafter import Drafter
from appliance.model.qwen4exp.device.layers import AttentionPlanes, GdnPlanes, LayerPlanes
from appliance.model.qwen4exp.device.prompt_experts import ExpertAhead
from appliance.model.qwen4exp.device.prompt_layers import (
    ChunkPending,
    ChunkRun,
    mix_attention_chunk,
    mix_linear_chunk,
    run_layer_chunk,
)
from appliance.model.qwen4exp.device.prompt_turn import ChunkTail
from appliance.model.qwen4exp.device.stage import Stage
from kernels.chunk import Chunk
from kernels.experts.layout import split_expert
from kernels.hyper.prompt import write_chunk
from kernels.linear.prompt import Room, room_halves
from kernels.ngram.prompt import add_ngrams_chunk
from kernels.planes import Planes
from kernels.rope.prompt import rope_chunk

Mix = Callable[[ChunkRun, torch.Tensor], torch.Tensor]


class StagePrompt:
    """Owned by the engine's thread."""

    def __init__(self, stage: Stage, *, drafter: Drafter | None) -> None:
        """Makes the room for unpacked matrices and for experts on their way.

        Args:
            stage: loaded, with its store.
            drafter: whose layer lives there too.
        """
        self.stage, self._spec = stage, stage.common.spec
        self._exact = stage.common.plan.exact
        self._room = Room(room_halves(matrices(stage, drafter), exact=self._exact), device=stage.device)
        self._ahead = ExpertAhead(stage)
        self._mixes = list(_mixes(stage))
        self._ngrams = stage.ngram.table if stage.ngram is not None else None

    @property
    def size_bytes(self) -> int:
        """Bytes that are held between chunks."""
        return self._room.size_bytes + self._ahead.size_bytes

    @property
    def repeats(self) -> bool:
        """Whether chunks of a size launch the same every time: nothing is brought from RAM or storage for one."""
        return not self._ahead.streaming and (self.stage.ngram is None or self.stage.ngram.stored is None)

    def fetch(self, tail: ChunkTail) -> None:
        """Brings the chunk's rows of an n-gram table that is on storage; on the stage's stream."""
        if self.stage.ngram is not None:
            self._ngrams = self.stage.ngram.chunk_table(tail.slot, tail.start, tail.tokens)

    def start(self, chunk: Chunk, x: torch.Tensor) -> ChunkRun:
        """What the layers of a chunk share; `x` are its streams, float32 [rows, streams, hidden]."""
        stage, spec = self.stage, self._spec
        rope = rope_chunk(
            chunk,
            frequencies=stage.frequencies,
            block_tokens=spec.block_tokens,
            axis_offset=stage.slots.axis_offset,
            axis_ring=stage.slots.axis_ring,
        )
        results = torch.empty(
            (chunk.rows, spec.experts_used + 1, spec.hidden),
            dtype=torch.float32 if self._exact else torch.float16,
            device=stage.device,
        )
        return ChunkRun(
            chunk=chunk,
            x=x,
            results=results,
            rope=rope,
            pages=stage.state.pages,
            room=self._room,
            spec=spec,
            exact=self._exact,
        )

    def run(self, run: ChunkRun) -> None:
        """All layers of the stage; afterwards nothing is pending."""
        stage, pending = self.stage, None
        self._ahead.begin(run.chunk.rows)
        for number, (index, block) in enumerate(zip(stage.layers, stage.blocks, strict=True)):
            if self._spec.ngram is not None and index == self._spec.ngram.layer:
                self._add_ngrams(run, pending)
                pending = None
            pending = self._layer(run, number, block.weights, pending)
        assert pending is not None
        write_chunk(x=run.x, parts=pending.parts, inject=pending.inject)

    def _layer(self, run: ChunkRun, number: int, weights: LayerPlanes, pending: ChunkPending | None) -> ChunkPending:
        mix = self._mixes[number]
        return run_layer_chunk(
            run, weights, pending, mix=lambda block: mix(run, block), passes=self._ahead.passes(number)
        )

    def _add_ngrams(self, run: ChunkRun, pending: ChunkPending | None) -> None:
        ngram = self.stage.ngram
        assert ngram is not None
        assert self._ngrams is not None
        add_ngrams_chunk(
            x=run.x,
            chunk=run.chunk,
            table=self._ngrams,
            staged=ngram.stored is not None,
            hashing=ngram.hashing,
            weights=ngram.weights,
            order=ngram.order,
            state=ngram.state,
            room=self._room,
            eps=self._spec.rms_eps,
            exact=self._exact,
            parts=None if pending is None else pending.parts,
            inject=None if pending is None else pending.inject,
        )


def matrices(stage: Stage, drafter: Drafter | None) -> Iterator[Planes]:
    """Every matrix that a chunk multiplies with on a stage; the vocabulary is the decode kernels' for one row."""
    layers = [block.weights for block in stage.blocks] + ([stage.draft] if stage.draft is not None else [])
    for layer in layers:
        for read in (layer.mixer_read, layer.moe_read):
            yield read.down
            yield read.up
        yield from layer.mixer.inputs.launches
        yield from layer.mixer.out.launches
        yield layer.experts.router
        yield from split_expert(layer.experts.shared, layer.experts.layout.shared_kind)
    if stage.ngram is not None:
        yield stage.ngram.weights.key
        yield stage.ngram.weights.value
    if drafter is not None:
        yield drafter.entry.from_token
        yield drafter.entry.from_state


def _mixes(stage: Stage) -> Iterator[Mix]:
    linear = full = 0
    for block in stage.blocks:
        mixer = block.weights.mixer
        if isinstance(mixer, GdnPlanes):
            yield _linear(stage, mixer, linear)
            linear += 1
        else:
            yield _attention(stage, mixer, full)
            full += 1


def _linear(stage: Stage, mixer: GdnPlanes, number: int) -> Mix:
    state = stage.state.delta[number]
    return lambda run, block: mix_linear_chunk(run, block, weights=mixer, state=state)


def _attention(stage: Stage, mixer: AttentionPlanes, number: int) -> Mix:
    pool = stage.state.pools[number]
    assert mixer.index_query_norm is not None
    assert mixer.index_key_norm is not None
    indexer = stage.state.indexer(
        number,
        query_norm=mixer.index_query_norm,
        key_norm=mixer.index_key_norm,
        block_tokens=stage.common.spec.block_tokens,
    )
    return lambda run, block: mix_attention_chunk(run, block, weights=mixer, pool=pool, indexer=indexer)
