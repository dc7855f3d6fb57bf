"""Packs ggml blocks into planes, in slices of strips so that temporary memory stays bounded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels.planes import bits
from kernels.planes.fields import SPLIT, Fields
from kernels.planes.format import (
    ANY_TYPE,
    STEP_BIAS,
    TABLES,
    TAIL_WORDS,
    TILE_COLUMNS,
    TILE_ROWS,
    PlaneFormat,
    formats_of,
)
from kernels.planes.planes import Planes, word_count
from kernels.quant import dequantise, row_bytes
from kernels.quant.table import FORMATS as BLOCKS

# Temporaries are about 40 bytes a weight.
_CPU_SLICE_WEIGHTS = 1 << 20
_CUDA_SLICE_WEIGHTS = 1 << 21
_HALF_EXPONENT = 15


@dataclass(slots=True)
class Rows:
    """Rows of whole tiles: codes [rows, columns]; scales and steps [rows, chunks, groups]; d and low [rows, chunks]."""

    codes: Tensor
    d: Tensor
    steps: Tensor | None
    low: Tensor | None
    low_steps: Tensor | None
    index: Tensor | None


def choose_format(type_name: str, name: str | None = None) -> PlaneFormat:
    """The usual format of a ggml type, or the named one.

    Raises:
        ValueError: a type without planes, or a format that does not hold it.
    """
    forms = formats_of(type_name)
    if name is None:
        return forms[0]
    for form in forms:
        if form.name == name:
            return form
    raise ValueError(f"{type_name} does not fit format {name}; allowed: {', '.join(form.name for form in forms)}")


def pack(type_name: str, raw: Tensor, *, columns: int, form: str | None = None, out: Tensor | None = None) -> Planes:
    """Packs rows of blocks.

    Args:
        type_name: ggml type, e.g. "Q4_K".
        raw: uint8 [rows, row bytes], CPU or CUDA.
        columns: weights in a row.
        form: name of a plane format that holds the type; the usual one if None.
        out: int32, exactly the words needed, on raw's device; a new tensor if None. A slice of strips of a larger
            matrix may be packed into its slice of words.

    Returns:
        The planes. Their values are those of the blocks up to the rounding that `unpack` states.

    Raises:
        ValueError: a type, format or shape that does not fit.
    """
    target = choose_format(type_name, form)
    if raw.dim() != 2 or raw.shape[1] != row_bytes(type_name, columns) or raw.shape[0] == 0:
        raise ValueError(
            f"pack: {type_name} rows of {columns} weights have shape [rows, {row_bytes(type_name, columns)}], "
            f"found {list(raw.shape)}"
        )
    rows = raw.shape[0]
    count = word_count(target, rows=rows, columns=columns)
    words = torch.empty(count, dtype=torch.int32, device=raw.device) if out is None else out
    if words.shape != (count,) or words.dtype != torch.int32 or words.device != raw.device:
        raise ValueError(f"pack: out is int32 [{count}] on {raw.device}, found {words.dtype} {list(words.shape)}")
    strip = target.strip_words(columns)
    step = max(1, (_CUDA_SLICE_WEIGHTS if raw.is_cuda else _CPU_SLICE_WEIGHTS) // (TILE_ROWS * columns)) * TILE_ROWS
    for first in range(0, rows, step):
        part = raw[first : first + step]
        strips = _pack_strips(type_name, target, part, columns)
        words[first // TILE_ROWS * strip :][: strips.numel()] = strips.reshape(-1)
    return Planes(target.name, rows, columns, words)


def padded_rows(raw: Tensor, missing: int) -> Tensor:
    """Blocks with `missing` rows of zero bytes below, which are zeros in every type."""
    return pad(raw, (0, 0, 0, missing)) if missing else raw


def float_or_wide(type_name: str, form: PlaneFormat, raw: Tensor, columns: int) -> Rows:
    """Whole tiles of any type that `form` holds: floats, its own fields, or widened ones."""
    if form.bits >= 16:
        return _floats(type_name, raw, columns)
    natural = formats_of(type_name)[0]
    rows = _whole_tiles(
        SPLIT[type_name, natural.name](raw.reshape(-1, BLOCKS[type_name].block_bytes)), raw.shape[0], columns
    )
    return rows if natural == form else _widened(natural, rows)


def _pack_strips(type_name: str, form: PlaneFormat, raw: Tensor, columns: int) -> Tensor:
    """int32 [strips, strip words] of up to a slice of rows."""
    raw = padded_rows(raw, -raw.shape[0] % TILE_ROWS)
    if form.bits >= 16:
        return encode(form, _floats(type_name, raw, columns), exact=type_name == "F16")
    if form.name == ANY_TYPE:
        return encode(form, float_or_wide(type_name, form, raw, columns))
    blocks = raw.reshape(-1, BLOCKS[type_name].block_bytes)
    return encode(form, _whole_tiles(SPLIT[type_name, form.name](blocks), raw.shape[0], columns))


def _floats(type_name: str, raw: Tensor, columns: int) -> Rows:
    values = pad(dequantise(raw, type_name, columns=columns), (0, -columns % TILE_COLUMNS))
    return Rows(values, values.abs().amax(1, keepdim=True), None, None, None, None)


def _whole_tiles(parts: Fields, rows: int, columns: int) -> Rows:
    """Blocks to rows, inputs padded to 128 with zero scales."""
    chunks = -(-columns // TILE_COLUMNS)

    def grouped(values: Tensor | None, group: int) -> Tensor | None:
        if values is None:
            return None
        flat = values.reshape(rows, -1)
        return pad(flat, (0, chunks * TILE_COLUMNS // group - flat.shape[1])).reshape(rows, chunks, -1)

    def scales(values: Tensor | None) -> Tensor | None:
        if values is None or parts.steps is None:
            return grouped(values, 32)
        return values.reshape(rows, -1).repeat_interleave(2, dim=1)

    group = 32 if parts.steps is None else parts.codes.shape[1] // parts.steps.shape[1]
    codes = pad(parts.codes.reshape(rows, columns), (0, chunks * TILE_COLUMNS - columns))
    d, index = scales(parts.d), parts.index
    assert d is not None
    return Rows(
        codes,
        d,
        grouped(parts.steps, group),
        scales(parts.low),
        grouped(parts.low_steps, group),
        None if index is None else index.reshape(rows, -1),
    )


def _widened(natural: PlaneFormat, rows: Rows) -> Rows:
    """Rows of any blocked format as unsigned 8-bit codes with a scale and an offset for every 16 inputs."""
    scale, low = _products(natural, rows)
    if natural.table:
        levels = torch.tensor(TABLES[natural.table], dtype=torch.int16, device=rows.codes.device)
        codes, zero = levels[rows.codes.to(torch.int32)] - levels.min(), -float(levels.min())
    else:
        codes, zero = rows.codes, natural.zero
    low = scale * -zero if low is None else low - scale * zero
    spread = natural.group // 16
    scale, low = (values.repeat_interleave(spread, dim=2) for values in (scale, low))
    return Rows(codes.to(torch.uint8), scale, None, low, None, None)


def _products(form: PlaneFormat, rows: Rows) -> tuple[Tensor, Tensor | None]:
    """The scale and the offset of each group, float32 [rows, chunks, groups]."""
    if rows.steps is None:
        return rows.d, rows.low
    scale = rows.d.unsqueeze(2) * (2 * rows.steps + 1 if form.odd else rows.steps)
    return scale, None if rows.low is None or rows.low_steps is None else rows.low.unsqueeze(2) * rows.low_steps


def encode(form: PlaneFormat, rows: Rows, *, exact: bool = False) -> Tensor:
    """int32 [strips, strip words]. A strip's values are divided by a power of two, kept as its multiplier."""
    exponent = _exponents(form, rows) if not exact else torch.zeros_like(rows.d[::TILE_ROWS, 0], dtype=torch.int32)
    shrink = torch.ldexp(torch.ones_like(exponent, dtype=torch.float32), -exponent).repeat_interleave(TILE_ROWS)
    if form.bits >= 16:
        body = bits.code_words(form, rows.codes * shrink[:, None]).flatten(1)
    else:
        codes = bits.code_words(form, rows.codes) if rows.index is None else bits.codebook_words(rows.index, rows.codes)
        body = torch.cat((codes.flatten(1), _scale_words(form, rows, shrink * 4096.0).flatten(1)), dim=1)
    tail = torch.zeros((body.shape[0], TAIL_WORDS), dtype=torch.int32, device=body.device)
    tail[:, 0] = torch.ldexp(torch.ones_like(exponent, dtype=torch.float32), exponent).view(torch.int32)
    return torch.cat((body, tail), dim=1)


def _exponents(form: PlaneFormat, rows: Rows) -> Tensor:
    """int32 [strips]: the smallest power of two under which a strip's scales and offsets fit their fields."""
    if form.bits >= 16:
        return torch.frexp(rows.d.reshape(-1, TILE_ROWS).amax(1)).exponent - _HALF_EXPONENT
    scale, low = _products(form, rows)
    # Scales stay below 2^-8 (with room for their rounding), their fp16 factors below 2^3, offsets below 2^3.
    bound = torch.maximum(scale.abs().flatten(1).amax(1) * 257.0, rows.d.abs().flatten(1).amax(1) / 8)
    if low is not None and rows.low is not None:
        largest = torch.maximum(low.abs().flatten(1).amax(1), rows.low.abs().flatten(1).amax(1))
        bound = torch.maximum(bound, largest / 8)
    return torch.frexp(bound.reshape(-1, TILE_ROWS).amax(1)).exponent


def _scale_words(form: PlaneFormat, rows: Rows, factor: Tensor) -> Tensor:
    d = rows.d * factor.reshape(-1, *[1] * (rows.d.dim() - 1))
    low = None if rows.low is None else rows.low * factor.reshape(-1, *[1] * (rows.low.dim() - 1))
    if rows.steps is None:
        pairs = [bits.scale_pairs(d)] + ([] if low is None else [bits.scale_pairs(low)])
        return torch.cat(pairs, dim=2)
    bias = STEP_BIAS if form.step_bits == 8 else 0
    steps = rows.steps + bias
    if (form.step_bits, form.group) == (4, 32):
        return bits.nibbles_beside_half(d, steps)
    parts = [bits.step_words(form, steps)]
    if rows.low_steps is not None:
        parts.append(bits.step_words(form, rows.low_steps + bias))
    return torch.cat([*parts, bits.row_words(d, low)], dim=2)
