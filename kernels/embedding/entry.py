"""The entry of a draft layer: a token and the streams after the token before it become the streams of a draft row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kernels.embedding import _triton
from kernels.embedding.op import Table, by_kernel
from kernels.linear import MAX_ROWS, linear, splits
from kernels.planes import Planes, operand_columns
from kernels.terms import check_operand, check_tensor, launch_options, operand_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryWeights:
    """Weights of the entry; `from_token` and `from_state` are the two halves of the columns of `eh_proj`.

    Attributes:
        token_norm: float32 [hidden].
        state_norm: float32 [streams, hidden].
        from_token: planes [hidden, hidden].
        from_state: the same.
        grouped: every stream has a norm of its own; else one norm over all of them.
    """

    token_norm: torch.Tensor
    state_norm: torch.Tensor
    from_token: Planes
    from_state: Planes
    grouped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryBuffers:
    """What the launches hand on.

    Attributes:
        token: operand rows [rows, padded hidden].
        state: operand rows [rows * streams, padded hidden].
        token_parts: partial results [terms, rows, hidden].
        state_parts: those of up to 40 rows of `state` at a time, [terms, rows, hidden] each.
    """

    token: torch.Tensor
    state: torch.Tensor
    token_parts: torch.Tensor
    state_parts: tuple[torch.Tensor, ...]


def new_buffers(rows: int, *, weights: EntryWeights, exact: bool) -> EntryBuffers:
    """Buffers of a bucket of `rows` rows."""
    streams, hidden = weights.state_norm.shape
    device, terms = weights.state_norm.device, splits(hidden, hidden)
    # Whole rows of streams at a time, so that a part is a range of rows.
    most = MAX_ROWS // streams * streams
    counts = [min(most, rows * streams - first) for first in range(0, rows * streams, most)]
    return EntryBuffers(
        token=operand_rows(rows, hidden, exact=exact, device=device),
        state=operand_rows(rows * streams, hidden, exact=exact, device=device),
        token_parts=torch.empty(terms, rows, hidden, device=device),
        state_parts=tuple(torch.empty(terms, count, hidden, device=device) for count in counts),
    )


def enter_draft(
    *,
    table: Table,
    tokens: torch.Tensor,
    wide: torch.Tensor,
    weights: EntryWeights,
    buffers: EntryBuffers,
    x: torch.Tensor,
    eps: float,
    exact: bool,
    pdl: bool,
    source: torch.Tensor | None = None,
) -> None:
    """`x[s] = from_token (rms(embed(token)) token_norm) + from_state (rms(wide)[s] state_norm[s])`.

    Args:
        table: of the embedding.
        tokens: int32 [rows].
        wide: float32 [some rows, streams, hidden]: streams after the last layer, of the trunk or of a draft row.
        weights: of the entry.
        buffers: of the bucket.
        x: receives float32 [rows, streams, hidden]; may be `wide`.
        eps: of the norms.
        exact: float32 operands and products.
        pdl: launches may start early; needs sm_90.
        source: int32 [rows], the row of `wide` that each row takes; its own if None.

    Raises:
        ValueError: shapes do not belong together.
    """
    rows, streams, hidden = x.shape
    _check(table, tokens, wide, weights, x, source)
    check_operand("enter_draft: token", buffers.token, rows=rows, inputs=hidden, exact=exact)
    check_operand("enter_draft: state", buffers.state, rows=rows * streams, inputs=hidden, exact=exact)
    usable, numbers = by_kernel(table, tokens)
    columns, early = operand_columns(hidden), launch_options(pdl)
    _triton.entry_norm[(streams + 1, rows)](
        usable.raw, numbers, wide, tokens if source is None else source, weights.token_norm, weights.state_norm,
        buffers.token, buffers.state, eps,
        STREAMS=streams, HIDDEN=hidden, BLOCK=triton.next_power_of_2(columns), PADDED=columns,
        GROUPED=weights.grouped, SOURCE=source is not None, EXACT=exact, PDL=pdl,
        num_warps=8 if hidden >= 1024 else 4, **usable.kind, **early,
    )  # fmt: skip
    linear(buffers.token, weights.from_token, out=buffers.token_parts, exact=exact, pdl=pdl)
    first = 0
    for part in buffers.state_parts:
        count = part.shape[1]
        linear(buffers.state[first : first + count], weights.from_state, out=part, exact=exact, pdl=pdl)
        first += count
    first, flat = 0, x.view(rows * streams, hidden)
    for part in buffers.state_parts:
        count = part.shape[1]
        token_parts = buffers.token_parts[:, first // streams :]
        _triton.entry_add[(count, -(-hidden // 256))](
            token_parts, part, flat[first : first + count],
            token_parts.stride(0), token_parts.stride(1), part.stride(0), part.stride(1),
            TOKEN_TERMS=token_parts.shape[0], STATE_TERMS=part.shape[0], STREAMS=streams, HIDDEN=hidden, BLOCK=256,
            PDL=pdl, num_warps=2, **early,
        )  # fmt: skip
        first += count


def _check(
    table: Table,
    tokens: torch.Tensor,
    wide: torch.Tensor,
    weights: EntryWeights,
    x: torch.Tensor,
    source: torch.Tensor | None,
) -> None:
    rows, streams, hidden = x.shape
    table.check("enter_draft")
    sides = {(p.rows, p.columns) for p in (weights.from_token, weights.from_state)}
    if table.columns != hidden or sides != {(hidden, hidden)} or streams > MAX_ROWS:
        raise ValueError(
            f"enter_draft: rows of {table.columns}, products {sorted(sides)} are not for {streams} streams of {hidden}"
        )
    check_tensor("enter_draft: tokens", tokens, (rows,), torch.int32)
    check_tensor("enter_draft: wide", wide, (wide.shape[0], streams, hidden))
    check_tensor("enter_draft: x", x, (rows, streams, hidden))
    check_tensor("enter_draft: token norm", weights.token_norm, (hidden,))
    check_tensor("enter_draft: state norm", weights.state_norm, (streams, hidden))
    if source is not None:
        check_tensor("enter_draft: source", source, (rows,), torch.int32)
    elif wide.shape[0] < rows:
        raise ValueError(f"enter_draft: wide has {wide.shape[0]} rows for {rows} tokens; give as many, or a source")
