"""Writes vector instructions in the compiler's language; a processor with shorter vectors takes several for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba.core import cgutils

LANES: Final = 16

WORD = ir.IntType(64)
FLOATS = ir.VectorType(ir.FloatType(), LANES)
BYTES = ir.VectorType(ir.IntType(8), LANES)
SHORTS = ir.VectorType(ir.IntType(16), LANES)
INTEGERS = ir.VectorType(ir.IntType(32), LANES)
POINTER, BYTE_POINTER, SHORT_POINTER = (kind.as_pointer() for kind in (ir.FloatType(), ir.IntType(8), ir.IntType(16)))


class Emit:
    """Writes instructions into a function."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        self._fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(FLOATS, [FLOATS] * 3), f"llvm.fma.v{LANES}f32"
        )

    def number(self, value: int) -> Any:
        """A constant."""
        return ir.Constant(WORD, value)

    def at(self, pointer: Any, *terms: Any) -> Any:
        """The pointer moved by the sum of the terms."""
        for term in terms:
            pointer = self.builder.gep(pointer, [term])
        return pointer

    def load(self, pointer: Any, kind: ir.VectorType = FLOATS) -> Any:
        """A vector from anywhere."""
        value = self.builder.load(self.builder.bitcast(pointer, kind.as_pointer()))
        value.align = kind.element.width // 8 if kind is not FLOATS else 4
        return value

    def store(self, value: Any, pointer: Any) -> None:
        """A vector to anywhere."""
        self.builder.store(value, self.builder.bitcast(pointer, FLOATS.as_pointer())).align = 4

    def spread(self, scalar: Any) -> Any:
        """A vector of equal values."""
        nothing = ir.Constant(ir.VectorType(scalar.type, LANES), ir.Undefined)
        one = self.builder.insert_element(nothing, scalar, ir.Constant(ir.IntType(32), 0))
        return self.builder.shuffle_vector(one, nothing, ir.Constant(INTEGERS, [0] * LANES))

    def whole(self, value: int) -> Any:
        """A vector of equal whole numbers."""
        return ir.Constant(INTEGERS, [value] * LANES)

    def floats(self, value: float) -> Any:
        """A vector of equal constants."""
        return ir.Constant(FLOATS, [float(np.float32(value))] * LANES)

    @property
    def zero(self) -> Any:
        """A vector of zeros."""
        return ir.Constant(FLOATS, [0.0] * LANES)

    def prefetch(self, pointer: Any) -> None:
        """Asks for a line of memory that will be read soon."""
        word, kind = ir.IntType(32), ir.IntType(8).as_pointer()
        signature = ir.FunctionType(ir.VoidType(), [kind, word, word, word])
        function = cgutils.get_or_insert_function(self.builder.module, signature, "llvm.prefetch.p0")
        pointer = self.builder.bitcast(pointer, kind)
        self.builder.call(function, [pointer, *(ir.Constant(word, value) for value in (0, 3, 1))])

    def converted(self, codes: Any) -> Any:
        """Bytes as floats."""
        return self.builder.sitofp(self.builder.sext(codes, INTEGERS), FLOATS)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """`a * b + c`."""
        return self.builder.call(self._fma, [a, b, c])

    def loop(self, count: Any, carried: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        """Runs the body for 0, 1, ... count - 1; it gets and returns what is carried along."""
        builder = self.builder
        entry, inside = builder.block, builder.append_basic_block("inside")
        after = builder.append_basic_block("after")
        builder.cbranch(builder.icmp_signed(">", count, self.number(0)), inside, after)
        builder.position_at_end(inside)
        index, *values = self._meet((entry, [self.number(0), *carried]))
        results = body(index, values)
        following, end = builder.add(index, self.number(1)), builder.block
        builder.cbranch(builder.icmp_signed("<", following, count), inside, after)
        for value, result in zip([index, *values], [following, *results], strict=True):
            value.add_incoming(result, end)
        builder.position_at_end(after)
        return self._meet((entry, carried), (end, results))

    def when(self, condition: Any, carried: list[Any], body: Callable[[list[Any]], list[Any]]) -> list[Any]:
        """What the body makes of what is carried along, or that itself."""
        builder = self.builder
        entry, inside = builder.block, builder.append_basic_block("inside")
        after = builder.append_basic_block("after")
        builder.cbranch(condition, inside, after)
        builder.position_at_end(inside)
        results, end = body(carried), builder.block
        builder.branch(after)
        builder.position_at_end(after)
        return self._meet((entry, carried), (end, results))

    def chunks(self, count: Any, carried: list[Any], body: Callable[[Any, Access, list[Any]], list[Any]]) -> list[Any]:
        """Runs the body for so many floats, a vector at a time, with the way to load and store it."""
        builder = self.builder
        whole = builder.udiv(count, self.number(LANES))
        done = builder.mul(whole, self.number(LANES))
        left = builder.sub(count, done)

        def full(n: Any, values: list[Any]) -> list[Any]:
            return body(builder.mul(n, self.number(LANES)), Access(self), values)

        carried = self.loop(whole, carried, full)
        some = builder.icmp_signed(">", left, self.number(0))
        return self.when(some, carried, lambda values: body(done, Access(self, self.below(left)), values))

    def columns(self, count: Any, body: Callable[[Any, list[Access]], None], *, vectors: int) -> None:
        """Runs the body for so many floats, several vectors at a time while there are as many, then one at a time."""
        builder, wide = self.builder, self.number(vectors * LANES)
        blocks = builder.udiv(count, wide)
        done = builder.mul(blocks, wide)
        self.repeat(blocks, lambda n: body(builder.mul(n, wide), [Access(self)] * vectors))

        def rest(at: Any, access: Access, carried: list[Any]) -> list[Any]:
            body(builder.add(done, at), [access])
            return carried

        self.chunks(builder.sub(count, done), [], rest)

    def below(self, count: Any) -> Any:
        """Which lanes come before the count."""
        lanes = ir.Constant(INTEGERS, list(range(LANES)))
        limit = self.spread(self.builder.trunc(count, ir.IntType(32)))
        return self.builder.icmp_signed("<", lanes, limit)

    def repeat(self, count: Any, body: Callable[[Any], None]) -> None:
        """Runs the body for 0, 1, ... count - 1."""

        def carry(index: Any, carried: list[Any]) -> list[Any]:
            body(index)
            return carried

        self.loop(count, [], carry)

    def _meet(self, *ways: tuple[Any, list[Any]]) -> list[Any]:
        """Values by the block from which they come."""
        values = []
        for number, first in enumerate(ways[0][1]):
            value = self.builder.phi(first.type)
            for block, carried in ways:
                value.add_incoming(carried[number], block)
            values.append(value)
        return values


class Access:
    """Loads and stores a vector, or the lanes of a mask, of which the others are zero and stay as they were."""

    def __init__(self, emit: Emit, mask: Any = None) -> None:
        self._emit = emit
        self.mask = mask

    def load(self, pointer: Any) -> Any:
        """Floats: stored as such, or as the upper halves of their bits (a pointer to 16 bits)."""
        emit, builder = self._emit, self._emit.builder
        short = pointer.type == SHORT_POINTER
        kind = SHORTS if short else FLOATS
        if self.mask is None:
            value = emit.load(pointer, kind)
        else:
            name = f"llvm.masked.load.v{LANES}{'i16' if short else 'f32'}.p0"
            signature = ir.FunctionType(kind, [kind.as_pointer(), ir.IntType(32), self.mask.type, kind])
            function = cgutils.get_or_insert_function(builder.module, signature, name)
            arguments = [builder.bitcast(pointer, kind.as_pointer()), ir.Constant(ir.IntType(32), 2 if short else 4)]
            nothing = ir.Constant(kind, [0 if short else 0.0] * LANES)
            value = builder.call(function, [*arguments, self.mask, nothing])
        if not short:
            return value
        return builder.bitcast(builder.shl(builder.zext(value, INTEGERS), emit.whole(16)), FLOATS)

    def store(self, value: Any, pointer: Any) -> None:
        """Floats."""
        emit, builder = self._emit, self._emit.builder
        if self.mask is None:
            emit.store(value, pointer)
            return
        kind, word = FLOATS.as_pointer(), ir.IntType(32)
        signature = ir.FunctionType(ir.VoidType(), [FLOATS, kind, word, self.mask.type])
        function = cgutils.get_or_insert_function(builder.module, signature, f"llvm.masked.store.v{LANES}f32.p0")
        builder.call(function, [value, builder.bitcast(pointer, kind), ir.Constant(word, 4), self.mask])


def element(context: Any, builder: Any, kind: Any, array: Any, offset: Any) -> Any:
    """Pointer to an element of an array argument."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [offset])


def function_of(module: Any, name: str, kinds: list[Any], body: Callable[[Emit, Any], None]) -> Any:
    """A function of the module, written when it is first asked for; inlined, it would be compiled for every call."""
    function = cgutils.get_or_insert_function(module, ir.FunctionType(ir.VoidType(), kinds), f"strata_{name}")
    if not function.blocks:
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        body(Emit(builder), function.args)
        builder.ret_void()
    return function
