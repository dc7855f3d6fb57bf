"""Scalar steps that the compiler's language cannot say, and the width of a tile."""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.compiled.emit import LANES

TILE: Final = 32
VECTORS: Final = TILE // LANES


@intrinsic  # type: ignore[untyped-decorator]
def power_of_two(typing: Any, shifted: Any) -> Any:
    """2^n as float32, of the float32 `n + 1.5 * 2^23`, whose lowest bits are the whole number n (-126 to 127)."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        whole = builder.shl(builder.bitcast(args[0], ir.IntType(32)), ir.Constant(ir.IntType(32), 23))
        return builder.bitcast(builder.add(whole, ir.Constant(ir.IntType(32), 127 << 23)), ir.FloatType())

    return types.float32(types.float32), code


@intrinsic  # type: ignore[untyped-decorator]
def widen(typing: Any, value: Any) -> Any:
    """A stored value as float32: float32 itself, or int16 with the upper half of its bits (bf16)."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if value == types.float32:
            return args[0]
        bits = builder.shl(builder.zext(args[0], ir.IntType(32)), ir.Constant(ir.IntType(32), 16))
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(value), code


@intrinsic  # type: ignore[untyped-decorator]
def narrow(typing: Any, value: Any, like: Any) -> Any:
    """A float32 as it is stored beside `like`, see `widen`; bf16 is rounded to the nearest, ties to even."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if like == types.float32:
            return args[0]
        word = ir.IntType(32)
        bits = builder.bitcast(args[0], word)
        odd = builder.and_(builder.lshr(bits, ir.Constant(word, 16)), ir.Constant(word, 1))
        rounded = builder.add(builder.add(bits, ir.Constant(word, 0x7FFF)), odd)
        upper = builder.trunc(builder.lshr(rounded, ir.Constant(word, 16)), ir.IntType(16))
        # Rounding up a NaN's bits could make a number of it.
        nan = builder.fcmp_unordered("uno", args[0], args[0])
        return builder.select(nan, ir.Constant(ir.IntType(16), 0x7FC0), upper)

    return like(value, like), code
