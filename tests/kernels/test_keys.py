"""Keys of kernels in Triton's cache are the same whichever kernel a program uses first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import importlib, sys
order, modules = sys.argv[1], sys.argv[2:]
from triton.runtime.jit import JITCallable
from kernels.keys import settle_keys
for name in modules if order == "forth" else modules[::-1]:
    importlib.import_module(name)
assert settle_keys() > 50
assert settle_keys() == 0
for name in sorted(modules):
    for inner, found in sorted(vars(sys.modules[name]).items()):
        if isinstance(found, JITCallable):
            print(name, inner, found.cache_key)
"""
MODULES = (
    "kernels.embedding._chunk",
    "kernels.embedding._triton",
    "kernels.experts._experts",
    "kernels.linear._triton",
)


def keys(order: str, modules: tuple[str, ...]) -> set[str]:
    """Of compiled kernels, where this process may have interpreted ones."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", PROGRAM, order, *modules]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines())


@pytest.mark.parametrize("modules", [MODULES, MODULES[:1]], ids=["all", "one alone"])
def test_keys_are_the_same_in_another_order(modules: tuple[str, ...]) -> None:
    found = keys("forth", MODULES)
    assert len(found) > 20
    assert keys("back", modules) <= found
