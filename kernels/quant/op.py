"""Unpacks rows of ggml blocks to float32, in slices so that temporary memory stays bounded."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.quant.table import FORMATS, Format

# Temporaries are at most about 12 bytes a weight. On the CPU a slice and its temporaries should stay near the cache.
_CPU_SLICE_WEIGHTS = 1 << 19
_CUDA_SLICE_WEIGHTS = 1 << 24


def row_bytes(type_name: str, columns: int) -> int:
    """Bytes of a row of `columns` weights.

    Raises:
        ValueError: a type that is not in SUPPORTED, or columns that are not whole blocks.
    """
    form = _format(type_name)
    if columns < 0 or columns % form.block_weights:
        raise ValueError(f"{type_name} rows are multiples of {form.block_weights} weights, found {columns}")
    return columns // form.block_weights * form.block_bytes


def dequantise(raw: Tensor, type_name: str, *, columns: int) -> Tensor:
    """Unpacks rows of blocks.

    Args:
        raw: uint8 [rows, row_bytes(type_name, columns)], CPU or CUDA.
        type_name: name of the ggml type as in SUPPORTED, e.g. "Q4_K".
        columns: weights in a row.

    Returns:
        A new float32 [rows, columns] on the same device, exact to the bit with ggml's reference.

    Raises:
        ValueError: a type, shape or dtype that does not fit.
    """
    form = _checked(raw, type_name, columns)
    blocks = raw.reshape(-1, form.block_bytes)
    values = torch.empty((blocks.shape[0], form.block_weights), dtype=torch.float32, device=raw.device)
    step = _slice_blocks(raw, form)
    for first in range(0, blocks.shape[0], step):
        values[first : first + step] = form.unpack(blocks[first : first + step])
    return values.view(raw.shape[0], columns)


def gather_rows(table_raw: Tensor, rows: Tensor, type_name: str, *, columns: int) -> Tensor:
    """Unpacks only the chosen rows of a table: embeddings, n-gram tables.

    Args:
        table_raw: uint8 [table rows, row_bytes(type_name, columns)]; may be a memory map, only the rows are touched.
        rows: int64 or int32 of any shape, on the table's device.
        type_name: name of the ggml type as in SUPPORTED.
        columns: weights in a row.

    Returns:
        float32 [*rows.shape, columns].

    Raises:
        ValueError: a type, shape or dtype that does not fit.
        IndexError: a row outside the table (on the CPU; a device-side assertion on CUDA).
    """
    if rows.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"rows to gather are int64 or int32, found {rows.dtype}")
    if table_raw.dim() != 2:
        raise ValueError(f"a table has shape [rows, row bytes], found {list(table_raw.shape)}")
    picked = table_raw.index_select(0, rows.reshape(-1))
    return dequantise(picked, type_name, columns=columns).view(*rows.shape, columns)


def count_nonfinite(raw: Tensor, type_name: str, *, columns: int) -> int:
    """How many scales of the blocks (for plain types: values) are NaN or infinite.

    Raises:
        ValueError: as `dequantise`.
    """
    return int(nonfinite(raw, type_name, columns=columns))


def nonfinite(raw: Tensor, type_name: str, *, columns: int) -> Tensor:
    """The same number as int64 [] on raw's device, without waiting for it; reads only the scales where it can.

    Raises:
        ValueError: as `dequantise`.
    """
    form = _checked(raw, type_name, columns)
    blocks = raw.reshape(-1, form.block_bytes)
    found: list[Tensor] = []
    # A byte of each block is all that is looked at on a card: a slice may have as many blocks as weights otherwise.
    step = _slice_blocks(raw, form) * (form.block_weights if raw.is_cuda and form.scale_offsets else 1)
    for first in range(0, blocks.shape[0], step):
        part = blocks[first : first + step]
        if form.scale_offsets:
            # Only the upper byte of an IEEE half is needed: an exponent of all ones is NaN or infinite.
            found += [((part[:, at + 1] & 0x7C) == 0x7C).sum() for at in form.scale_offsets]
        else:
            found.append((~torch.isfinite(form.unpack(part))).sum())
    if not found:
        return torch.zeros((), dtype=torch.int64, device=raw.device)
    return found[0] if len(found) == 1 else torch.stack(found).sum()


def _format(type_name: str) -> Format:
    form = FORMATS.get(type_name)
    if form is None:
        raise ValueError(f"ggml type {type_name} cannot be unpacked; supported: {', '.join(FORMATS)}")
    return form


def _checked(raw: Tensor, type_name: str, columns: int) -> Format:
    bytes_a_row = row_bytes(type_name, columns)
    if raw.dtype != torch.uint8:
        raise ValueError(f"{type_name} rows are unpacked from uint8, found {raw.dtype}")
    if raw.dim() != 2 or raw.shape[1] != bytes_a_row:
        raise ValueError(
            f"{type_name} rows of {columns} weights have shape [rows, {bytes_a_row}], found {list(raw.shape)}"
        )
    return FORMATS[type_name]


def _slice_blocks(raw: Tensor, form: Format) -> int:
    weights = _CUDA_SLICE_WEIGHTS if raw.is_cuda else _CPU_SLICE_WEIGHTS
    return max(1, weights // form.block_weights)
