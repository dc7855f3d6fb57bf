"""Owns the second opinion on a card's memory: the CUDA driver itself, asked without torch and without a context."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

INTEGRATED = 18  # CU_DEVICE_ATTRIBUTE_INTEGRATED


@dataclass(frozen=True, slots=True)
class CudaMemory:
    """What the CUDA driver says: all memory of the card, and whether that is the machine's RAM."""

    total_bytes: int
    unified: bool


def cuda_memory(bus_id: str, library: Any = None) -> CudaMemory | None:
    """Asks the CUDA driver; None without one, or when it does not know the card.

    Args:
        bus_id: PCI address of the card, which both libraries agree on whatever their order.
        library: libcuda, or a stand-in with its functions.
    """
    if library is None:
        try:
            library = ctypes.CDLL("libcuda.so.1")
        except OSError:
            return None
    device, total, integrated = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_int()
    answers: tuple[Callable[[], int], ...] = (
        lambda: library.cuInit(0),
        lambda: library.cuDeviceGetByPCIBusId(ctypes.byref(device), bus_id.encode()),
        lambda: library.cuDeviceTotalMem_v2(ctypes.byref(total), device),
        lambda: library.cuDeviceGetAttribute(ctypes.byref(integrated), INTEGRATED, device),
    )
    if any(answer() != 0 for answer in answers) or not total.value:
        return None
    return CudaMemory(int(total.value), bool(integrated.value))
