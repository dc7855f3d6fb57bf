"""A small file that remembers which experts were used, so that a restart begins with the right ones; torch-free."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from appliance.log import warn


def read_profile(path: str, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
    """What an earlier run learned, float32 of that shape [layers, experts].

    None where there is nothing yet, and, with a line in the log, where the file is not of this model.
    """
    try:
        with Path(path).open("rb") as file:
            found = _read(file, shape)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warn("routing profile ignored", path=path, reason=str(error))
        return None
    return found


def _read(file: BinaryIO, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Reads the header, and no number before it is the right one."""
    np.lib.format.read_magic(file)
    stored, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if stored != shape or fortran or dtype != np.float32:
        raise ValueError(f"it is {dtype} {list(stored)}, not float32 {list(shape)}, as this model's routing is")
    found = np.fromfile(file, np.float32, math.prod(shape) + 1)
    if found.size != math.prod(shape) or not np.isfinite(found).all() or found.min(initial=0.0) < 0.0:
        raise ValueError("it has values that no routing gives")
    return found.reshape(shape)


def write_profile(path: str, heat: NDArray[np.float32]) -> None:
    """Replaces the file whole; what cannot be written is said in the log and lost."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=target.name, delete=False) as file:
            np.save(file, heat.astype(np.float32))
        Path(file.name).replace(target)
    except OSError as error:
        warn("routing profile not saved", path=path, reason=error.strerror or str(error))
