"""The launches of one block over a prompt chunk; nothing here waits for the device or asks it anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch

from appliance.model.qwen4exp.device.layers import AttentionPlanes, GdnPlanes, LayerPlanes
from appliance.model.qwen4exp.device.product import Product
from appliance.model.qwen4exp.spec import ModelSpec
from kernels.attention.decode import Indexer
from kernels.attention.pool import KvPool
from kernels.attention.prompt import MixedChunk, attend_chunk, group_rows, prepare_chunk
from kernels.chunk import Chunk
from kernels.experts.prompt import ChunkExperts, ExpertPass, choose_experts, run_experts_chunk
from kernels.gdn.chunk import run_delta_chunk
from kernels.gdn.decode import DeltaState
from kernels.hyper.prompt import write_and_read_chunk
from kernels.linear.prompt import Room, multiply
from kernels.planes import Planes
from kernels.qsa.prompt import select_chunk
from kernels.rope.decode import RopeRows


@dataclass(frozen=True, slots=True)
class ChunkPending:
    """A block's output that is not yet written to the streams.

    Attributes:
        parts: [terms, rows, hidden].
        inject: float32 [rows, streams].
    """

    parts: torch.Tensor
    inject: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRun:
    """One chunk on one stage.

    Attributes:
        chunk: its rows.
        x: streams, float32 [rows, streams, hidden].
        results: of experts, fp16 or exact float32 [rows, used + 1, hidden]; every layer's in turn.
        rope: rotary tables of the rows.
        pages: int32 [slots + 1, pages].
        room: for one unpacked matrix.
        spec: the model.
        exact: float32 throughout.
    """

    chunk: Chunk
    x: torch.Tensor
    results: torch.Tensor
    rope: RopeRows
    pages: torch.Tensor
    room: Room
    spec: ModelSpec
    exact: bool


def product(run: ChunkRun, weights: Product, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Each part's result [rows, part rows]: views of the launches' results."""
    outs = [multiply(x, planes, room=run.room, exact=run.exact) for planes in weights.launches]
    return {name: outs[p.launch][:, p.first : p.first + p.rows] for name, p in weights.parts.items()}


def part_planes(weights: Product, name: str) -> Planes:
    """A part's own matrix, which is a stretch of the strips of its launch."""
    part = weights.parts[name]
    whole = weights.launches[part.launch]
    strip = whole.form.strip_words(whole.columns)
    first, strips = part.first // 32, -(-part.rows // 32)
    words = whole.words[first * strip : (first + strips) * strip]
    return replace(whole, rows=part.rows, words=words)


def mix_linear_chunk(run: ChunkRun, block: torch.Tensor, *, weights: GdnPlanes, state: DeltaState) -> torch.Tensor:
    """A Gated DeltaNet mixer, [rows, hidden]."""
    made = product(run, weights.inputs, block)
    mixed = run_delta_chunk(
        qkv=made["qkv"],
        gate=made["gate"],
        alpha=made["alpha"].to(torch.float32),
        beta=made["beta"].to(torch.float32),
        chunk=run.chunk,
        weights=weights.delta,
        state=state,
        eps=run.spec.rms_eps,
        exact=run.exact,
    )
    return product(run, weights.out, mixed)["out"]


def mix_attention_chunk(
    run: ChunkRun, block: torch.Tensor, *, weights: AttentionPlanes, pool: KvPool, indexer: Indexer
) -> torch.Tensor:
    """A sparse attention mixer, [rows, hidden]."""
    spec, made = run.spec, product(run, weights.inputs, block)
    both = _heads(made["query"], 2 * spec.query_heads)
    mixed = MixedChunk(
        query=both[:, ::2],
        key=_heads(made["key"], spec.kv_heads),
        value=_heads(made["value"], spec.kv_heads),
        index_query=_heads(made["index_query"], spec.indexer_heads),
        index_key=_heads(made["index_key"], 1),
    )
    query, index_query = _prepared(run, mixed, weights, pool, indexer)
    assert index_query is not None
    selection = select_chunk(
        index_query,
        indexer.pooled,
        run.chunk,
        pages=run.pages,
        block_tokens=spec.block_tokens,
        budget_blocks=spec.indexer_budget // spec.block_tokens,
        group_rows=group_rows(pool, heads=spec.query_heads),
    )
    mixed_rows = attend_chunk(
        query, both[:, 1::2], run.chunk, pool=pool, pages=run.pages, exact=run.exact, selection=selection
    )
    return product(run, weights.out, mixed_rows)["out"]


def keep_keys(run: ChunkRun, block: torch.Tensor, *, weights: AttentionPlanes, pool: KvPool) -> None:
    """Keys and values of an attention layer whose results nobody reads (the draft layer's, before its last row)."""
    key, value = (
        _heads(multiply(block, part_planes(weights.inputs, name), room=run.room, exact=run.exact), run.spec.kv_heads)
        for name in ("key", "value")
    )
    # Queries are made of what is there and dropped: without readers, which ones they are does not matter.
    _prepared(run, MixedChunk(query=key, key=key, value=value), weights, pool, None)


def run_layer_chunk(
    run: ChunkRun,
    layer: LayerPlanes,
    pending: ChunkPending | None,
    *,
    mix: Callable[[torch.Tensor], torch.Tensor],
    passes: Iterable[ExpertPass],
) -> ChunkPending:
    """Both halves of a block.

    Args:
        run: the chunk.
        layer: its weights.
        pending: of the block before.
        mix: runs the mixer on what was read.
        passes: over the layer's experts.
    """
    common = {"x": run.x, "room": run.room, "eps": run.spec.rms_eps, "exact": run.exact}
    parts, inject = (None, None) if pending is None else (pending.parts, pending.inject)
    block, inject = write_and_read_chunk(weights=layer.mixer_read, parts=parts, inject=inject, **common)  # type: ignore[arg-type]
    parts = mix(block).unsqueeze(0)
    block, inject = write_and_read_chunk(weights=layer.moe_read, parts=parts, inject=inject, **common)  # type: ignore[arg-type]
    assert inject is not None
    own = layer.experts
    logits = multiply(block, own.router, room=run.room, exact=run.exact, apart=True)
    choice = choose_experts(
        logits, layout=own.layout, gate_column=own.gate_column, counts=own.counts, used=run.chunk.place[2:3]
    )
    # What these hold of the layer before was written to the streams by the read above.
    experts = ChunkExperts(layout=own.layout, anchor=own.anchor, shared=own.shared, passes=passes)
    run_experts_chunk(block, choice, experts=experts, room=run.room, exact=run.exact, out=run.results)
    return ChunkPending(run.results.transpose(0, 1), inject)


def _prepared(
    run: ChunkRun, mixed: MixedChunk, weights: AttentionPlanes, pool: KvPool, indexer: Indexer | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    return prepare_chunk(
        mixed,
        run.chunk,
        rope=run.rope,
        query_norm=weights.query_norm,
        key_norm=weights.key_norm,
        pool=pool,
        pages=run.pages,
        eps=run.spec.rms_eps,
        indexer=indexer,
    )


def _heads(parts: torch.Tensor, heads: int) -> torch.Tensor:
    """[rows, heads * dim] of any row distance as [rows, heads, dim], without a copy."""
    rows, width = parts.shape
    return parts.as_strided((rows, heads, width // heads), (parts.stride(0), width // heads, 1), parts.storage_offset())
