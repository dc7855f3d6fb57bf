"""Vector instructions that the compiler does not find by itself, written in its intermediate language.

Every function works on one tile: 32 columns, two vectors of 16 floats. A processor with shorter vectors takes several
for one. Arrays are contiguous float32 (codes: int8); an offset counts their elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

TILE: Final = 32
LANES: Final = 16
VECTORS: Final = TILE // LANES

_WORD = ir.IntType(64)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_BYTES = ir.VectorType(ir.IntType(8), LANES)
_INTEGERS = ir.VectorType(ir.IntType(32), LANES)
_POINTER, _BYTE_POINTER = ir.FloatType().as_pointer(), ir.IntType(8).as_pointer()


class _Emit:
    """Writes instructions into a function."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        self._fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_FLOATS, [_FLOATS] * 3), f"llvm.fma.v{LANES}f32"
        )

    def number(self, value: int) -> Any:
        """A constant."""
        return ir.Constant(_WORD, value)

    def at(self, pointer: Any, *terms: Any) -> Any:
        """The pointer moved by the sum of the terms."""
        for term in terms:
            pointer = self.builder.gep(pointer, [term])
        return pointer

    def load(self, pointer: Any, kind: ir.VectorType = _FLOATS) -> Any:
        """A vector from anywhere."""
        value = self.builder.load(self.builder.bitcast(pointer, kind.as_pointer()))
        value.align = 1 if kind is _BYTES else 4
        return value

    def store(self, value: Any, pointer: Any) -> None:
        """A vector to anywhere."""
        self.builder.store(value, self.builder.bitcast(pointer, _FLOATS.as_pointer())).align = 4

    def spread(self, scalar: Any) -> Any:
        """A vector of equal values."""
        one = self.builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
        return self.builder.shuffle_vector(one, ir.Constant(_FLOATS, ir.Undefined), ir.Constant(_INTEGERS, [0] * LANES))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """`a * b + c`."""
        return self.builder.call(self._fma, [a, b, c])

    def loop(self, count: Any, carried: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        """Runs the body for 0, 1, ... count - 1 (at least once); it gets and returns what is carried along."""
        builder = self.builder
        entry, inside = builder.block, builder.append_basic_block("inside")
        after = builder.append_basic_block("after")
        builder.branch(inside)
        builder.position_at_end(inside)
        index = builder.phi(_WORD)
        index.add_incoming(self.number(0), entry)
        values = []
        for first in carried:
            value = builder.phi(first.type)
            value.add_incoming(first, entry)
            values.append(value)
        results = body(index, values)
        following, end = builder.add(index, self.number(1)), builder.block
        builder.cbranch(builder.icmp_signed("<", following, count), inside, after)
        for value, result in zip([index, *values], [following, *results], strict=True):
            value.add_incoming(result, end)
        builder.position_at_end(after)
        return results


def _element(context: Any, builder: Any, kind: Any, array: Any, offset: Any) -> Any:
    """Pointer to an element of an array argument."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [offset])


def _function(module: Any, name: str, kinds: list[Any], body: Callable[[_Emit, Any], None]) -> Any:
    """A function of the module, written when it is first asked for; inlined, it would be compiled for every call."""
    function = cgutils.get_or_insert_function(module, ir.FunctionType(ir.VoidType(), kinds), f"strata_{name}")
    if not function.blocks:
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        body(_Emit(builder), function.args)
        builder.ret_void()
    return function


def multiply_floats(rows: int) -> Any:
    """`out[r] += sum over k of x[r, k] weights[k]` for so many rows of one tile, k in order.

    The function gets x, offset, stride of its rows, weights [count, TILE], offset, out, offset, stride, count.
    """

    def body(emit: _Emit, args: Any) -> None:
        x, x_step, weights, out, out_step, count = args
        places = _places(emit, out, out_step, rows)
        sources = _lines(emit, x, x_step, rows)

        def step(k: Any, sums: list[Any]) -> list[Any]:
            line = emit.at(weights, emit.builder.mul(k, emit.number(TILE)))
            columns = [emit.load(emit.at(line, emit.number(v * LANES))) for v in range(VECTORS)]
            return _outer(emit, sources, k, columns, sums)

        sums = emit.loop(count, [emit.load(place) for place in places], step)
        for total, place in zip(sums, places, strict=True):
            emit.store(total, place)

    @intrinsic  # type: ignore[untyped-decorator]
    def multiply(
        typing: Any, x: Any, x_at: Any, x_step: Any, weights: Any, w_at: Any, out: Any, out_at: Any, o_step: Any, n: Any
    ) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            of = signature.args
            pointers = [_element(context, builder, of[i], args[i], args[i + 1]) for i in (0, 3, 5)]
            kinds = [_POINTER, _WORD, _POINTER, _POINTER, _WORD, _WORD]
            function = _function(builder.module, f"multiply_floats_{rows}", kinds, body)
            builder.call(function, [pointers[0], args[2], pointers[1], pointers[2], args[7], args[8]])
            return context.get_dummy_value()

        i = types.intp
        return types.void(x, i, i, weights, i, out, i, i, i), code

    return multiply


def multiply_codes(rows: int) -> Any:
    """`out[r] += sum over groups g of scales[g] * (sum over k in g of x[r, k] codes[k])` for so many rows of one tile.

    The function gets x, offset, stride of its rows, codes [groups * group, TILE], offset, scales [groups, TILE],
    offset, out, offset, stride, groups, group.
    """

    def body(emit: _Emit, args: Any) -> None:
        builder = emit.builder
        x, x_step, codes, scales, out, out_step, groups, group = args
        places = _places(emit, out, out_step, rows)
        sources = _lines(emit, x, x_step, rows)

        def whole(g: Any, carried: list[Any]) -> list[Any]:
            first = builder.mul(g, group)

            def step(n: Any, sums: list[Any]) -> list[Any]:
                k = builder.add(first, n)
                line = emit.at(codes, builder.mul(k, emit.number(TILE)))
                stored = [emit.load(emit.at(line, emit.number(v * LANES)), _BYTES) for v in range(VECTORS)]
                columns = [builder.sitofp(builder.sext(value, _INTEGERS), _FLOATS) for value in stored]
                return _outer(emit, sources, k, columns, sums)

            sums = emit.loop(group, [ir.Constant(_FLOATS, [0.0] * LANES)] * len(places), step)
            line = emit.at(scales, builder.mul(g, emit.number(TILE)))
            factors = [emit.load(emit.at(line, emit.number(v * LANES))) for v in range(VECTORS)]
            for n, place in enumerate(places):
                emit.store(emit.fma(sums[n], factors[n % VECTORS], emit.load(place)), place)
            return carried

        emit.loop(groups, [], whole)

    @intrinsic  # type: ignore[untyped-decorator]
    def multiply(
        typing: Any,
        x: Any,
        x_at: Any,
        x_step: Any,
        codes: Any,
        codes_at: Any,
        scales: Any,
        scales_at: Any,
        out: Any,
        out_at: Any,
        out_step: Any,
        groups: Any,
        group: Any,
    ) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            of = signature.args
            pointers = [_element(context, builder, of[i], args[i], args[i + 1]) for i in (0, 3, 5, 7)]
            kinds = [_POINTER, _WORD, _BYTE_POINTER, _POINTER, _POINTER, _WORD, _WORD, _WORD]
            function = _function(builder.module, f"multiply_codes_{rows}", kinds, body)
            builder.call(function, [pointers[0], args[2], *pointers[1:], args[9], args[10], args[11]])
            return context.get_dummy_value()

        i = types.intp
        return types.void(x, i, i, codes, i, scales, i, out, i, i, i, i), code

    return multiply


def _lines(emit: _Emit, pointer: Any, step: Any, rows: int) -> list[Any]:
    """Where the rows begin."""
    return [emit.at(pointer, emit.builder.mul(step, emit.number(r))) for r in range(rows)]


def _places(emit: _Emit, pointer: Any, step: Any, rows: int) -> list[Any]:
    """Where the vectors of the rows' tiles begin."""
    return [emit.at(line, emit.number(v * LANES)) for line in _lines(emit, pointer, step, rows) for v in range(VECTORS)]


def _outer(emit: _Emit, sources: list[Any], k: Any, columns: list[Any], sums: list[Any]) -> list[Any]:
    """The sums and value k of every row times the columns."""
    values = [emit.spread(emit.builder.load(emit.at(source, k))) for source in sources]
    return [emit.fma(values[i // VECTORS], columns[i % VECTORS], sums[i]) for i in range(len(sums))]


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
