"""Packs the gate and up matrices of an expert together, whatever their two types."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.planes.format import TILE_COLUMNS, TILE_ROWS, PlaneFormat, formats_of
from kernels.planes.pack import Rows, choose_format, encode, float_or_wide, pack, padded_rows
from kernels.planes.planes import Planes


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
        both = torch.stack((padded_rows(gate_raw, missing), padded_rows(up_raw, missing)))
        mixed = _alternating(both)
        return pack(gate_type, mixed, columns=columns, form=target.name, out=out)
    halves = [
        float_or_wide(name, target, padded_rows(raw, missing), columns)
        for name, raw in ((gate_type, gate_raw), (up_type, up_raw))
    ]
    strips = encode(target, _interleaved(halves[0], halves[1]))
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


def _alternating(both: Tensor) -> Tensor:
    """[2, rows, ...] to [2 * rows, ...]: 16 rows of the first, the same 16 of the second, and so on."""
    rest = both.shape[2:]
    return both.reshape(2, -1, TILE_ROWS // 2, *rest).transpose(0, 1).reshape(-1, *rest)


def _interleaved(gate: Rows, up: Rows) -> Rows:
    def mix(a: Tensor | None, b: Tensor | None) -> Tensor | None:
        if a is None or b is None:
            return None
        return _alternating(torch.stack((a, b)))

    codes, d = mix(gate.codes, up.codes), mix(gate.d, up.d)
    assert codes is not None
    assert d is not None
    return Rows(codes, d, mix(gate.steps, up.steps), mix(gate.low, up.low), mix(gate.low_steps, up.low_steps), None)
