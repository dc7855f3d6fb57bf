"""Attention of one row over a run of tokens that lie one after the other, sixteen scores at a time."""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.compiled.emit import FLOATS, INTEGERS, LANES, Access, Emit, element, function_of

# Vectors of a value that are summed at a time.
_WIDE: Final = 4
# See kernels/compiled/scalar.py, whose exp this is.
_LEAST, _MOST, _ROUND = -87.0, 88.0, 12582912.0
_LOG2_E, _LN_2, _LN_2_REST = 1.44269504, 0.693359375, -2.12194440e-4
_CURVE: Final = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


def _score(emit: Emit, args: Any) -> None:
    """`scores[h, t] = query[h] . keys[t]`; behind the last token up to 15 copies of its score follow."""
    builder = emit.builder
    query, heads, dim, keys, tokens, scores, step = args
    last = builder.sub(tokens, emit.number(1))
    blocks = builder.udiv(builder.add(last, emit.number(LANES)), emit.number(LANES))

    def block(n: Any) -> None:
        first = builder.mul(n, emit.number(LANES))
        lines = []
        for lane in range(LANES):
            token = builder.add(first, emit.number(lane))
            token = builder.select(builder.icmp_signed("<", token, last), token, last)
            lines.append(emit.at(keys, builder.mul(token, dim)))

        def head(h: Any) -> None:
            own = emit.at(query, builder.mul(h, dim))

            def chunk(at: Any, access: Access, sums: list[Any]) -> list[Any]:
                part = access.load(emit.at(own, at))
                return [
                    emit.fma(part, access.load(emit.at(line, at)), total)
                    for line, total in zip(lines, sums, strict=True)
                ]

            sums = emit.chunks(dim, [emit.zero] * LANES, chunk)
            emit.store(_sums(emit, sums), emit.at(scores, builder.mul(h, step), first))

        emit.repeat(heads, head)

    emit.repeat(blocks, block)


def _sums(emit: Emit, vectors: list[Any]) -> Any:
    """A vector of the sums of sixteen vectors: halves are added until one lane of each is left."""
    builder, width = emit.builder, LANES
    while len(vectors) > 1:
        half = width // 2
        # Lanes of two vectors one after the other, in pieces of `width`, of which `half` are added to the others.
        pieces = [lane for lane in range(2 * LANES) if lane % width < half]
        low = ir.Constant(INTEGERS, pieces)
        high = ir.Constant(INTEGERS, [lane + half for lane in pieces])
        vectors = [
            builder.fadd(builder.shuffle_vector(a, b, low), builder.shuffle_vector(a, b, high))
            for a, b in zip(vectors[::2], vectors[1::2], strict=True)
        ]
        width = half
    return vectors[0]


def _weigh(emit: Emit, args: Any) -> None:
    """`out[h] += sum over t of scores[h, t] values[t]`, t in order."""
    builder = emit.builder
    scores, step, heads, values, tokens, dim, out = args

    def head(h: Any) -> None:
        shares, own = emit.at(scores, builder.mul(h, step)), emit.at(out, builder.mul(h, dim))

        def some(column: Any, access: list[Access]) -> None:
            offsets = [builder.add(column, emit.number(v * LANES)) for v in range(len(access))]

            def token(t: Any, sums: list[Any]) -> list[Any]:
                share, line = emit.spread(builder.load(emit.at(shares, t))), emit.at(values, builder.mul(t, dim))
                return [
                    emit.fma(share, way.load(emit.at(line, offset)), total)
                    for way, offset, total in zip(access, offsets, sums, strict=True)
                ]

            before = [way.load(emit.at(own, offset)) for way, offset in zip(access, offsets, strict=True)]
            for way, offset, total in zip(access, offsets, emit.loop(tokens, before, token), strict=True):
                way.store(total, emit.at(own, offset))

        emit.columns(dim, some, vectors=_WIDE)

    emit.repeat(heads, head)


def exponential(emit: Emit, x: Any) -> Any:
    """e^x of every lane."""
    builder = emit.builder
    x = builder.select(builder.fcmp_ordered("<", x, emit.floats(_LEAST)), emit.floats(_LEAST), x)
    x = builder.select(builder.fcmp_ordered(">", x, emit.floats(_MOST)), emit.floats(_MOST), x)
    shifted = emit.fma(x, emit.floats(_LOG2_E), emit.floats(_ROUND))
    whole = builder.fsub(shifted, emit.floats(_ROUND))
    rest = emit.fma(whole, emit.floats(-_LN_2), x)
    rest = emit.fma(whole, emit.floats(-_LN_2_REST), rest)
    curve = emit.floats(_CURVE[0])
    for factor in _CURVE[1:]:
        curve = emit.fma(curve, rest, emit.floats(factor))
    value = builder.fadd(emit.fma(builder.fmul(curve, rest), rest, rest), emit.floats(1.0))
    power = builder.add(builder.shl(builder.bitcast(shifted, INTEGERS), emit.whole(23)), emit.whole(127 << 23))
    return builder.fmul(value, builder.bitcast(power, FLOATS))


def _soften(emit: Emit, args: Any) -> None:
    """`scores[t] = e^(scores[t] - largest)`, 0 behind the last token; `total` becomes their sum.

    A NaN among the scores makes NaN of all that is computed from them.
    """
    builder = emit.builder
    scores, tokens, total = args
    blocks = builder.udiv(builder.add(tokens, emit.number(LANES - 1)), emit.number(LANES))

    def place(n: Any) -> Any:
        return emit.at(scores, builder.mul(n, emit.number(LANES)))

    def seen(n: Any) -> Any:
        return emit.below(builder.sub(tokens, builder.mul(n, emit.number(LANES))))

    def more(n: Any, largest: list[Any]) -> list[Any]:
        value = emit.load(place(n))
        # Behind the last token of several runs lies whatever was there.
        found = builder.and_(seen(n), builder.fcmp_ordered(">", value, largest[0]))
        return [builder.select(found, value, largest[0])]

    largest = emit.loop(blocks, [emit.spread(builder.load(scores))], more)[0]
    for half in (8, 4, 2, 1):
        other = builder.shuffle_vector(largest, largest, ir.Constant(INTEGERS, [lane ^ half for lane in range(LANES)]))
        largest = builder.select(builder.fcmp_ordered(">", other, largest), other, largest)

    def block(n: Any, sums: list[Any]) -> list[Any]:
        value = exponential(emit, builder.fsub(emit.load(place(n)), largest))
        value = builder.select(seen(n), value, emit.zero)
        emit.store(value, place(n))
        return [builder.fadd(sums[0], value)]

    found = emit.loop(blocks, [emit.zero], block)[0]
    for half in (8, 4, 2, 1):
        other = builder.shuffle_vector(found, found, ir.Constant(INTEGERS, [lane ^ half for lane in range(LANES)]))
        found = builder.fadd(found, other)
    builder.store(builder.extract_element(found, ir.Constant(ir.IntType(32), 0)), total)


@intrinsic  # type: ignore[untyped-decorator]
def score_tokens(
    typing: Any,
    query: Any,
    query_at: Any,
    heads: Any,
    dim: Any,
    keys: Any,
    keys_at: Any,
    tokens: Any,
    scores: Any,
    scores_at: Any,
    step: Any,
) -> Any:
    """Scores of some heads of a row over a run of tokens, see `_score`; keys are float32 or int16 (bf16)."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        own, key, score = (element(context, builder, signature.args[i], args[i], args[i + 1]) for i in (0, 4, 7))
        values = [own, args[2], args[3], key, args[6], score, args[9]]
        name = f"score_{signature.args[4].dtype}"
        builder.call(function_of(builder.module, name, [value.type for value in values], _score), values)
        return context.get_dummy_value()

    i = types.intp
    return types.void(query, i, i, i, keys, i, i, scores, i, i), code


@intrinsic  # type: ignore[untyped-decorator]
def weigh_tokens(
    typing: Any,
    scores: Any,
    scores_at: Any,
    step: Any,
    heads: Any,
    values: Any,
    values_at: Any,
    tokens: Any,
    dim: Any,
    out: Any,
    out_at: Any,
) -> Any:
    """Adds the values of a run of tokens by their shares, see `_weigh`; values are float32 or int16 (bf16)."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        score, value, place = (element(context, builder, signature.args[i], args[i], args[i + 1]) for i in (0, 4, 8))
        given = [score, args[2], args[3], value, args[6], args[7], place]
        name = f"weigh_{signature.args[4].dtype}"
        builder.call(function_of(builder.module, name, [one.type for one in given], _weigh), given)
        return context.get_dummy_value()

    i = types.intp
    return types.void(scores, i, i, i, values, i, i, i, out, i), code


@intrinsic  # type: ignore[untyped-decorator]
def soften(typing: Any, scores: Any, scores_at: Any, tokens: Any, total: Any, total_at: Any) -> Any:
    """A softmax but for its division, see `_soften`."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        score, place = (element(context, builder, signature.args[i], args[i], args[i + 1]) for i in (0, 3))
        given = [score, args[2], place]
        builder.call(function_of(builder.module, "soften", [one.type for one in given], _soften), given)
        return context.get_dummy_value()

    i = types.intp
    return types.void(scores, i, i, total, i), code
