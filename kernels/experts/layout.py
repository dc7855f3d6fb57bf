"""Sizes and formats of a layer's experts, the buffers of a bucket, and the entries of the pointer table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kernels.planes import FORMATS, Planes, operand_columns, pack, pack_gate_up, word_count

ENTRY_ROWS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertKind:
    """How an expert lies in memory: gate-up planes, then down planes, in one run of words.

    Attributes:
        gate_up: plane format of the gate and up rows (`kernels.planes.pack_gate_up`).
        down: plane format of the down matrix.
        hidden: width of the model.
        ff: width inside the expert.
    """

    gate_up: str
    down: str
    hidden: int
    ff: int

    @property
    def gate_up_words(self) -> int:
        """Words before the down planes."""
        return word_count(FORMATS[self.gate_up], rows=2 * operand_columns(self.ff), columns=self.hidden)

    @property
    def words(self) -> int:
        """Words of an expert; a multiple of 4, so experts one after the other stay aligned."""
        return self.gate_up_words + word_count(FORMATS[self.down], rows=self.hidden, columns=self.ff)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLayout:
    """A layer's experts.

    Attributes:
        experts: routed experts; the table's last entry is the shared one.
        used: experts of a row.
        kind: of routed experts whose format bit is 0.
        host_kind: of routed experts whose format bit is 1; equal to `kind` where there is one form.
        shared_kind: of the shared expert.
    """

    experts: int
    used: int
    kind: ExpertKind
    host_kind: ExpertKind
    shared_kind: ExpertKind

    def __post_init__(self) -> None:
        """Refuses experts that do not belong together."""
        hidden = {self.kind.hidden, self.host_kind.hidden, self.shared_kind.hidden}
        if len(hidden) > 1 or self.kind.ff != self.host_kind.ff:
            raise ValueError(f"experts: kinds differ in width: {self.kind}, {self.host_kind}, {self.shared_kind}")
        if not 1 <= self.used <= min(self.experts, 31):
            raise ValueError(f"experts: {self.used} used of {self.experts}; allowed: 1 to 31, at most all")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertBuffers:
    """Buffers of a bucket of RB rows, reused by every layer of one layout.

    Attributes:
        rows: RB.
        ids: int32 [RB, 16 or 32]: a row's experts, best first, then the shared one; -1 in padded rows.
        weights: float32 like ids.
        base: int64 [entries], from the table, or NONE.
        entry_rows: int32 [entries, 8].
        entry_out: int32 [entries, 8]: row * (used + 1) + slot, or -1.
        entry_share: float32 [entries, 8].
        hidden: operand values [entries * 8 * width] between the two products: fp16, or float32 if exact.
        all_rows: int32 [1], RB.
    """

    rows: int
    ids: Tensor
    weights: Tensor
    base: Tensor
    entry_rows: Tensor
    entry_out: Tensor
    entry_share: Tensor
    hidden: Tensor
    all_rows: Tensor

    @property
    def entries(self) -> int:
        """Entries: a pair of row and slot each, then the shared expert's."""
        return self.base.shape[0]


def make_buffers(layout: ExpertLayout, *, rows: int, exact: bool, device: torch.device) -> ExpertBuffers:
    """Buffers for windows of up to `rows` rows."""
    width = 16 if layout.used < 16 else 32
    count = rows * layout.used + -(-rows // ENTRY_ROWS)
    inner = max(operand_columns(layout.kind.ff), operand_columns(layout.shared_kind.ff))

    def make(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return ExpertBuffers(
        rows=rows,
        ids=make((rows, width), torch.int32),
        weights=make((rows, width), torch.float32),
        base=make((count,), torch.int64),
        entry_rows=make((count, ENTRY_ROWS), torch.int32),
        entry_out=make((count, ENTRY_ROWS), torch.int32),
        entry_share=make((count, ENTRY_ROWS), torch.float32),
        hidden=make((count * ENTRY_ROWS * inner,), torch.float32 if exact else torch.float16),
        all_rows=torch.full((1,), rows, dtype=torch.int32, device=device),
    )


def pack_expert(
    gate: tuple[str, Tensor],
    up: tuple[str, Tensor],
    down: tuple[str, Tensor],
    *,
    kind: ExpertKind,
    out: Tensor | None = None,
) -> Tensor:
    """Packs one expert.

    Args:
        gate: ggml type and uint8 [ff, row bytes]; up likewise; down uint8 [hidden, row bytes].
        up: see gate.
        down: see gate.
        kind: formats and widths.
        out: int32 [kind.words] on the blocks' device, 16-byte aligned; a new tensor if None.

    Returns:
        The words.

    Raises:
        ValueError: a shape or type that does not fit the kind.
    """
    words = torch.empty(kind.words, dtype=torch.int32, device=gate[1].device) if out is None else out
    split = kind.gate_up_words
    pack_gate_up(gate, up, columns=kind.hidden, form=kind.gate_up, out=words[:split])
    pack(down[0], down[1], columns=kind.ff, form=kind.down, out=words[split:])
    return words


def split_expert(words: Tensor, kind: ExpertKind) -> tuple[Planes, Planes]:
    """The gate-up planes (16 rows of each in turn) and the down planes of an expert's words."""
    at = kind.gate_up_words
    return (
        Planes(kind.gate_up, 2 * operand_columns(kind.ff), kind.hidden, words[:at]),
        Planes(kind.down, kind.hidden, kind.ff, words[at:]),
    )


def table_entry(words: Tensor, anchor: Tensor, *, host: bool) -> int:
    """The table's number for an expert: where it lies, seen from the anchor, and its format bit.

    Args:
        words: the expert's words, on the card or in pinned host memory. They must outlive the entry.
        anchor: any int32 tensor on the card; all of a table's entries are seen from one anchor.
        host: whether they are of `host_kind`.

    Raises:
        ValueError: not 16-byte aligned to each other.
    """
    offset = words.data_ptr() - anchor.data_ptr()
    if offset % 16:
        raise ValueError(f"table_entry: expert at {words.data_ptr():#x} is not 16-byte aligned; allocate it alone")
    return offset // 16 * 2 + int(host)
