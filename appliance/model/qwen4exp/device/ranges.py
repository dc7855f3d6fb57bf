"""Named ranges on the host's timeline for Nsight Systems, where the rig asks for them; nothing otherwise."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

_NOTHING = nullcontext()


class Ranges:
    """Windows, waits and stages as they are launched; inside a graph the device has no such names."""

    def __init__(self, *, on: bool) -> None:
        self._on = on

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """A range of that name around a `with` block."""
        return torch.cuda.nvtx.range(name) if self._on else _NOTHING
