"""Packs ggml blocks into planes by one kernel, without temporaries: the same words as `pack`, many matrices at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch import Tensor

from kernels.planes._pack import pack_kernel
from kernels.planes.fields import SPLIT
from kernels.planes.format import FORMATS, TILE_COLUMNS, TILE_ROWS
from kernels.planes.pack import choose_format
from kernels.planes.planes import Planes
from kernels.quant.codebooks import grid
from kernels.quant.table import FORMATS as BLOCKS

_GRID_OF: Final = {
    "IQ3_S": "iq3_s",
    "IQ3_XXS": "iq3_xxs",
    "IQ2_S": "iq2_s",
    "IQ2_XS": "iq2_xs",
    "IQ2_XXS": "iq2_xxs",
    "IQ1_S": "iq1_s",
    "IQ1_M": "iq1_s",
}
_BLOCKS_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """Matrices of one shape and type, stored one after the other.

    Attributes:
        type_name: ggml type.
        raw: uint8 [items, rows, row bytes]; rows lie without gaps, items may have some between them.
        beside: the same of the up matrices where gate and up are packed together, else None.
        columns: weights in a row.
        form: name of the plane format.
    """

    type_name: str
    raw: Tensor
    beside: Tensor | None = None
    columns: int
    form: str

    @property
    def strips(self) -> int:
        """Strips of one item; with `beside` rows are rounded up to 128, as in `pack_gate_up`."""
        rows = self.raw.shape[1]
        if self.beside is None:
            return -(-rows // TILE_ROWS)
        return -(-rows // TILE_COLUMNS) * TILE_COLUMNS * 2 // TILE_ROWS


def can_pack(type_name: str, form: str) -> bool:
    """Whether `pack_items` knows this pair; others are packed by torch."""
    return (type_name, form) in SPLIT


def pack_items(items: Items, *, out: Tensor, places: Tensor, bad: Tensor, skip: int = 0) -> None:
    """Packs each item to its place.

    Args:
        items: what to pack.
        out: int32, on the blocks' device or pinned; 16-byte aligned.
        places: int64 [items] on the blocks' device: words from the start of `out`; items with -1 are left out.
        bad: int32 [1], or [2] for two matrices: scales that are NaN or infinite are added, as `nonfinite` counts them.
        skip: words from an item's place to these planes.

    Raises:
        ValueError: a pair of type and format that is not known, or shapes that do not fit.
    """
    raw, beside, name = items.raw, items.beside, items.type_name
    if not can_pack(name, items.form):
        raise ValueError(f"pack_items: {name} is not packed as {items.form} by the kernel; use pack")
    block = BLOCKS[name]
    row_bytes = items.columns // block.block_weights * block.block_bytes
    count, rows, found = raw.shape
    if found != row_bytes or items.columns % block.block_weights or raw.stride()[1:] != (row_bytes, 1):
        raise ValueError(
            f"pack_items: {name} rows of {items.columns} weights are uint8 [items, rows, {row_bytes}] without gaps, "
            f"found {list(raw.shape)}"
        )
    if beside is not None and (beside.shape != raw.shape or (count > 1 and beside.stride() != raw.stride())):
        raise ValueError(
            f"pack_items: {list(raw.shape)} gate rows and {list(beside.shape)} up rows; they must be equal"
        )
    if places.shape != (count,) or bad.shape != (1 if beside is None else 2,):
        raise ValueError(f"pack_items: {count} items, {list(places.shape)} places and {list(bad.shape)} counters")
    pack_kernel[(count * items.strips,)](
        raw,
        raw if beside is None else beside,
        out,
        places,
        bad,
        _grid(name, raw.device),
        raw.stride(0),
        rows,
        row_bytes,
        items.columns,
        items.strips,
        skip,
        FMT=FORMATS[items.form].packed,
        TYPE=name,
        BW=block.block_weights,
        BB=block.block_bytes,
        GROUP=FORMATS[items.form].group,
        PAIR=beside is not None,
        BT=_BLOCKS_AT_ONCE,
        num_warps=4,
    )


def pack_quickly(
    type_name: str, raw: Tensor, *, columns: int, form: str | None = None, beside: Tensor | None = None
) -> Planes:
    """One matrix, or with `beside` gate and up together, as `pack` and `pack_gate_up` do it; no scales are looked at.

    Args:
        type_name: ggml type, which `pack_items` knows in this format.
        raw: uint8 [rows, row bytes]; gaps between rows cost a copy.
        columns: weights in a row.
        form: plane format; the usual one of the type if None.
        beside: the up matrix.
    """
    target = choose_format(type_name, form)
    both = None if beside is None else beside.contiguous().unsqueeze(0)
    items = Items(
        type_name=type_name, raw=raw.contiguous().unsqueeze(0), beside=both, columns=columns, form=target.name
    )
    rows = raw.shape[0] if beside is None else items.strips * TILE_ROWS
    words = torch.empty(items.strips * target.strip_words(columns), dtype=torch.int32, device=raw.device)
    place = torch.zeros(1, dtype=torch.int64, device=raw.device)
    bad = torch.zeros(1 if beside is None else 2, dtype=torch.int32, device=raw.device)
    pack_items(items, out=words, places=place, bad=bad)
    return Planes(target.name, rows, columns, words)


@cache
def _grid(name: str, device: torch.device) -> Tensor:
    """int32 [entries]: the codes of a grid's row in nibbles, the first lowest; one unused entry for other types."""
    book = _GRID_OF.get(name)
    if book is None:
        return torch.zeros(1, dtype=torch.int32, device=device)
    values = grid(book, torch.device("cpu"))
    if book == "iq1_s":
        codes = values + 1
    elif book in ("iq3_s", "iq3_xxs"):
        codes = torch.div(values, 2 if book == "iq3_s" else 8, rounding_mode="floor") + 8
    else:
        codes = (values > 20).to(torch.float32) + (values > 40)
    packed = sum((codes[:, at].to(torch.int64) << (4 * at) for at in range(codes.shape[1])), torch.tensor(0))
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32).to(device)
