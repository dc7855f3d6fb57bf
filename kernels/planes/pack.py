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
_CUDA_SLICE_WEIGHTS = 1 << 24
_HALF_EXPONENT = 15


@dataclass(slots=True)
class _Rows:
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


def pack_gate_up(
    gate: tuple[str, Tensor],
    up: tuple[str, Tensor],
    *,
    columns: int,
    form: str | None = None,
    out: Tensor | None = None,
) -> Planes:
    """Packs a gate and an up matrix for `kernels.experts`: strips of 16 gate rows and the 16 up rows beside them.

    Args:
        gate: ggml type and uint8 [ff, row bytes].
        up: likewise. Where the types differ, both go to the first format that holds both, `wide` at the latest.
        columns: weights in a row.
        form: plane format; the usual one of the types if None.
        out: as in `pack`.

    Returns:
        Planes of 2 * ff rows, ff rounded up to 128 (so that the hidden row is a whole operand row).

    Raises:
        ValueError: shapes differ, or a type does not fit the format.
    """
    (gate_type, gate_raw), (up_type, up_raw) = gate, up
    if gate_raw.shape[0] != up_raw.shape[0]:
        raise ValueError(
            f"pack_gate_up: {gate_raw.shape[0]} gate rows and {up_raw.shape[0]} up rows; they must be equal"
        )
    target = common_format(gate_type, up_type, form)
    missing = -gate_raw.shape[0] % TILE_COLUMNS
    if gate_type == up_type:
        both = torch.stack((_padded_rows(gate_raw, missing), _padded_rows(up_raw, missing)))
        mixed = _alternating(both)
        return pack(gate_type, mixed, columns=columns, form=target.name, out=out)
    halves = [
        _float_or_wide(name, target, _padded_rows(raw, missing), columns)
        for name, raw in ((gate_type, gate_raw), (up_type, up_raw))
    ]
    strips = _encode(target, _interleaved(halves[0], halves[1]))
    planes = Planes(target.name, 2 * (gate_raw.shape[0] + missing), columns, strips.reshape(-1))
    if out is not None:
        out.copy_(planes.words)
        planes = planes.with_words(out)
    return planes


def common_format(gate_type: str, up_type: str, form: str | None = None) -> PlaneFormat:
    """The format `pack_gate_up` uses for two ggml types.

    Raises:
        ValueError: no format holds both.
    """
    if gate_type == up_type:
        return choose_format(gate_type, form)
    shared = [one for one in formats_of(gate_type) if one.name in {other.name for other in formats_of(up_type)}]
    named = [one for one in shared if form in (None, one.name)]
    if not named:
        raise ValueError(f"no plane format {form or ''} holds both {gate_type} and {up_type}; store them in one type")
    return named[0]


def _padded_rows(raw: Tensor, missing: int) -> Tensor:
    return pad(raw, (0, 0, 0, missing)) if missing else raw


def _float_or_wide(type_name: str, form: PlaneFormat, raw: Tensor, columns: int) -> _Rows:
    if form.bits >= 16:
        return _floats(type_name, raw, columns)
    natural = formats_of(type_name)[0]
    rows = _whole_tiles(
        SPLIT[type_name, natural.name](raw.reshape(-1, BLOCKS[type_name].block_bytes)), raw.shape[0], columns
    )
    return rows if natural == form else _widened(natural, rows)


def _alternating(both: Tensor) -> Tensor:
    """[2, rows, ...] to [2 * rows, ...]: 16 rows of the first, the same 16 of the second, and so on."""
    rest = both.shape[2:]
    return both.reshape(2, -1, TILE_ROWS // 2, *rest).transpose(0, 1).reshape(-1, *rest)


def _interleaved(gate: _Rows, up: _Rows) -> _Rows:
    def mix(a: Tensor | None, b: Tensor | None) -> Tensor | None:
        if a is None or b is None:
            return None
        return _alternating(torch.stack((a, b)))

    codes, d = mix(gate.codes, up.codes), mix(gate.d, up.d)
    assert codes is not None
    assert d is not None
    return _Rows(codes, d, mix(gate.steps, up.steps), mix(gate.low, up.low), mix(gate.low_steps, up.low_steps), None)


def _pack_strips(type_name: str, form: PlaneFormat, raw: Tensor, columns: int) -> Tensor:
    """int32 [strips, strip words] of up to a slice of rows."""
    raw = _padded_rows(raw, -raw.shape[0] % TILE_ROWS)
    if form.bits >= 16:
        return _encode(form, _floats(type_name, raw, columns), exact=type_name == "F16")
    if form.name == ANY_TYPE:
        return _encode(form, _float_or_wide(type_name, form, raw, columns))
    blocks = raw.reshape(-1, BLOCKS[type_name].block_bytes)
    return _encode(form, _whole_tiles(SPLIT[type_name, form.name](blocks), raw.shape[0], columns))


def _floats(type_name: str, raw: Tensor, columns: int) -> _Rows:
    values = pad(dequantise(raw, type_name, columns=columns), (0, -columns % TILE_COLUMNS))
    return _Rows(values, values.abs().amax(1, keepdim=True), None, None, None, None)


def _whole_tiles(parts: Fields, rows: int, columns: int) -> _Rows:
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
    return _Rows(
        codes,
        d,
        grouped(parts.steps, group),
        scales(parts.low),
        grouped(parts.low_steps, group),
        None if index is None else index.reshape(rows, -1),
    )


def _widened(natural: PlaneFormat, rows: _Rows) -> _Rows:
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
    return _Rows(codes.to(torch.uint8), scale, None, low, None, None)


def _products(form: PlaneFormat, rows: _Rows) -> tuple[Tensor, Tensor | None]:
    """The scale and the offset of each group, float32 [rows, chunks, groups]."""
    if rows.steps is None:
        return rows.d, rows.low
    scale = rows.d.unsqueeze(2) * (2 * rows.steps + 1 if form.odd else rows.steps)
    return scale, None if rows.low is None or rows.low_steps is None else rows.low.unsqueeze(2) * rows.low_steps


def _encode(form: PlaneFormat, rows: _Rows, *, exact: bool = False) -> Tensor:
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


def _exponents(form: PlaneFormat, rows: _Rows) -> Tensor:
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


def _scale_words(form: PlaneFormat, rows: _Rows, factor: Tensor) -> Tensor:
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
