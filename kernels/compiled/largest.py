"""The largest of a row, where it is and its softmax, sixteen values at a time."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.compiled.attend import exponential
from kernels.compiled.emit import INTEGERS, LANES, Access, Emit, element, function_of

_LEAST = -3.4e38


def _largest(emit: Emit, args: Any) -> None:
    """Writes the place of the first of the largest values, its softmax, and the sum of all."""
    builder = emit.builder
    values, count, place, share, total = args
    lanes = ir.Constant(INTEGERS, list(range(LANES)))

    def seen(access: Access, at: Any, other: float) -> Any:
        value = access.load(emit.at(values, at))
        return value if access.mask is None else builder.select(access.mask, value, emit.floats(other))

    def look(at: Any, access: Access, carried: list[Any]) -> list[Any]:
        best, where, summed = carried
        value = seen(access, at, _LEAST)
        index = builder.add(lanes, emit.spread(builder.trunc(at, ir.IntType(32))))
        more = builder.fcmp_ordered(">", value, best)
        summed = builder.fadd(summed, seen(access, at, 0.0))
        return [builder.select(more, value, best), builder.select(more, index, where), summed]

    best, where, summed = emit.chunks(count, [emit.floats(_LEAST), emit.whole(0), emit.zero], look)
    for half in (8, 4, 2, 1):
        turn = ir.Constant(INTEGERS, [lane ^ half for lane in range(LANES)])
        other, there = builder.shuffle_vector(best, best, turn), builder.shuffle_vector(where, where, turn)
        more = builder.fcmp_ordered(">", other, best)
        equal = builder.and_(builder.fcmp_ordered("==", other, best), builder.icmp_signed("<", there, where))
        more = builder.or_(more, equal)
        best, where = builder.select(more, other, best), builder.select(more, there, where)
        summed = builder.fadd(summed, builder.shuffle_vector(summed, summed, turn))

    def weigh(at: Any, access: Access, carried: list[Any]) -> list[Any]:
        value = exponential(emit, builder.fsub(access.load(emit.at(values, at)), best))
        if access.mask is not None:
            value = builder.select(access.mask, value, emit.zero)
        return [builder.fadd(carried[0], value)]

    mass = emit.chunks(count, [emit.zero], weigh)[0]
    for half in (8, 4, 2, 1):
        turn = ir.Constant(INTEGERS, [lane ^ half for lane in range(LANES)])
        mass = builder.fadd(mass, builder.shuffle_vector(mass, mass, turn))
    first = ir.Constant(ir.IntType(32), 0)
    builder.store(builder.sext(builder.extract_element(where, first), ir.IntType(64)), place)
    one = ir.Constant(ir.FloatType(), 1.0)
    builder.store(builder.fdiv(one, builder.extract_element(mass, first)), share)
    builder.store(builder.extract_element(summed, first), total)


@intrinsic  # type: ignore[untyped-decorator]
def largest(
    typing: Any, values: Any, values_at: Any, count: Any, places: Any, shares: Any, totals: Any, row: Any
) -> Any:
    """Of a row of values, see `_largest`; written at `row` of the others."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        own = element(context, builder, signature.args[0], args[0], args[1])
        others = [element(context, builder, signature.args[i], args[i], args[6]) for i in (3, 4, 5)]
        given = [own, args[2], *others]
        builder.call(function_of(builder.module, "largest", [one.type for one in given], _largest), given)
        return context.get_dummy_value()

    i = types.intp
    return types.void(values, i, i, places, shares, totals, i), code
