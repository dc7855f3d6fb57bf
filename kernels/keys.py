"""Keys of kernels in Triton's cache that do not depend on which kernel is used first.

A key covers the global constants of a kernel and of all it calls. Triton 3.6 takes a called function's constants from
when that one's own key was made, and has none of them where it is made only then: two programs that launch the same
kernels in another order would look for other keys, and compile them all again.
"""

from __future__ import annotations

import sys
from types import ModuleType

from triton.runtime.jit import JITCallable

_OURS = "kernels."


def settle_keys() -> int:
    """Makes the keys of all kernels that are imported and have none yet, called ones first; returns how many."""
    made = 0
    for name, module in sorted(sys.modules.items()):
        if name.startswith(_OURS):
            made += sum(_settle(value) for value in list(vars(module).values()) if isinstance(value, JITCallable))
    return made


def _settle(kernel: JITCallable) -> int:
    if kernel.hash is not None:
        return 0
    made = sum(_settle(called) for called in _called(kernel) if called is not kernel)
    _ = kernel.cache_key
    return made + 1


def _called(kernel: JITCallable) -> list[JITCallable]:
    """All that its source names, by itself or in a module."""
    names, held = kernel.fn.__code__.co_names, kernel.fn.__globals__
    known = [held[name] for name in names if name in held]
    inside = [vars(module) for module in known if isinstance(module, ModuleType) and module.__name__.startswith(_OURS)]
    known += [found[name] for found in inside for name in names if name in found]
    return [one for one in known if isinstance(one, JITCallable)]
