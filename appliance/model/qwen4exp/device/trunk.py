"""The launches of a range of layers, in order; nothing here waits for the device or asks it anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from appliance.model.qwen4exp.device.experts import LayerExperts
from appliance.model.qwen4exp.device.layers import AttentionPlanes, GdnPlanes, LayerPlanes
from appliance.model.qwen4exp.device.scratch import Scratch
from appliance.model.qwen4exp.device.tables import Buffers
from appliance.model.qwen4exp.spec import ModelSpec
from kernels.attention.decode import Indexer, Mixed, attend_decode, prepare_attention
from kernels.attention.pool import KvPool
from kernels.experts import ExpertBuffers, down, gate_up, route
from kernels.gdn.decode import DeltaState, run_delta
from kernels.hyper.decode import HyperBuffers, ReadPlanes, write_and_read
from kernels.linear import linear, splits
from kernels.qsa.decode import select_decode
from kernels.rope.decode import RopeRows
from kernels.window import WindowRows

SCORE_PROGRAMS: Final = 264
"""Of the launch that scores block keys: two on every processor of a large card."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A block's output that is not yet written to the streams: partial results and the sums of its read."""

    parts: torch.Tensor
    gate: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One window on one device.

    Attributes:
        rows: of the window.
        rope: rotary tables of its rows.
        buffers, hyper, experts, scratch: of its bucket.
        pages: int32 [slots + 1, pages].
        exact, pdl: how kernels compute and launch.
    """

    rows: WindowRows
    rope: RopeRows
    buffers: Buffers
    hyper: HyperBuffers
    experts: ExpertBuffers
    scratch: Scratch
    pages: torch.Tensor
    exact: bool
    pdl: bool


def read(run: Run, weights: ReadPlanes, pending: Pending | None, *, eps: float, sums: torch.Tensor | None) -> None:
    """Writes what is pending to the streams and reads the next block's input into `buffers.block` and `.operand`."""
    write_and_read(
        x=run.buffers.x,
        weights=weights,
        buffers=run.hyper,
        block=run.buffers.block,
        operand=run.buffers.operand,
        eps=eps,
        exact=run.exact,
        pdl=run.pdl,
        parts=None if pending is None else pending.parts,
        gate=None if pending is None else pending.gate,
        sums=sums,
    )


def mix_linear(run: Run, weights: GdnPlanes, state: DeltaState, spec: ModelSpec) -> torch.Tensor:
    """A Gated DeltaNet mixer: partial results [terms, rows, hidden]."""
    common = {"scratch": run.scratch, "used": run.rows.rows_used, "exact": run.exact, "pdl": run.pdl}
    made = weights.inputs.run(run.buffers.operand, tag="gdn", **common)  # type: ignore[arg-type]
    operand = run.scratch.operand("mixed", spec.gdn_value_width, rows=run.rows.rows)
    run_delta(
        qkv=made["qkv"],
        gate=made["gate"],
        alpha=made["alpha"],
        beta=made["beta"],
        rows=run.rows,
        weights=weights.delta,
        state=state,
        buffers=run.buffers.delta,
        operand=operand,
        eps=spec.rms_eps,
        exact=run.exact,
        pdl=run.pdl,
    )
    return weights.out.run(operand, tag="mixer out", **common)["out"]  # type: ignore[arg-type]


def mix_attention(
    run: Run, weights: AttentionPlanes, spec: ModelSpec, *, pool: KvPool, indexer: Indexer | None
) -> torch.Tensor:
    """A full-attention mixer, sparse with an indexer and dense without: partial results [terms, rows, hidden]."""
    buffers, heads, dim = run.buffers, spec.query_heads, spec.head_dim
    common = {"scratch": run.scratch, "used": run.rows.rows_used, "exact": run.exact, "pdl": run.pdl}
    made = weights.inputs.run(buffers.operand, tag="attention", **common)  # type: ignore[arg-type]
    both = heads_of(made["query"], 2 * heads, dim)
    gate = both[:, :, 1::2]
    mixed = Mixed(
        query=both[:, :, ::2],
        key=heads_of(made["key"], spec.kv_heads, dim),
        value=heads_of(made["value"], spec.kv_heads, dim),
        gate=gate,
        index_query=heads_of(made["index_query"], spec.indexer_heads, spec.indexer_dim) if indexer else None,
        index_key=heads_of(made["index_key"], 1, spec.indexer_dim) if indexer else None,
    )
    prepare_attention(
        mixed,
        run.rows,
        rope=run.rope,
        query_norm=weights.query_norm,
        key_norm=weights.key_norm,
        pool=pool,
        pages=run.pages,
        eps=spec.rms_eps,
        out=buffers.query,
        indexer=indexer,
        index_out=buffers.index_query if indexer else None,
        pdl=run.pdl,
    )
    if indexer is not None:
        select_decode(
            buffers.index_query,
            indexer.pooled,
            run.rows,
            pages=run.pages,
            block_tokens=spec.block_tokens,
            scratch=buffers.select,
            out=buffers.selection,
            programs=SCORE_PROGRAMS if run.pages.is_cuda else 1,
            pdl=run.pdl,
        )
    operand = run.scratch.operand("mixed attention", heads * dim, rows=run.rows.rows)
    attend_decode(
        buffers.query,
        gate,
        run.rows,
        pool=pool,
        pages=run.pages,
        splits=buffers.sparse if indexer else buffers.dense,
        scratch=buffers.attention,
        exact=run.exact,
        out=operand,
        places=buffers.selection.places if indexer else None,
        block_tokens=spec.block_tokens if indexer else 1,
        pdl=run.pdl,
    )
    return weights.out.run(operand, tag="mixer out", **common)["out"]  # type: ignore[arg-type]


def heads_of(parts: torch.Tensor, heads: int, dim: int) -> torch.Tensor:
    """[terms, rows, heads * dim] as [terms, rows, heads, dim], without a copy."""
    terms, rows, _ = parts.shape
    outer, inner = parts.stride(0), parts.stride(1)
    return parts.as_strided((terms, rows, heads, dim), (outer, inner, dim, 1), parts.storage_offset())


def run_layer(
    run: Run, layer: LayerPlanes, pending: Pending | None, spec: ModelSpec, *, mix: Callable[[], torch.Tensor]
) -> Pending:
    """Both halves of a block.

    Args:
        run: the window.
        layer: its weights.
        pending: of the block before.
        spec: the model.
        mix: runs the mixer on what was read.
    """
    first, second = run.buffers.sums
    read(run, layer.mixer_read, pending, eps=spec.rms_eps, sums=first)
    read(run, layer.moe_read, Pending(mix(), first), eps=spec.rms_eps, sums=second)
    return Pending(run_experts(run, layer.experts), second)


def run_experts(run: Run, experts: LayerExperts) -> torch.Tensor:
    """Routed and shared experts of a layer: partial results [used + 1, rows, hidden]."""
    layout, rows = experts.layout, run.rows.rows
    terms = splits(experts.router.rows, experts.router.columns)
    logits = run.scratch.take("router", (terms, rows, experts.router.rows), rows=rows)
    common = {"exact": run.exact, "pdl": run.pdl}
    linear(run.buffers.operand, experts.router, out=logits, rows_used=run.rows.rows_used, **common)
    route(
        logits,
        experts.table,
        layout=layout,
        buffers=run.experts,
        gate_column=experts.gate_column,
        rows_used=run.rows.rows_used,
        counts=experts.counts,
        pdl=run.pdl,
    )
    gate_up(run.buffers.operand, experts.anchor, layout=layout, buffers=run.experts, **common)
    out = run.scratch.take("experts", (rows, layout.used + 1, layout.kind.hidden), rows=rows)
    down(experts.anchor, layout=layout, buffers=run.experts, out=out, **common)
    return out.transpose(0, 1)


def finish(run: Run, head: ReadPlanes, pending: Pending | None, spec: ModelSpec) -> torch.Tensor:
    """Writes what is pending and reads with a final mixer; returns operand rows."""
    read(run, head, pending, eps=spec.rms_eps, sums=None)
    return run.buffers.operand
