"""Moves weights into memory of large pages, which a processor finds faster when it reads all of them every window."""

from __future__ import annotations

import mmap
from typing import Any, TypeVar, cast

import numpy as np

from kernels.compiled.arrays import Array

_LARGE_PAGE = 1 << 21
_LINE = 64

_Value = TypeVar("_Value")


def settle(value: _Value) -> _Value:
    """The same tuples and named tuples, with their arrays one after the other; whatever is no array stays as it is."""
    total = sum(-(-array.nbytes // _LINE) * _LINE for array in _arrays(value))
    memory = mmap.mmap(-1, total + _LARGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    room = np.frombuffer(memory, np.uint8)
    room = room[-room.ctypes.data % _LARGE_PAGE :]
    return cast(_Value, _moved(value, room, [0]))


def _arrays(value: Any) -> list[Array]:
    if isinstance(value, np.ndarray):
        return [value]
    return [array for part in value for array in _arrays(part)] if isinstance(value, tuple) else []


def _moved(value: Any, room: Array, used: list[int]) -> Any:
    if isinstance(value, np.ndarray):
        start = used[0]
        used[0] += -(-value.nbytes // _LINE) * _LINE
        place: Array = room[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
        place[...] = value
        return place
    if not isinstance(value, tuple):
        return value
    parts = [_moved(part, room, used) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
