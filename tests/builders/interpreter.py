"""Owns Triton's interpreter as the tests run kernels: the same arithmetic, without finding out the same things again.

Triton looks its whole language over at every call of a device function, and makes the type of every value anew: most of
an interpreted kernel's time. What is kept here was made by Triton itself the first time, its checks included.
"""

from __future__ import annotations

import dataclasses
import os
from functools import cache
from typing import Any

import torch


def prepare(*, look_for_overflows: bool = True) -> None:
    """Makes kernels run in the interpreter where there is no card; to be called before one is imported.

    Args:
        look_for_overflows: of integers, which costs the interpreter time; off for good once somebody turned it off.
    """
    if torch.cuda.is_available():
        return
    # Read when a kernel is decorated.
    os.environ.setdefault("TRITON_INTERPRET", "1")
    torch.set_num_threads(1)

    from triton.runtime import interpreter

    if not look_for_overflows:
        builder = interpreter.interpreter_builder
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    _quicken()


@cache
def _quicken() -> None:
    from triton.language import core
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    _patch_the_language_once(interpreter)
    _keep_types(interpreter, core)
    _keep_broadcasts(TritonSemantic, core.block_type)


class _Patched:
    """What Triton undoes after a launch: nothing, the language stays as the interpreter needs it."""

    def restore(self) -> None:
        pass


def _patch_the_language_once(interpreter: Any) -> None:
    whole = interpreter._patch_lang
    done: dict[int, object] = {}

    def once(function: Any) -> _Patched:
        names = function.__globals__  # decide which of Triton's modules are patched
        if id(names) not in done:
            whole(function)
            done[id(names)] = names
        return _Patched()

    interpreter._patch_lang = once


def _keep_types(interpreter: Any, core: Any) -> None:
    """Blocks of one element type and shape share what is known of them, and so do the tensors of one type."""
    whole_block, whole_tensor, whole_numpy = core.block_type.__init__, core.tensor.__init__, interpreter._get_np_dtype

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        known = element_ty.__dict__.setdefault("_blocks", {})
        key = tuple(shape.values if type(shape) is core.tuple else shape)
        if key not in known:
            whole_block(self, element_ty, shape)
            known[key] = {**self.__dict__, "_of_tensors": {}}
        self.__dict__.update(known[key])

    def tensor(self: Any, handle: Any, type: Any) -> None:
        known = type.__dict__.setdefault("_of_tensors", {})
        if not known:
            whole_tensor(self, handle, type)
            known.update({name: value for name, value in self.__dict__.items() if name != "handle"})
        self.__dict__.update(known)
        self.handle = handle

    def numpy_type(type: Any) -> Any:
        if "_numpy" not in type.__dict__:
            type._numpy = whole_numpy(type)
        return type._numpy

    core.block_type.__init__, core.tensor.__init__, interpreter._get_np_dtype = block, tensor, numpy_type
    core.block_type.to_ir = lambda self, builder: self  # the interpreter's types are the language's


def _keep_broadcasts(semantic: Any, block_type: Any) -> None:
    """Two blocks of one shape are what they would be broadcast to."""
    whole = semantic.broadcast_impl_value

    def broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
        left, right = lhs.type, rhs.type
        if type(left) is type(right) is block_type and left.shape.values == right.shape.values:
            return lhs, rhs
        return whole(self, lhs, rhs)

    semantic.broadcast_impl_value = broadcast
