"""Owns where compiled kernels are kept: a folder that can be written and executed from."""

from __future__ import annotations

import os
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

# What names the folder of each compiler, and where it is without a name, below the user's home.
VARIABLE = "TRITON_CACHE_DIR"
FOLDERS = {VARIABLE: ".triton/cache", "NUMBA_CACHE_DIR": ".cache/strata"}


def settle(environment: MutableMapping[str, str], variable: str) -> str | None:
    """Points a variable of FOLDERS at a usable folder: the one it names, else the user's, else a temporary one.

    Returns:
        A sentence for the log when only a temporary folder is usable, so that every start compiles again; else None.
    """
    home = environment.get("HOME")
    named = environment.get(variable)
    wanted = Path(named) if named else Path(home or tempfile.gettempdir()) / FOLDERS[variable]
    problem = unusable(wanted)
    if problem is None:
        environment[variable] = str(wanted)
        return None
    fallback = Path(tempfile.gettempdir()) / f"strata-kernels-{os.getuid()}"
    problem_there = unusable(fallback)
    environment[variable] = str(fallback)
    also = f", which is no better: {problem_there}" if problem_there else ""
    return f"{wanted}: {problem}; kernels are compiled again at every start, in {fallback}{also} (set {variable})"


def unusable(folder: Path) -> str | None:
    """Why compiled kernels cannot be kept in the folder and loaded from it; None when they can. Creates the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return f"cannot be written: {(error.strerror or str(error)).lower()}"
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return "is mounted noexec, so a compiled kernel cannot be loaded from it"
    return None
