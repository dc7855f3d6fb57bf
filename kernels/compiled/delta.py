"""The delta rule of one head and row, with the columns of its memory in vectors."""

from __future__ import annotations

from typing import Any, Final

from numba import types
from numba.extending import intrinsic

from kernels.compiled.emit import LANES, Access, Emit, element, function_of

# Vectors of columns at a time: enough that a sum does not wait for its last addition.
_WIDE: Final = 2


def _step(emit: Emit, args: Any) -> None:
    """`S <- a S; U = beta (v - S'k); S <- S + k U'; o = S'q` of memory S [dim (key), dim (value)]."""
    builder = emit.builder
    memory, query, key, value, share, beta, update, out, dim = args
    share, beta = emit.spread(share), emit.spread(beta)

    def some(column: Any, access: list[Access]) -> None:
        offsets = [builder.add(column, emit.number(v * LANES)) for v in range(len(access))]

        def line(j: Any) -> list[Any]:
            start = emit.at(memory, builder.mul(j, dim))
            return [emit.at(start, offset) for offset in offsets]

        def recall(j: Any, sums: list[Any]) -> list[Any]:
            k = emit.spread(builder.load(emit.at(key, j)))
            kept = [builder.fmul(share, way.load(place)) for way, place in zip(access, line(j), strict=True)]
            return [emit.fma(k, row, total) for row, total in zip(kept, sums, strict=True)]

        found = emit.loop(dim, [emit.zero] * len(access), recall)
        change = []
        for way, offset, total in zip(access, offsets, found, strict=True):
            change.append(builder.fmul(beta, builder.fsub(way.load(emit.at(value, offset)), total)))
            way.store(change[-1], emit.at(update, offset))

        def learn(j: Any, sums: list[Any]) -> list[Any]:
            k, q = (emit.spread(builder.load(emit.at(vector, j))) for vector in (key, query))
            results = []
            for way, place, delta, total in zip(access, line(j), change, sums, strict=True):
                row = emit.fma(k, delta, builder.fmul(share, way.load(place)))
                way.store(row, place)
                results.append(emit.fma(q, row, total))
            return results

        for way, offset, total in zip(access, offsets, emit.loop(dim, [emit.zero] * len(access), learn), strict=True):
            way.store(total, emit.at(out, offset))

    emit.columns(dim, some, vectors=_WIDE)


def _learn(emit: Emit, args: Any) -> None:
    """`S <- a S + k U'` of memory S [dim (key), dim (value)]."""
    builder = emit.builder
    memory, key, share, update, dim = args
    share = emit.spread(share)

    def some(column: Any, access: list[Access]) -> None:
        offsets = [builder.add(column, emit.number(v * LANES)) for v in range(len(access))]
        change = [way.load(emit.at(update, offset)) for way, offset in zip(access, offsets, strict=True)]

        def learn(j: Any) -> None:
            k = emit.spread(builder.load(emit.at(key, j)))
            start = emit.at(memory, builder.mul(j, dim))
            for way, offset, delta in zip(access, offsets, change, strict=True):
                place = emit.at(start, offset)
                way.store(emit.fma(k, delta, builder.fmul(share, way.load(place))), place)

        emit.repeat(dim, learn)

    emit.columns(dim, some, vectors=_WIDE)


@intrinsic  # type: ignore[untyped-decorator]
def delta_step(
    typing: Any,
    memory: Any,
    memory_at: Any,
    query: Any,
    query_at: Any,
    key: Any,
    key_at: Any,
    value: Any,
    value_at: Any,
    share: Any,
    beta: Any,
    update: Any,
    update_at: Any,
    out: Any,
    out_at: Any,
    dim: Any,
) -> Any:
    """One row of one head, see `_step`."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointers = [element(context, builder, signature.args[i], args[i], args[i + 1]) for i in (0, 2, 4, 6, 10, 12)]
        values = [*pointers[:4], args[8], args[9], *pointers[4:], args[14]]
        builder.call(function_of(builder.module, "delta_step", [value.type for value in values], _step), values)
        return context.get_dummy_value()

    i, f = types.intp, types.float32
    return types.void(memory, i, query, i, key, i, value, i, f, f, update, i, out, i, i), code


@intrinsic  # type: ignore[untyped-decorator]
def delta_learn(
    typing: Any,
    memory: Any,
    memory_at: Any,
    key: Any,
    key_at: Any,
    share: Any,
    update: Any,
    update_at: Any,
    dim: Any,
) -> Any:
    """What a row that stays leaves in the memory of one head, see `_learn`."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointers = [element(context, builder, signature.args[i], args[i], args[i + 1]) for i in (0, 2, 5)]
        values = [*pointers[:2], args[4], pointers[2], args[7]]
        builder.call(function_of(builder.module, "delta_learn", [value.type for value in values], _learn), values)
        return context.get_dummy_value()

    i, f = types.intp, types.float32
    return types.void(memory, i, key, i, f, update, i, i), code
