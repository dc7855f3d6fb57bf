"""Products of a few rows with tiles of 32 columns, written so that sums stay in registers.

Arrays are contiguous float32 (codes: int8); an offset counts their elements. With few rows several tiles are computed
at once, because a sum waits for its last addition; a row's sum is taken in the same order in every case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.compiled.emit import BYTE_POINTER, BYTES, LANES, POINTER, WORD, Emit, element, function_of
from kernels.compiled.jit import address_of
from kernels.compiled.vector import TILE, VECTORS

Body = Callable[[Emit, Any], None]

# Rows at a time, and how many tiles then: as many as keep their sums in the 32 registers of a processor with vectors of
# 16 floats.
_WIDE = {1: 4, 2: 4, 3: 2, 4: 2, 5: 1, 6: 1, 7: 1, 8: 1}
MOST_ROWS: Final = 8
# Steps of a group that are written out, so that counting them costs little; every group is a multiple of this.
_STEPS = 4
# Codes that are asked for this far ahead: weights come from memory, and its own guess ends with every page of 4096.
AHEAD: Final = 2048
# Sums that are kept in registers beside those of a group.
_KEPT = 10


def _floats(rows: int) -> Callable[[Emit, Any], None]:
    """`out[r] = sum over k of x[r, k] weights[k]` for so many rows, k in order.

    The function gets x, stride of its rows, weights [tiles, count, TILE], out, stride, tiles, count.
    """

    def body(emit: Emit, args: Any) -> None:
        x, x_step, weights, out, out_step, tiles, count = args
        sources = lines_of(emit, x, x_step, rows)
        size = emit.builder.mul(count, emit.number(TILE))

        def some(tile: Any, wide: int) -> None:
            starts = lines_of(emit, emit.at(weights, emit.builder.mul(tile, size)), size, wide)

            def step(k: Any, sums: list[Any]) -> list[Any]:
                return outer(emit, sources, k, columns_of(emit, starts, k), sums)

            sums = emit.loop(count, [emit.zero] * (rows * wide * VECTORS), step)
            for total, place in zip(sums, places_of(emit, out, out_step, tile, rows, wide), strict=True):
                emit.store(total, place)

        _all_tiles(emit, tiles, rows, some)

    return body


def _codes(rows: int) -> Callable[[Emit, Any], None]:
    """`out[r] = sum over groups g of scales[g] * (sum over k in g of x[r, k] codes[k]) [+ totals[r, g] * lows[g]]`.

    The function gets x, stride of its rows, codes [tiles, groups * group, TILE], scales [tiles, groups, TILE], lows
    (the same), totals [rows, groups], whether there are lows, out, stride, tiles, groups, group.
    """

    def body(emit: Emit, args: Any) -> None:
        builder = emit.builder
        x, x_step, codes, scales, low, totals, lowered, out, out_step, tiles, groups, group = args
        sources, total_lines = lines_of(emit, x, x_step, rows), lines_of(emit, totals, groups, rows)
        size = builder.mul(builder.mul(groups, group), emit.number(TILE))
        scale_size = builder.mul(groups, emit.number(TILE))
        steps = builder.udiv(group, emit.number(_STEPS))

        def some(tile: Any, wide: int) -> None:
            places = places_of(emit, out, out_step, tile, rows, wide)
            starts = lines_of(emit, emit.at(codes, builder.mul(tile, size)), size, wide)
            scale_starts, low_starts = (
                lines_of(emit, emit.at(line, builder.mul(tile, scale_size)), scale_size, wide) for line in (scales, low)
            )
            count = len(places)
            kept = count <= _KEPT

            def step(first: Any, sums: list[Any]) -> list[Any]:
                base = builder.mul(first, emit.number(TILE))
                for inside in range(_STEPS):
                    offsets = [emit.number(inside * TILE + v * LANES) for v in range(VECTORS)]
                    loaded = [emit.load(emit.at(start, base, offset), BYTES) for start in starts for offset in offsets]
                    columns = [emit.converted(value) for value in loaded]
                    if inside % 2 == 0:
                        for start in starts:
                            emit.prefetch(emit.at(start, base, emit.number(inside * TILE + AHEAD)))
                    sums = outer(emit, sources, builder.add(first, emit.number(inside)), columns, sums)
                return sums

            def whole(g: Any, carried: list[Any]) -> list[Any]:
                first = builder.mul(g, group)
                sums = emit.loop(
                    steps,
                    [emit.zero] * count,
                    lambda n, sums: step(builder.add(first, builder.mul(n, emit.number(_STEPS))), sums),
                )
                factors = columns_of(emit, scale_starts, g)
                before = carried if kept else [emit.load(place) for place in places]
                found = [emit.fma(sums[n], factors[n % len(factors)], before[n]) for n in range(count)]
                found = emit.when(
                    builder.icmp_signed("!=", lowered, emit.number(0)),
                    found,
                    lambda sums: outer(emit, total_lines, g, columns_of(emit, low_starts, g), sums),
                )
                return found if kept else stored(emit, found, places)

            if kept:
                stored(emit, emit.loop(groups, [emit.zero] * count, whole), places)
            else:
                stored(emit, [emit.zero] * count, places)
                emit.loop(groups, [], whole)

        _all_tiles(emit, tiles, rows, some)

    return body


def _all_tiles(emit: Emit, tiles: Any, rows: int, some: Callable[[Any, int], None]) -> None:
    """Runs `some` over all tiles: several at once while there are as many, then one by one."""
    builder, wide = emit.builder, _WIDE[rows]
    done = emit.number(0)
    if wide > 1:
        blocks = builder.udiv(tiles, emit.number(wide))
        done = builder.mul(blocks, emit.number(wide))
        emit.repeat(blocks, lambda n: some(builder.mul(n, emit.number(wide)), wide))
    emit.repeat(builder.sub(tiles, done), lambda n: some(builder.add(done, n), 1))


def any_rows(name: str, bodies: Mapping[int, Callable[[Emit, Any], None]], kinds: str) -> Any:
    """Rows, and then what the function for so many rows gets; pointers (p) are whole numbers, as are all others."""

    @intrinsic  # type: ignore[untyped-decorator]
    def run(typing: Any, rows: Any, values: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            parts = cgutils.unpack_tuple(builder, args[1])
            given = [
                builder.inttoptr(part, {"p": POINTER, "b": BYTE_POINTER}[kind]) if kind in "pb" else part
                for kind, part in zip(kinds, parts, strict=True)
            ]
            after = builder.append_basic_block("called")
            choice = builder.switch(args[0], after)
            for count, body in bodies.items():
                block = builder.append_basic_block("rows")
                choice.add_case(ir.Constant(WORD, count), block)
                function = function_of(builder.module, f"{name}_{count}", [one.type for one in given], body)
                builder.position_at_end(block)
                builder.call(function, given)
                builder.branch(after)
            builder.position_at_end(after)
            return context.get_dummy_value()

        return types.void(rows, values), code

    return run


_run_floats = any_rows("floats", {rows: _floats(rows) for rows in _WIDE}, "pnppnnn")
_run_codes = any_rows("codes", {rows: _codes(rows) for rows in _WIDE}, "pnbpppnpnnnn")


@cache
def kernels() -> tuple[int, int]:
    """Addresses of the products with codes and with floats.

    They are called by address, so that their code is made once and not again for each function that multiplies.
    """
    i = types.int64

    def codes(
        rows: int,
        x: int,
        x_step: int,
        stored: int,
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
        _run_codes(rows, (x, x_step, stored, scales, lows, totals, lowered, out, out_step, tiles, groups, group))

    def floats(rows: int, x: int, x_step: int, weights: int, out: int, out_step: int, tiles: int, count: int) -> None:
        _run_floats(rows, (x, x_step, weights, out, out_step, tiles, count))

    return address_of(codes, types.void(*[i] * 13)), address_of(floats, types.void(*[i] * 8))


def _call(builder: Any, address: Any, values: list[Any]) -> None:
    """Calls what is at the address with pointers and whole numbers."""
    kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
    builder.call(builder.inttoptr(address, kind.as_pointer()), values)


@intrinsic  # type: ignore[untyped-decorator]
def multiply_floats(
    typing: Any,
    kernel: Any,
    x: Any,
    x_at: Any,
    x_step: Any,
    rows: Any,
    weights: Any,
    weights_at: Any,
    out: Any,
    out_at: Any,
    out_step: Any,
    tiles: Any,
    count: Any,
) -> Any:
    """Up to MOST_ROWS rows of x times tiles of floats, see `_floats`; `kernel` is the address."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        of = signature.args
        x, weights, out = (element(context, builder, of[i], args[i], args[i + 1]) for i in (1, 5, 7))
        _call(builder, args[0], [args[4], x, args[3], weights, out, *args[9:]])
        return context.get_dummy_value()

    i = types.intp
    return types.void(i, x, i, i, i, weights, i, out, i, i, i, i), code


@intrinsic  # type: ignore[untyped-decorator]
def multiply_codes(
    typing: Any,
    kernel: Any,
    x: Any,
    x_at: Any,
    x_step: Any,
    rows: Any,
    codes: Any,
    codes_at: Any,
    scales: Any,
    lows: Any,
    scales_at: Any,
    totals: Any,
    totals_at: Any,
    lowered: Any,
    out: Any,
    out_at: Any,
    out_step: Any,
    tiles: Any,
    groups: Any,
    group: Any,
) -> Any:
    """Up to MOST_ROWS rows of x times tiles of codes, see `_codes`; lows and totals are not read unless `lowered`."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        of = signature.args
        where = ((1, 2), (5, 6), (7, 9), (8, 9), (10, 11), (13, 14))
        x, codes, scales, lows, totals, out = (element(context, builder, of[i], args[i], args[at]) for i, at in where)
        _call(builder, args[0], [args[4], x, args[3], codes, scales, lows, totals, args[12], out, *args[15:]])
        return context.get_dummy_value()

    i = types.intp
    return types.void(i, x, i, i, i, codes, i, scales, lows, i, totals, i, i, out, i, i, i, i, i), code


def lines_of(emit: Emit, pointer: Any, step: Any, count: int) -> list[Any]:
    """Pointers at equal distances."""
    return [emit.at(pointer, emit.builder.mul(step, emit.number(n))) for n in range(count)]


def places_of(emit: Emit, pointer: Any, step: Any, tile: Any, rows: int, tiles: int) -> list[Any]:
    """Where the vectors of the rows' tiles begin."""
    lines = lines_of(emit, emit.at(pointer, emit.builder.mul(tile, emit.number(TILE))), step, rows)
    return [emit.at(line, emit.number(v * LANES)) for line in lines for v in range(tiles * VECTORS)]


def columns_of(emit: Emit, starts: list[Any], line: Any) -> list[Any]:
    """A line of every tile."""
    at = emit.builder.mul(line, emit.number(TILE))
    return [emit.load(emit.at(start, at, emit.number(v * LANES))) for start in starts for v in range(VECTORS)]


def outer(emit: Emit, sources: list[Any], k: Any, columns: list[Any], sums: list[Any]) -> list[Any]:
    """The sums and value k of every row times the columns."""
    width = len(columns)
    values = [emit.spread(emit.builder.load(emit.at(source, k))) for source in sources]
    return [emit.fma(values[i // width], columns[i % width], sums[i]) for i in range(len(sums))]


def stored(emit: Emit, values: list[Any], places: list[Any]) -> list[Any]:
    """Writes the values; nothing is carried on."""
    for value, place in zip(values, places, strict=True):
        emit.store(value, place)
    return []
