"""Weights as one row of whole numbers: to hand over an array costs a call a third of a microsecond, and they are many.

A record holds, field after field, an array's address and lengths, or a number. Whoever calls keeps the arrays alive.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from kernels.compiled.arrays import Integers
from kernels.compiled.emit import WORD, element

INTEGER, TRUTH = types.int64, types.boolean


def floats(axes: int) -> Any:
    """The kind of a contiguous float32 array."""
    return types.Array(types.float32, axes, "C")


def codes(axes: int) -> Any:
    """The kind of a contiguous int8 array."""
    return types.Array(types.int8, axes, "C")


def fields(of: type, **kinds: Any) -> Any:
    """The kind of a named tuple: of each field, in order."""
    assert tuple(kinds) == of._fields, (of, tuple(kinds))  # type: ignore[attr-defined]
    return types.NamedTuple(list(kinds.values()), of)


def record(value: Any, kind: Any) -> Integers:
    """The record of a named tuple; its arrays are contiguous, and have the types that the kind says."""
    return np.array(_numbers(value, kind), np.int64)


def _numbers(value: Any, kind: Any) -> list[int]:
    if isinstance(kind, types.NamedTuple):
        return [number for part, own in zip(value, kind.types, strict=True) for number in _numbers(part, own)]
    if not isinstance(kind, types.Array):
        return [int(value)]
    assert (value.ndim, value.dtype.name) == (kind.ndim, kind.dtype.name), (value.dtype, value.shape)
    assert value.flags.c_contiguous
    return [value.ctypes.data, *value.shape]


def recaller(kind: Any) -> Any:
    """A function from a record of that kind to the named tuple, in compiled code."""

    @intrinsic  # type: ignore[untyped-decorator]
    def recall(typing: Any, numbers: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            start = element(context, builder, signature.args[0], args[0], ir.Constant(WORD, 0))
            return _value(context, builder, kind, start, 0)[0]

        return kind(numbers), code

    return recall


def _value(context: Any, builder: Any, kind: Any, start: Any, at: int) -> tuple[Any, int]:
    """The value whose numbers begin there, and where the next ones do."""
    if isinstance(kind, types.NamedTuple):
        parts = []
        for own in kind.types:
            part, at = _value(context, builder, own, start, at)
            parts.append(part)
        return context.make_tuple(builder, kind, parts), at
    number = builder.load(builder.gep(start, [ir.Constant(WORD, at)]))
    if not isinstance(kind, types.Array):
        return (number if kind == INTEGER else builder.trunc(number, ir.IntType(1))), at + 1
    shape = [builder.load(builder.gep(start, [ir.Constant(WORD, at + 1 + axis)])) for axis in range(kind.ndim)]
    size = ir.Constant(WORD, kind.dtype.bitwidth // 8)
    strides = [size]
    for length in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], length))
    array = context.make_array(kind)(context, builder)
    data = builder.inttoptr(number, context.get_data_type(kind.dtype).as_pointer())
    populate_array(
        array,
        data=data,
        shape=cgutils.pack_array(builder, shape),
        strides=cgutils.pack_array(builder, strides),
        itemsize=size,
        meminfo=None,
    )
    return array._getvalue(), at + 1 + kind.ndim
