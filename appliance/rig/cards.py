"""Owns the look at the cards through the driver's management library."""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One card, numbered as nvidia-smi does.

    Attributes:
        vram_bytes, free_bytes: None when the driver does not say.
        capability: CUDA compute capability such as "12.0".
    """

    index: int
    uuid: str
    name: str
    bus_id: str
    vram_bytes: int | None
    free_bytes: int | None
    capability: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """All cards of the machine.

    Attributes:
        cards: in the driver's order.
        driver: its version, None without one.
        note: why there is no card, or why the look was incomplete; None when all is well.
    """

    cards: tuple[Card, ...] = ()
    driver: str | None = None
    note: str | None = None


def probe_cards(nvml: Any = None) -> Cards:
    """Asks NVML; without library, driver or card the result says why.

    Args:
        nvml: the pynvml module, or a stand-in with its functions.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return Cards(note="no card: the Python package nvidia-ml-py is not installed")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Cards(note=f"no card: the NVIDIA driver does not answer ({_reason(error)})")
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        found = tuple(_card(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
        return Cards(cards=found, driver=driver, note=None if found else "no card: the driver lists none")
    except nvml.NVMLError as error:
        return Cards(note=f"no card: the driver failed ({_reason(error)})")
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _card(nvml: Any, index: int) -> Card:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    vram_bytes = free_bytes = capability = None
    with contextlib.suppress(nvml.NVMLError):
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        if memory.total > 0:
            vram_bytes, free_bytes = int(memory.total), int(memory.free)
    with contextlib.suppress(nvml.NVMLError):
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        capability = f"{major}.{minor}"
    return Card(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        bus_id=_text(nvml.nvmlDeviceGetPciInfo(handle).busId),
        vram_bytes=vram_bytes,
        free_bytes=free_bytes,
        capability=capability,
    )


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _reason(error: Exception) -> str:
    return str(error).strip().lower() or type(error).__name__
