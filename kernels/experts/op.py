"""Routes rows to experts and runs the experts; every launch depends on the bucket and the layer's sizes alone."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from kernels.experts._experts import down_kernel, gate_up_kernel
from kernels.experts._route import entries, top_experts
from kernels.experts.layout import ENTRY_ROWS, ExpertBuffers, ExpertKind, ExpertLayout
from kernels.linear.op import check_operand, codebook, operand_words
from kernels.planes import FORMATS, level_words, operand_columns

_MOST_CHUNKS: Final = 5
_MOST_HELD: Final = 100
"""Words in registers of each thread."""
_MANY_ROWS: Final = 4
_FEW_REGISTERS: Final = 96
"""A thread's: five programs of four warps share a processor then, and not four."""


def route(
    logits: Tensor,
    table: Tensor,
    *,
    layout: ExpertLayout,
    buffers: ExpertBuffers,
    gate_column: int,
    rows_used: Tensor | None = None,
    counts: Tensor | None = None,
    pdl: bool = False,
) -> None:
    """Chooses the experts of each row and groups rows by expert.

    The `used` largest logits, equal ones by lower id; their weights are the softmax over them (the renormalised shares
    of a softmax over all). The shared expert comes last, with the sigmoid of its own logit.

    Args:
        logits: float32 [parts, RB, columns], partial sums: routed experts in columns 0 to E - 1.
        table: int64 [E + 1] of `table_entry`.
        layout: of the layer.
        buffers: of the bucket; ids, weights and entries are written.
        gate_column: column of the shared expert's logit.
        rows_used: int32 [1] on the device; rows from there on route nowhere. All rows if None.
        counts: int32 [E]; each row adds one to each of its routed experts.
        pdl: as `kernels.linear.linear`.

    Raises:
        ValueError: a shape or type that does not fit.
    """
    parts, rows, columns = logits.shape
    if rows != buffers.rows or columns <= max(layout.experts - 1, gate_column) or logits.dtype != torch.float32:
        raise ValueError(
            f"route: logits are float32 [parts, {buffers.rows}, more than {max(layout.experts - 1, gate_column)}], "
            f"found {logits.dtype} {list(logits.shape)}"
        )
    if table.shape != (layout.experts + 1,) or table.dtype != torch.int64:
        raise ValueError(f"route: the table is int64 [{layout.experts + 1}], found {table.dtype} {list(table.shape)}")
    used = buffers.all_rows if rows_used is None else rows_used
    lists = (buffers.base, buffers.entry_rows, buffers.entry_out, buffers.entry_share)
    early = {"launch_pdl": True} if pdl else {}
    top_experts[(rows,)](
        logits,
        used,
        table,
        buffers.ids if counts is None else counts,
        buffers.ids,
        buffers.weights,
        *lists,
        rows,
        columns,
        GATE=gate_column,
        PARTS=parts,
        E=layout.experts,
        USED=layout.used,
        W=buffers.ids.shape[1],
        COUNT=counts is not None,
        SINGLE=rows == 1,
        PDL=pdl,
        num_warps=4,
        **early,
    )
    if rows > 1:
        entries[(buffers.entries,)](
            buffers.ids,
            buffers.weights,
            used,
            table,
            *lists,
            rows,
            E=layout.experts,
            USED=layout.used,
            W=buffers.ids.shape[1],
            P2=_power(rows * layout.used),
            PDL=pdl,
            num_warps=1,
            **early,
        )


def gate_up(
    x: Tensor, anchor: Tensor, *, layout: ExpertLayout, buffers: ExpertBuffers, exact: bool, pdl: bool = False
) -> None:
    """silu(gate x) * up x of every entry, into `buffers.hidden`.

    Args:
        x: operand rows [RB, padded hidden], fp16, or float32 if exact.
        anchor: the table's anchor.
        layout: of the layer.
        buffers: of the bucket, after `route`.
        exact: float32 throughout; the buffers must be made for it.
        pdl: as `kernels.linear.linear`.

    Raises:
        ValueError: a shape or type that does not fit.
    """
    check_operand("gate_up", x, padded_columns=operand_columns(layout.kind.hidden), exact=exact)
    _check_buffers("gate_up", buffers, x.shape[0], exact)
    chunks = operand_columns(layout.kind.hidden) // 128
    strips, shared = _strips(layout.kind), _strips(layout.shared_kind)
    warps = next(count for count in (4, 2, 1) if chunks % count == 0)
    gate_up_kernel[(buffers.entries, max(strips, shared))](
        anchor.view(torch.uint32),
        buffers.base,
        buffers.entry_rows,
        operand_words(x),
        buffers.hidden,
        codebook(x.device),
        x.shape[0] * layout.used,
        BLOCK=_block(buffers),
        FMT=FORMATS[layout.kind.gate_up].packed,
        FMT_HOST=FORMATS[layout.host_kind.gate_up].packed,
        FMT_SHARED=FORMATS[layout.shared_kind.gate_up].packed,
        S=warps,
        NCH=chunks,
        STRIPS=strips,
        STRIPS_SHARED=shared,
        EXACT=exact,
        PDL=pdl,
        num_warps=warps,
        num_stages=1,
        **gate_up_options(layout, rows=x.shape[0], exact=exact),
        **({"launch_pdl": True} if pdl else {}),
    )


def down(
    anchor: Tensor, *, layout: ExpertLayout, buffers: ExpertBuffers, out: Tensor, exact: bool, pdl: bool = False
) -> None:
    """The weighted down projections of every row and slot; their sum over slots, in order, is the mixture.

    Args:
        anchor: the table's anchor.
        layout: of the layer.
        buffers: of the bucket, after `gate_up`. With pdl, entries must be older than the launch before this one.
        out: float32 [RB, used + 1, hidden]; padded rows are not written.
        exact: as in `gate_up`.
        pdl: as `kernels.linear.linear`.

    Raises:
        ValueError: a shape or type that does not fit.
    """
    hidden = layout.kind.hidden
    wanted = (buffers.rows, layout.used + 1, hidden)
    if out.shape != wanted or out.dtype != torch.float32 or not out.is_contiguous():
        raise ValueError(f"down: out is contiguous float32 {list(wanted)}, found {out.dtype} {list(out.shape)}")
    _check_buffers("down", buffers, buffers.rows, exact)
    strips = -(-hidden // 32)
    warps = 4 if strips >= 4 else 1
    down_kernel[(buffers.entries, -(-strips // warps))](
        anchor.view(torch.uint32),
        buffers.base,
        buffers.entry_out,
        buffers.entry_share,
        operand_words(buffers.hidden),
        out,
        codebook(out.device),
        level_words(out.device),
        buffers.rows * layout.used,
        hidden,
        BLOCK=_block(buffers) // (1 if exact else 2),
        FMT=FORMATS[layout.kind.down].packed,
        FMT_HOST=FORMATS[layout.host_kind.down].packed,
        FMT_SHARED=FORMATS[layout.shared_kind.down].packed,
        SKIP=layout.kind.gate_up_words,
        SKIP_HOST=layout.host_kind.gate_up_words,
        SKIP_SHARED=layout.shared_kind.gate_up_words,
        S=warps,
        NCH=operand_columns(layout.kind.ff) // 128,
        NCH_SHARED=operand_columns(layout.shared_kind.ff) // 128,
        STRIPS=strips,
        DEEP=_deep(layout, rows=buffers.rows, exact=exact),
        EXACT=exact,
        PDL=pdl,
        num_warps=warps,
        num_stages=1,
        **({"launch_pdl": True} if pdl else {}),
    )


def gate_up_options(layout: ExpertLayout, *, rows: int, exact: bool) -> dict[str, int]:
    """The most registers of a thread, where more programs at once bring more than each of them loses.

    With few rows all programs are resident anyway. Other formats' values would not fit, and lie in memory.
    Every row gets the same bits either way.
    """
    fits = layout.kind.gate_up == "i4" and layout.host_kind.gate_up in ("i4", "iq3")
    return {"maxnreg": _FEW_REGISTERS} if fits and rows >= _MANY_ROWS and not exact else {}


def _deep(layout: ExpertLayout, *, rows: int, exact: bool) -> bool:
    """Whether programs hold all words of their strip at once: with one row there are too few programs to be patient.

    Every row gets the same bits either way.
    """
    form, chunks = FORMATS[layout.kind.down], operand_columns(layout.kind.ff) // 128
    held = chunks * form.tile_words // 32
    return rows == 1 and not exact and chunks <= _MOST_CHUNKS and held <= _MOST_HELD


def _strips(kind: ExpertKind) -> int:
    return 2 * operand_columns(kind.ff) // 32


def _block(buffers: ExpertBuffers) -> int:
    """Values of the hidden buffer an entry has."""
    return buffers.hidden.shape[0] // buffers.entries


def _power(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _check_buffers(what: str, buffers: ExpertBuffers, rows: int, exact: bool) -> None:
    wanted = torch.float32 if exact else torch.float16
    if buffers.rows != rows or buffers.hidden.dtype != wanted:
        raise ValueError(
            f"{what}: buffers are for {buffers.rows} rows and {buffers.hidden.dtype}, wanted {rows} and {wanted}; "
            f"make them with make_buffers (entries hold {ENTRY_ROWS} rows)"
        )
