"""Owns a strict interpreter: a kernel touches only memory it was given, and new memory holds what nobody may use.

On a card an address outside of a launch's tensors is an illegal one, or another tensor's; in the interpreter it goes
unnoticed, and new memory is mostly zeros. Here the first is an error that names kernel and argument, and the second is
filled with numbers that lead far away as an index, and to infinity as a value. On a card it is only filled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

_POISON: Final = 0x7F
_ALLOCATORS: Final = ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty"))


class _Launch:
    """What one launch may touch: the whole storage of each tensor that it was given."""

    def __init__(self, name: str, given: dict[str, torch.Tensor], reached: Iterable[torch.Tensor]) -> None:
        self.name, self.given = name, given
        stores = [one.untyped_storage() for one in (*given.values(), *reached)]
        spans = sorted({(one.data_ptr(), one.data_ptr() + one.nbytes()) for one in stores if one.nbytes()})
        self._first = np.array([first for first, _ in spans], np.int64)
        # Storages may overlap, as slices of a mapped file do: a span reaches as far as any before it.
        self._end = np.maximum.accumulate(np.array([end for _, end in spans], np.int64))

    def check(self, what: str, pointers: NDArray[np.uint64], mask: NDArray[np.bool_], size: int) -> None:
        """Every address that the mask leaves lies inside."""
        at = np.broadcast_to(pointers, np.broadcast_shapes(pointers.shape, mask.shape)).astype(np.int64)
        number = np.searchsorted(self._first, at, side="right") - 1
        inside = (number >= 0) & (at + size <= self._end[np.maximum(number, 0)])
        outside = at[~inside & mask]
        if outside.size:
            raise IndexError(f"{self.name}: {what} of {outside.size} addresses outside, {self._near(int(outside[0]))}")

    def _near(self, address: int) -> str:
        far = [(abs(address - one.data_ptr()), name) for name, one in self.given.items()]
        name = min(far)[1]
        one = self.given[name]
        return (
            f"one {address - one.data_ptr()} bytes from {name}, {one.dtype} {list(one.shape)} by {list(one.stride())}"
        )


@contextmanager
def strict(reached: Iterable[torch.Tensor] = ()) -> Iterator[list[str]]:
    """Inside, every launch in the interpreter is checked, and new memory is poisoned; gives the kernels' names.

    Args:
        reached: tensors that kernels find by addresses in tables; any launch may touch them.
    """
    from triton.runtime import interpreter

    builder: Any = interpreter.InterpreterBuilder
    executor: Any = interpreter.GridExecutor
    size_of: Any = interpreter._get_np_dtype
    others, launches, now = list(reached), [], list[_Launch]()

    def launched(whole: Callable[..., object]) -> Callable[..., object]:
        def call(self: Any, *args: object, **kwargs: object) -> object:
            given = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
            tensors = {name: one for name, one in given.items() if isinstance(one, torch.Tensor)}
            launches.append(self.fn.__name__)
            now.append(_Launch(self.fn.__name__, tensors, others))
            try:
                return whole(self, *args, **kwargs)
            finally:
                now.pop()

        return call

    def checked(whole: Callable[..., object], what: str, pointers: int, mask: int) -> Callable[..., object]:
        def access(self: Any, *args: Any) -> object:
            where = args[pointers]
            now[-1].check(what, where.data, args[mask].data.astype(bool), size_of(where.get_element_ty()).itemsize)
            return whole(self, *args)

        return access

    plain = torch.empty

    def poisoned(whole: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def make(*args: Any, **kwargs: Any) -> torch.Tensor:
            made = whole(*args, **kwargs)
            plain(0, dtype=torch.uint8, device=made.device).set_(made.untyped_storage()).fill_(_POISON)
            return made

        return make

    replaced = [
        (executor, "__call__", launched(executor.__call__)),
        (builder, "create_masked_load", checked(builder.create_masked_load, "load", 0, 1)),
        (builder, "create_masked_store", checked(builder.create_masked_store, "store", 0, 2)),
        (builder, "create_atomic_rmw", checked(builder.create_atomic_rmw, "atomic", 1, 3)),
        *((owner, name, poisoned(getattr(owner, name))) for owner, name in _ALLOCATORS),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, function in replaced:
        setattr(owner, name, function)
    try:
        yield launches
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)
