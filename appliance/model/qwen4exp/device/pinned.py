"""Host memory that kernels of a card read: registered as it is, without rounding it up to a power of two."""

from __future__ import annotations

import math
from typing import Any

import torch

from appliance.errors import MachineError

_ALIGN_BYTES = 16
_PORTABLE_MAPPED = 1 | 2
_COPY_BYTES = 256 << 20


def host_memory(shape: tuple[int, ...], dtype: torch.dtype, *, cuda: bool) -> torch.Tensor:
    """An empty tensor of the host, 16-byte aligned; registered with the driver where a card shall read it.

    It stays registered as long as the process lives: whatever has seen its address may read it until then.

    Raises:
        MachineError: the driver does not register the memory.
    """
    size = math.prod(shape) * dtype.itemsize
    flat = torch.empty(size + _ALIGN_BYTES, dtype=torch.uint8)
    shift = -flat.data_ptr() % _ALIGN_BYTES
    flat = flat[shift : shift + size]
    if cuda and size:
        code = int(_runtime().cudaHostRegister(flat.data_ptr(), size, _PORTABLE_MAPPED))
        if code:
            raise MachineError(
                f"{size} bytes of RAM cannot be pinned for the card (CUDA error {code})",
                hint="raise the memory lock limit (ulimit -l, memlock in compose.yaml) or keep more on the card",
            )
    return flat.view(dtype).view(shape)


def host_release(tensor: torch.Tensor, *, cuda: bool) -> None:
    """Gives registered memory back; nothing may read it any more."""
    if cuda and tensor.numel():
        _runtime().cudaHostUnregister(tensor.data_ptr())


def host_copy(stored: torch.Tensor, *, cuda: bool) -> torch.Tensor:
    """A copy of a mapping's bytes that a card reads; on the CPU the mapping itself."""
    if not cuda:
        return stored
    held = host_memory(tuple(stored.shape), stored.dtype, cuda=True)
    flat, source = held.view(-1), stored.reshape(-1)
    for first in range(0, flat.numel(), _COPY_BYTES):
        flat[first : first + _COPY_BYTES].copy_(source[first : first + _COPY_BYTES])
    return held


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
