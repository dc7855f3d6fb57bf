"""The n-gram embedding of a decode window on the device: hash, gather, gate, convolve, add to the streams."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kernels.embedding.op import Table
from kernels.linear import linear, splits
from kernels.ngram import _triton
from kernels.planes import Planes, operand_columns
from kernels.terms import check_operand, check_tensor, check_terms, launch_options, operand_rows
from kernels.window import RING_POSITIONS, WindowRows

MAX_DRAFTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramHash:
    """Constants of the hash.

    Attributes:
        multipliers: int64 [order].
        head_rows: int64 [heads], orders 2, 3, ... one after the other.
        head_offsets: the same.
        reset: token that hides itself and what is older, and stands for everything hidden.
    """

    multipliers: torch.Tensor
    head_rows: torch.Tensor
    head_offsets: torch.Tensor
    reset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramWeights:
    """Weights of the layer.

    Attributes:
        key: planes [streams * hidden, width].
        value: planes [hidden, width].
        norm_key: float32 [streams, hidden].
        norm_query: the same.
        norm_conv: the same.
        conv: float32 [taps, streams * hidden]; the last tap multiplies the newest row, taps lie `order` rows apart.
    """

    key: Planes
    value: Planes
    norm_key: torch.Tensor
    norm_query: torch.Tensor
    norm_conv: torch.Tensor
    conv: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramState:
    """State of every slot, a dummy last; position p lies at p % 16, so a rejected draft is simply written over.

    Attributes:
        tokens: int32 [slots + 1, 16].
        conv: float32 [slots + 1, 16, streams * hidden], the normed gated values.
    """

    tokens: torch.Tensor
    conv: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramBuffers:
    """What the launches hand on.

    Attributes:
        numbers: int64 [rows, heads], the table row of each head.
        operand: operand rows of heads * row width inputs.
        key: partial results [terms, rows, streams * hidden].
        value: partial results [terms, rows, hidden].
        gated: float32 [rows, streams * hidden].
        normed: the same.
    """

    numbers: torch.Tensor
    operand: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    gated: torch.Tensor
    normed: torch.Tensor


def new_buffers(rows: int, *, weights: NgramWeights, heads: int, exact: bool) -> NgramBuffers:
    """Buffers of a bucket of `rows` rows."""
    device, (wide, width), hidden = weights.conv.device, (weights.key.rows, weights.key.columns), weights.value.rows
    return NgramBuffers(
        numbers=torch.zeros(rows, heads, dtype=torch.int64, device=device),
        operand=operand_rows(rows, width, exact=exact, device=device),
        key=torch.empty(splits(wide, width), rows, wide, device=device),
        value=torch.empty(splits(hidden, width), rows, hidden, device=device),
        gated=torch.empty(rows, wide, device=device),
        normed=torch.empty(rows, wide, device=device),
    )


def gather_ngrams(
    *,
    table: Table,
    hashing: NgramHash,
    rows: WindowRows,
    state: NgramState,
    buffers: NgramBuffers,
    exact: bool,
    pdl: bool,
    staged: bool = False,
) -> None:
    """Hashes the last tokens of every row and gathers the table's rows as operand rows.

    `mix_n = xor over s < n of token_(t-s) m_s`; head h of order n takes row `mix_n mod rows_h + offset_h`.
    A predecessor equal to `reset`, or before position 0, makes itself and all older ones `reset`.

    Args:
        table: in device memory, or pinned on the host and read over the link. If staged: [rows * heads, row bytes], the
            picked rows of this window, which the host has gathered.
        hashing: constants.
        rows: where the rows belong.
        state: tokens of earlier windows.
        buffers: of the bucket; `numbers` and `operand` are filled.
        exact: operand rows are float32.
        pdl: the launch may start early; needs sm_90.
        staged: see table.

    Raises:
        ValueError: shapes do not belong together, or a type that has no kernel.
    """
    capacity, heads = buffers.numbers.shape
    order = hashing.multipliers.shape[0]
    table.check("gather_ngrams")
    if order < 2 or heads % (order - 1) or order > RING_POSITIONS - MAX_DRAFTS:
        raise ValueError(f"gather_ngrams: {heads} heads do not divide among the orders 2 to {order}")
    if staged and table.raw.shape[0] < capacity * heads:
        raise ValueError(f"gather_ngrams: staging has {table.raw.shape[0]} rows, not {capacity * heads}")
    for name in ("multipliers", "head_rows", "head_offsets"):
        check_tensor(
            f"gather_ngrams: {name}",
            getattr(hashing, name),
            (order if name == "multipliers" else heads,),
            torch.int64,
        )
    width = heads * table.columns
    check_operand("gather_ngrams: operand", buffers.operand, rows=capacity, inputs=width, exact=exact)
    check_tensor("gather_ngrams: tokens", state.tokens, (state.tokens.shape[0], RING_POSITIONS), torch.int32)
    padded = operand_columns(width)
    _triton.gather[(capacity, heads)](
        table.raw, rows.tokens, state.tokens, rows.slot, rows.position, rows.span, rows.span_first, rows.rows_used,
        hashing.multipliers, hashing.head_rows, hashing.head_offsets, buffers.numbers, buffers.operand, hashing.reset,
        ORDER=order, HEADS=heads, WIDTH=table.columns,
        BLOCK=triton.next_power_of_2(table.columns + padded - width), PADDED=padded, RING=RING_POSITIONS,
        STAGED=staged, EXACT=exact, PDL=pdl, num_warps=1, **table.kind, **launch_options(pdl),
    )  # fmt: skip


def add_ngrams(
    *,
    x: torch.Tensor,
    rows: WindowRows,
    weights: NgramWeights,
    order: int,
    state: NgramState,
    buffers: NgramBuffers,
    eps: float,
    exact: bool,
    pdl: bool,
    parts: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
) -> None:
    """Adds the block before and the gathered embedding to the streams; the read that follows has nothing to write.

    Per stream: `s = rms(E key') norm_key . rms(x) norm_query / sqrt(hidden)`,
    `g = sigmoid(sign(s) sqrt(max(|s|, 1e-6)))`, `v = g (E value')`, `y = rms(v) norm_conv`, `x += v + silu(conv(y))`.

    Args:
        x: float32 [rows, streams, hidden], updated in place.
        rows: where the rows belong; at most 4 drafts a span.
        weights: of the layer.
        order: of the n-grams, rows between two taps.
        state: updated in place.
        buffers: of the bucket, with `operand` filled by `gather_ngrams`.
        eps: of the norms.
        exact: float32 operands and products.
        pdl: launches may start early; needs sm_90.
        parts: partial results [terms, rows, hidden] of the block before, as in `kernels.hyper.decode`.
        gate: the sums of the read before that block.

    Raises:
        ValueError: shapes do not belong together.
    """
    capacity, streams, hidden = x.shape
    wide, taps = streams * hidden, weights.conv.shape[0]
    _check(x, rows, weights, state, parts, gate)
    if (taps - 1) * order > RING_POSITIONS - MAX_DRAFTS:
        raise ValueError(
            f"add_ngrams: {taps} taps, {order} rows apart, look back {(taps - 1) * order} rows; "
            f"the ring holds {RING_POSITIONS - MAX_DRAFTS} beside drafts"
        )
    linear(buffers.operand, weights.key, out=buffers.key, exact=exact, pdl=pdl)
    linear(buffers.operand, weights.value, out=buffers.value, exact=exact, pdl=pdl)
    early = launch_options(pdl)
    _triton.gate[(streams, capacity)](
        x, x if parts is None else parts, x if gate is None else gate, buffers.key, buffers.value,
        weights.norm_key, weights.norm_query, weights.norm_conv, buffers.gated, buffers.normed,
        rows.tokens, state.tokens, rows.slot, rows.position, rows.span, rows.span_first, rows.span_certain,
        rows.rows_used,
        0 if parts is None else parts.stride(0), 0 if parts is None else parts.stride(1),
        buffers.key.stride(0), buffers.key.stride(1), buffers.value.stride(0), buffers.value.stride(1), eps,
        TERMS=0 if parts is None else parts.shape[0], KEY_TERMS=buffers.key.shape[0],
        VALUE_TERMS=buffers.value.shape[0], STREAMS=streams, HIDDEN=hidden, BLOCK=triton.next_power_of_2(hidden),
        ORDER=order, RING=RING_POSITIONS, PDL=pdl, num_warps=8 if hidden >= 1024 else 4, **early,
    )  # fmt: skip
    _triton.convolve[(capacity, -(-wide // 512))](
        x, buffers.gated, buffers.normed, weights.conv, state.conv,
        rows.span_slot, rows.span_first, rows.span_count, rows.span_start, rows.span_certain,
        WIDE=wide, BLOCK=512, TAPS=taps, DILATION=order, RING=RING_POSITIONS, PDL=pdl, num_warps=4, **early,
    )  # fmt: skip


def _check(
    x: torch.Tensor,
    rows: WindowRows,
    weights: NgramWeights,
    state: NgramState,
    parts: torch.Tensor | None,
    gate: torch.Tensor | None,
) -> None:
    capacity, streams, hidden = x.shape
    wide = streams * hidden
    if (weights.key.rows, weights.value.rows) != (wide, hidden) or capacity != rows.rows:
        raise ValueError(
            f"add_ngrams: key of {weights.key.rows} and value of {weights.value.rows} rows are not for {streams} "
            f"streams of {hidden}, or x has not the window's {rows.rows} rows"
        )
    if (parts is None) != (gate is None):
        raise ValueError("add_ngrams: a gate goes with parts; give both or neither")
    check_tensor("add_ngrams: x", x, (capacity, streams, hidden))
    for name in ("norm_key", "norm_query", "norm_conv"):
        check_tensor(f"add_ngrams: {name}", getattr(weights, name), (streams, hidden))
    check_tensor("add_ngrams: conv weight", weights.conv, (weights.conv.shape[0], wide))
    check_tensor("add_ngrams: conv ring", state.conv, (state.conv.shape[0], RING_POSITIONS, wide))
    if parts is not None and gate is not None:
        check_terms("add_ngrams: parts", parts, rows=capacity, width=hidden)
        check_tensor("add_ngrams: gate", gate, (capacity, streams, streams))
