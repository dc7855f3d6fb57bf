"""Products of a few rows with tiles of codes in whole numbers, on processors that multiply small matrices (AMX).

The inputs that share a scale become whole numbers of 24 bits, as three digits of 8; their products with codes and the
sums of those are exact, and what is rounded is each input once, by less than 2^-23 of the largest beside it. A row's
result does not depend on the rows beside it, and is as near to the true one as that of products in float32.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target

from kernels.compiled.emit import BYTES, FLOATS, INTEGERS, LANES, Emit
from kernels.compiled.jit import address_of
from kernels.compiled.product import AHEAD, MOST_ROWS, Body, any_rows, columns_of, lines_of, outer, places_of, stored
from kernels.compiled.vector import TILE, VECTORS

# Inputs that share a scale.
GROUP: Final = 32
# The digits lie on the stack of the thread.
MOST_INPUTS: Final = 4096

# The largest of a group becomes this: three digits of -128 to 127.
_LARGEST: Final = 127 * 65536.0
_LEAST: Final = 1e-30
_DIGITS: Final = 3
# Rows of digits that a register holds, and the bytes of one.
_LINES, _LINE = 16, 64
# The registers: inputs of the first rows and of the others, codes of both vectors of columns, and what comes out.
_INPUTS, _CODES, _FIRST, _OTHERS = (0, 1), (2, 3), (4, 5), (6, 7)
_WORD, _BYTE = ir.IntType(32), ir.IntType(8)


@cache
def whole_kernel() -> int:
    """Address of the product; 0 where the processor or the system has none."""
    return _made() if _has_instructions() and _is_permitted() else 0


def _has_instructions() -> bool:
    features = str(cpu_target.target_context.codegen()._tm_features).split(",")
    return platform.machine() == "x86_64" and {"+amx-tile", "+amx-int8", "+avx512f"} <= set(features)


def _is_permitted() -> bool:
    """Asks the kernel for the registers: a process that does not ask must not use them."""
    if sys.platform != "linux":
        return False
    arch_prctl, ask_for_component, tile_data = 158, 0x1023, 18
    return bool(ctypes.CDLL(None).syscall(arch_prctl, ask_for_component, tile_data) == 0)


def _made() -> int:
    i = types.int64

    def whole(
        rows: int,
        x: int,
        x_step: int,
        codes: int,
        scales: int,
        lows: int,
        totals: int,
        lowered: int,
        out: int,
        out_step: int,
        tiles: int,
        groups: int,
        group: int,
    ) -> None:
        _run(rows, (x, x_step, codes, scales, lows, totals, lowered, out, out_step, tiles, groups, group))

    return address_of(whole, types.void(*[i] * 13))


def _whole(rows: int) -> Body:
    """As `kernels/compiled/product.py` says of codes, but those of a group lie as [vectors, GROUP / 4, LANES, 4]."""
    halves = [rows] if rows * _DIGITS <= _LINES else [-(-rows // 2), rows // 2]

    def body(emit: Emit, args: Any) -> None:
        builder = emit.builder
        x, x_step, codes, scales, low, totals, lowered, out, out_step, tiles, groups, _ = args
        inputs = builder.mul(groups, emit.number(GROUP))
        shares = _room(emit, ir.FloatType(), builder.mul(groups, emit.number(rows)))
        digits = _room(emit, _BYTE, builder.mul(inputs, emit.number(rows * _DIGITS)))
        results = _room(emit, _BYTE, emit.number(4 * _LINES * _LINE))
        _configure(emit, halves)
        lines, share_lines = lines_of(emit, digits, inputs, rows * _DIGITS), lines_of(emit, shares, groups, rows)
        for row, source in enumerate(lines_of(emit, x, x_step, rows)):
            own = lines[row * _DIGITS : (row + 1) * _DIGITS]
            _split_row(emit, source, own, share_lines[row], groups)
        starts = [lines[sum(halves[:n]) * _DIGITS] for n in range(len(halves))]
        total_lines = lines_of(emit, totals, groups, rows)

        def some(tile: Any) -> None:
            base = emit.at(codes, builder.mul(tile, builder.mul(inputs, emit.number(TILE))))
            first = builder.mul(tile, builder.mul(groups, emit.number(TILE)))
            scale_start, low_start = emit.at(scales, first), emit.at(low, first)

            def whole(g: Any, carried: list[Any]) -> list[Any]:
                at = emit.at(base, builder.mul(g, emit.number(GROUP * TILE)))
                _multiply(emit, [emit.at(start, builder.mul(g, emit.number(GROUP))) for start in starts], inputs, at)
                sums = _results(emit, halves, results)
                factors = columns_of(emit, [scale_start], g)
                units = [emit.spread(builder.load(emit.at(line, g))) for line in share_lines]
                found = [
                    emit.fma(builder.fmul(sums[n], units[n // VECTORS]), factors[n % VECTORS], before)
                    for n, before in enumerate(carried)
                ]
                return emit.when(
                    builder.icmp_signed("!=", lowered, emit.number(0)),
                    found,
                    lambda sums: outer(emit, total_lines, g, columns_of(emit, [low_start], g), sums),
                )

            stored(
                emit,
                emit.loop(groups, [emit.zero] * (rows * VECTORS), whole),
                places_of(emit, out, out_step, tile, rows, 1),
            )

        emit.repeat(tiles, some)
        _call(emit, "tilerelease")

    return body


_run = any_rows("whole", {rows: _whole(rows) for rows in range(1, MOST_ROWS + 1)}, "pnbpppnpnnnn")


def _room(emit: Emit, kind: Any, count: Any) -> Any:
    room = emit.builder.alloca(kind, size=count)
    room.align = _LINE
    return room


def _configure(emit: Emit, halves: list[int]) -> None:
    """Says how many lines of how many bytes each register has."""
    shape = [0] * _LINE
    shape[0] = 1
    wanted = dict.fromkeys(_CODES, (GROUP // 4, _LINE))
    for half, inputs, outs in zip(halves, _INPUTS, (_FIRST, _OTHERS), strict=False):
        wanted |= {inputs: (half * _DIGITS, GROUP)} | dict.fromkeys(outs, (half * _DIGITS, _LINE))
    for register, (lines, width) in wanted.items():
        shape[16 + 2 * register], shape[48 + register] = width, lines
    room = _room(emit, _BYTE, emit.number(_LINE))
    value = ir.Constant(ir.VectorType(_BYTE, _LINE), shape)
    emit.builder.store(value, emit.builder.bitcast(room, value.type.as_pointer())).align = 1
    _call(emit, "ldtilecfg", room)


def _split_row(emit: Emit, source: Any, lines: list[Any], shares: Any, groups: Any) -> None:
    """All groups of a row as digits."""
    emit.repeat(groups, lambda g: _split(emit, source, lines, shares, g))


def _split(emit: Emit, source: Any, lines: list[Any], shares: Any, g: Any) -> None:
    """Group g of a row as digits, the highest first, and what their unit is worth; NaN and infinity make it such."""
    builder = emit.builder
    at = builder.mul(g, emit.number(GROUP))
    offsets = [builder.add(at, emit.number(n)) for n in range(0, GROUP, LANES)]
    values = [emit.load(emit.at(source, offset)) for offset in offsets]
    # The bits of numbers without a sign are in the order of the numbers; those of NaN come last.
    sizes = [builder.and_(builder.bitcast(value, INTEGERS), emit.whole(0x7FFFFFFF)) for value in values]
    most = sizes[0]
    for size in sizes[1:]:
        most = builder.select(builder.icmp_unsigned(">", size, most), size, most)
    reduce = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_WORD, [INTEGERS]), f"llvm.vector.reduce.umax.v{LANES}i32"
    )
    largest = builder.bitcast(builder.call(reduce, [most]), ir.FloatType())
    least = ir.Constant(ir.FloatType(), _LEAST)
    largest = builder.select(builder.fcmp_ordered("<", largest, least), least, largest)
    times = builder.fdiv(ir.Constant(ir.FloatType(), _LARGEST), largest)
    builder.store(builder.fdiv(ir.Constant(ir.FloatType(), 1.0), times), emit.at(shares, g))
    nearest = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(INTEGERS, [FLOATS]), f"llvm.lrint.v{LANES}i32.v{LANES}f32"
    )
    for value, offset in zip(values, offsets, strict=True):
        number = builder.call(nearest, [builder.fmul(value, emit.spread(times))])
        for line in reversed(lines):
            digit = builder.trunc(number, BYTES)
            builder.store(digit, builder.bitcast(emit.at(line, offset), BYTES.as_pointer())).align = 1
            number = builder.ashr(builder.sub(number, builder.sext(digit, INTEGERS)), emit.whole(8))


def _multiply(emit: Emit, starts: list[Any], inputs: Any, codes: Any) -> None:
    """All digits of a group times its codes; leaves the sums in the registers."""
    for register, start in zip(_INPUTS, starts, strict=False):
        _call(emit, "tileloadd64", register, start, inputs)
    for n, register in enumerate(_CODES):
        _call(emit, "tileloadd64", register, emit.at(codes, emit.number(n * GROUP * LANES)), emit.number(_LINE))
    for at in range(0, GROUP * TILE, _LINE):
        emit.prefetch(emit.at(codes, emit.number(at + AHEAD)))
    for source, outs in zip(_INPUTS[: len(starts)], (_FIRST, _OTHERS), strict=False):
        for register, columns in zip(outs, _CODES, strict=True):
            _call(emit, "tilezero", register)
            _call(emit, "tdpbssd", register, source, columns)


def _results(emit: Emit, halves: list[int], room: Any) -> list[Any]:
    """The sums of the rows, both vectors of each, as floats."""
    builder, found = emit.builder, []
    size = _LINES * _LINE
    for half, outs in zip(range(len(halves)), (_FIRST, _OTHERS), strict=False):
        for n, register in enumerate(outs):
            place = emit.at(room, emit.number((half * VECTORS + n) * size))
            _call(emit, "tilestored64", register, place, emit.number(_LINE))
    for half, rows in enumerate(halves):
        for row in range(rows):
            for n in range(VECTORS):
                at = (half * VECTORS + n) * size + row * _DIGITS * _LINE
                places = [emit.at(room, emit.number(at + digit * _LINE)) for digit in range(_DIGITS)]
                high, middle, last = (emit.load(place, INTEGERS) for place in places)
                upper = builder.add(builder.shl(high, emit.whole(8)), middle)
                found.append(emit.fma(builder.sitofp(upper, FLOATS), emit.floats(256.0), builder.sitofp(last, FLOATS)))
    return found


def _call(emit: Emit, name: str, *args: Any) -> None:
    """An instruction of these registers; whole numbers are registers."""
    given = [ir.Constant(_BYTE, arg) if isinstance(arg, int) else arg for arg in args]
    kind = ir.FunctionType(ir.VoidType(), [arg.type for arg in given])
    emit.builder.call(cgutils.get_or_insert_function(emit.builder.module, kind, f"llvm.x86.{name}"), given)
