"""Owns where compiled kernels are kept: a folder that can be written and executed from."""

from __future__ import annotations

import os
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

VARIABLE = "TRITON_CACHE_DIR"


def settle(environment: MutableMapping[str, str]) -> str | None:
    """Points $TRITON_CACHE_DIR at a usable folder: the one it names, else the user's, else a temporary one.

    Returns:
        A sentence for the log when only a temporary folder is usable, so that every start compiles again; else None.
    """
    home = environment.get("HOME")
    named = environment.get(VARIABLE)
    wanted = Path(named) if named else Path(home or tempfile.gettempdir()) / ".triton" / "cache"
    problem = unusable(wanted)
    if problem is None:
        environment[VARIABLE] = str(wanted)
        return None
    fallback = Path(tempfile.gettempdir()) / f"strata-kernels-{os.getuid()}"
    problem_there = unusable(fallback)
    environment[VARIABLE] = str(fallback)
    also = f", which is no better: {problem_there}" if problem_there else ""
    return f"{wanted}: {problem}; kernels are compiled again at every start, in {fallback}{also} (set {VARIABLE})"


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
