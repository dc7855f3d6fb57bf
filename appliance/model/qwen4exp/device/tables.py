"""What a window of one bucket needs on one device beside the layers' weights: row tables and shared buffers."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

import torch

from appliance.errors import EngineFault
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.device.scratch import Scratch
from appliance.model.qwen4exp.device.state import page_columns, pooled_type
from appliance.model.qwen4exp.spec import ModelSpec
from kernels.attention.decode import AttentionScratch, Splits, dense_splits, sparse_splits
from kernels.attention.pool import KINDS
from kernels.gdn.decode import DeltaBuffers
from kernels.gdn.decode import new_buffers as delta_buffers
from kernels.qsa.decode import BINS, Selection, SelectScratch, chunks_of
from kernels.rope.decode import RopeRows, rope_rows
from kernels.rope.frequencies import Frequencies
from kernels.rows import DrawRows, SlotState, empty_rows, fill, plan_size
from kernels.window import WindowRows

BUCKETS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40)
MOST_ROWS: Final = BUCKETS[-1]


def bucket_of(rows: int) -> int:
    """The smallest bucket that holds so many rows.

    Raises:
        EngineFault: no bucket does.
    """
    if not 1 <= rows <= MOST_ROWS:
        raise EngineFault(f"a window of {rows} rows; windows on a card have 1 to {MOST_ROWS}")
    return BUCKETS[bisect_left(BUCKETS, rows)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Row metadata of one bucket.

    Attributes:
        plan: int32, the host's plan of the window.
        rows: filled from the plan.
        draw: what the sampler needs of the rows.
        axis_position: int32 [3, rows].
        forced: int32 [rows], each span's known next token or -1.
        rope: of the trunk's rows.
    """

    plan: torch.Tensor
    rows: WindowRows
    draw: DrawRows
    axis_position: torch.Tensor
    forced: torch.Tensor
    rope: RopeRows

    @classmethod
    def empty(cls, rows: int, *, pairs: int, device: torch.device) -> Tables:
        """For a bucket of so many rows."""
        window = empty_rows(rows, device=device)
        return cls(
            plan=torch.zeros(plan_size(rows), dtype=torch.int32, device=device),
            rows=window,
            draw=DrawRows.of_window(window),
            axis_position=torch.zeros((3, rows), dtype=torch.int32, device=device),
            forced=torch.zeros(rows, dtype=torch.int32, device=device),
            rope=RopeRows.empty(rows=rows, pairs=pairs, device=device),
        )

    def fill(self, slots: SlotState, *, frequencies: Frequencies, block_tokens: int, pdl: bool) -> None:
        """Makes rows and rotary tables from the plan."""
        fill(
            self.plan,
            slots,
            out=self.rows,
            draw=self.draw,
            axis_position=self.axis_position,
            forced=self.forced,
            pdl=pdl,
        )
        rope_rows(
            self.rows,
            self.axis_position,
            frequencies=frequencies,
            block_tokens=block_tokens,
            out=self.rope,
            axis_ring=slots.axis_ring,
            pdl=pdl,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """What the launches of a bucket hand on, shared by all layers.

    Attributes:
        x: streams, float32 [rows, streams, hidden].
        block: float32 [rows, hidden], input of a mixer or of the experts.
        operand: the same as operand rows.
        sums: two tensors for the weights of writes, used in turn.
        delta: of linear layers.
        query, index_query: of full layers.
        sparse, dense: how attention is shared between programs.
        attention, select, selection: scratch of full layers.
    """

    x: torch.Tensor
    block: torch.Tensor
    operand: torch.Tensor
    sums: tuple[torch.Tensor, torch.Tensor]
    delta: DeltaBuffers
    query: torch.Tensor
    index_query: torch.Tensor
    sparse: Splits
    dense: Splits
    attention: AttentionScratch
    select: SelectScratch
    selection: Selection

    @classmethod
    def empty(cls, rows: int, *, spec: ModelSpec, plan: LoadPlan, scratch: Scratch) -> Buffers:
        """For a bucket of so many rows."""
        device = scratch.device
        half = torch.float32 if plan.kv_type == "f32" else torch.float16
        kind = KINDS[{"f32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}[plan.kv_type]]
        budget = spec.indexer_budget // spec.block_tokens
        sparse = sparse_splits(budget_blocks=budget, block_tokens=spec.block_tokens, kind=kind)
        # The interpreter computes one program after the other.
        dense = dense_splits(kind=kind) if device.type == "cuda" else dense_splits(kind=kind, count=2)
        most = max(sparse.count, dense.count)
        heads, dim = spec.query_heads, spec.head_dim
        gates = (rows, spec.streams, spec.streams)

        def take(tag: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return scratch.take(tag, (rows, *shape), rows=rows, dtype=dtype)

        return cls(
            x=take("x", spec.streams, spec.hidden),
            block=take("block", spec.hidden),
            operand=scratch.operand("operand", spec.hidden, rows=rows),
            sums=(torch.zeros(gates, device=device), torch.zeros(gates, device=device)),
            delta=delta_buffers(
                rows, key_heads=spec.gdn_key_heads, heads=spec.gdn_value_heads, dim=spec.gdn_head_dim, device=device
            ),
            query=take("query", heads, dim, dtype=half),
            index_query=take(
                "index query",
                spec.indexer_heads,
                spec.indexer_dim,
                dtype=torch.float32 if pooled_type(plan.kv_type) == torch.float32 else torch.float16,
            ),
            sparse=sparse,
            dense=dense,
            attention=AttentionScratch(
                sums=take("attention sums", heads, most, dim), stats=take("attention stats", heads, most, 2)
            ),
            select=_select_scratch(rows, spec=spec, plan=plan, scratch=scratch),
            selection=Selection(
                blocks=take("blocks", budget, dtype=torch.int32), places=take("places", budget, dtype=torch.int32)
            ),
        )


def _select_scratch(rows: int, *, spec: ModelSpec, plan: LoadPlan, scratch: Scratch) -> SelectScratch:
    longest = page_columns(plan) * (plan.page_tokens // spec.block_tokens)

    def take(tag: str, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return scratch.take(f"select {tag}", shape, rows=rows, dtype=dtype)

    return SelectScratch(
        scores=take("scores", rows, longest, dtype=torch.float32),
        histogram=take("histogram", rows, chunks_of(longest), BINS),
        tickets=take("tickets", rows),
        list_bits=take("bits", rows, longest),
        list_block=take("list", rows, longest),
    )
