"""Weights as records and in large pages: compiled code finds what was put there."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from kernels.compiled.jit import compiled
from kernels.compiled.record import INTEGER, TRUTH, codes, fields, floats, recaller, record
from kernels.matrix import settle


class Inner(NamedTuple):
    a: np.ndarray
    b: np.ndarray


class Outer(NamedTuple):
    count: int
    inner: Inner
    yes: bool
    c: np.ndarray


INNER = fields(Inner, a=floats(2), b=codes(3))
OUTER = fields(Outer, count=INTEGER, inner=INNER, yes=TRUTH, c=floats(1))
outer_of = recaller(OUTER)


@compiled
def summed(numbers: np.ndarray) -> tuple[int, float, int, int, float]:
    own = outer_of(numbers)
    total = np.float32(0)
    for i in range(own.inner.a.shape[0]):
        for j in range(own.inner.a.shape[1]):
            total += own.inner.a[i, j] * np.float32(10 * i + j)
    last = own.inner.b[-1, -1, -1]
    return own.count, total, last, own.c.shape[0], np.float32(1) if own.yes else np.float32(0)


def example() -> Outer:
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    b = np.arange(24, dtype=np.int8).reshape(2, 3, 4) - 30
    return Outer(7, Inner(a, b), True, np.empty(0, np.float32))


def test_compiled_code_finds_what_a_record_names() -> None:
    value = example()
    a = value.inner.a
    wanted = float(sum(a[i, j] * (10 * i + j) for i in range(2) for j in range(3)))
    assert summed(record(value, OUTER)) == (7, wanted, -7, 0, 1.0)
    assert summed(record(value._replace(yes=False), OUTER))[4] == 0.0


def test_records_refuse_other_arrays() -> None:
    value = example()
    with pytest.raises(AssertionError):
        record(value._replace(c=np.empty(3, np.float64)), OUTER)
    with pytest.raises(AssertionError):
        record(value._replace(inner=value.inner._replace(a=value.inner.a.T)), OUTER)


def test_settled_weights_are_the_same_and_aligned() -> None:
    value = example()
    moved = settle((value, None, 5))
    assert moved[1:] == (None, 5)
    assert isinstance(moved[0], Outer)
    for old, new in ((value.inner.a, moved[0].inner.a), (value.inner.b, moved[0].inner.b), (value.c, moved[0].c)):
        assert np.array_equal(old, new)
        assert new.dtype == old.dtype
        assert new.ctypes.data % 64 == 0
        assert not np.shares_memory(old, new)
    assert summed(record(moved[0], OUTER)) == summed(record(value, OUTER))
