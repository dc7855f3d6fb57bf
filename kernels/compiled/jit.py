"""Compiles functions for this machine's processor, and keeps the result on disk."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

FOLDER_VARIABLE = "NUMBA_CACHE_DIR"
_FOR_GOOD: list[Any] = []

_Function = TypeVar("_Function", bound=Callable[..., object])


def compiled(function: _Function) -> _Function:
    """Machine code without the interpreter's lock, made at the first call.

    A product and a sum may become one instruction, which rounds once; nothing else changes the order of a
    computation, so a row's result does not depend on the rows beside it.
    """
    return _compile(function, {"contract"})


def compiled_sum(function: _Function) -> _Function:
    """As `compiled`; sums may be taken in the order of vectors: another one than written, and always the same."""
    return _compile(function, {"contract", "reassoc"})


def _compile(function: _Function, may: set[str]) -> _Function:
    decorate = numba.njit(nogil=True, boundscheck=False, fastmath=may, error_model="numpy", cache=_keep_on_disk())
    return cast(_Function, decorate(function))


def address_of(function: Callable[..., object], signature: Any) -> int:
    """Machine code with the calling convention of C, made now and never given back; it must not raise."""
    made = numba.cfunc(signature, nopython=True, error_model="numpy", cache=_keep_on_disk())(function)
    _FOR_GOOD.append(made)
    return int(made.address)


@cache
def _keep_on_disk() -> bool:
    """Gives the compiler a folder of its own for this state of the sources; False when none can be written.

    The compiler looks at the file of a function for changes, but not at those of the functions that it calls.
    """
    digest = hashlib.sha256(numba.__version__.encode())
    kernels = Path(__file__).parents[1]
    for path in sorted(kernels.glob("*/*.py")):
        source = path.read_bytes()
        # Whatever is compiled imports something of this package; kernels of cards do not.
        if path.parent == Path(__file__).parent or b"kernels.compiled" in source:
            digest.update(source)
    base = os.environ.get(FOLDER_VARIABLE) or Path.home() / ".cache" / "strata"
    folder = Path(base) / digest.hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        return False
    numba.config.CACHE_DIR = str(folder)
    return True
