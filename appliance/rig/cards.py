"""Owns the look at the cards through the driver's management library."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.rig.card_facts import (
    CardProcess,
    Link,
    ask,
    has_display,
    link_of,
    peak_gbps,
    peak_tflops,
    processes_of,
)
from appliance.rig.cuda_driver import CudaMemory, cuda_memory
from appliance.rig.limits import probe_ram
from appliance.rig.size import GIB

# A card whose memory is within this share of the machine's RAM reports the machine's RAM.
SAME_MEMORY = 0.02
# Old libraries count in 32 bits: a total of exactly this is a cap, not a size.
CAP_BYTES = 4 * GIB
LIBRARY_MISMATCH = 18  # NVML_ERROR_LIB_RM_VERSION_MISMATCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One card, numbered as nvidia-smi does, in the order of the bus.

    Attributes:
        vram_bytes, free_bytes: None when the driver does not say.
        capability: CUDA compute capability such as "12.0".
        unified: its memory is the machine's RAM and must not be counted twice.
        memory_source: who said how much memory: "nvml", "cuda", "" when nobody.
        display: a screen is attached; None when unknown.
        mig: this is a MIG slice of a card.
        power_limit_w: what the driver enforces.
        link: PCIe at this moment.
        processes: who holds VRAM.
        peak_gbps: the vendor's VRAM bandwidth.
        peak_tflops: dense FP16 with float32 sums, from cores and clock.
    """

    index: int
    uuid: str
    name: str
    bus_id: str
    vram_bytes: int | None
    free_bytes: int | None
    capability: str | None
    unified: bool = False
    memory_source: str = "nvml"
    display: bool | None = None
    mig: bool = False
    power_limit_w: float | None = None
    link: Link | None = None
    processes: tuple[CardProcess, ...] = ()
    peak_gbps: float | None = None
    peak_tflops: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """All cards of the machine.

    Attributes:
        cards: in the driver's order.
        driver: its version, None without one.
        note: why there is no card, or why the look was incomplete; None when all is well.
        cuda: the CUDA version that the driver supports, such as "13.0".
    """

    cards: tuple[Card, ...] = ()
    driver: str | None = None
    note: str | None = None
    cuda: str | None = None


def probe_cards(
    nvml: Any = None,
    *,
    ram_bytes: int | None = None,
    second_opinion: Callable[[str], CudaMemory | None] = cuda_memory,
) -> Cards:
    """Asks NVML; without library, driver or card the result says why.

    Args:
        nvml: the pynvml module, or a stand-in with its functions.
        ram_bytes: the machine's RAM, to recognise a card that reports it as its own.
        second_opinion: asked by bus id when NVML's memory cannot be right.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return Cards(note="no card: the Python package nvidia-ml-py is not installed")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Cards(note=f"no card: the NVIDIA driver does not answer ({_reason(error)}){_remedy(error)}")
    ram = probe_ram(Path("/")).total_bytes if ram_bytes is None else ram_bytes
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        cuda = _cuda_version(nvml)
        count = nvml.nvmlDeviceGetCount()
        found = tuple(card for index in range(count) for card in _cards(nvml, index, ram, second_opinion))
        return Cards(cards=found, driver=driver, cuda=cuda, note=None if found else "no card: the driver lists none")
    except nvml.NVMLError as error:
        return Cards(note=f"no card: the driver failed ({_reason(error)}){_remedy(error)}")
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _cuda_version(nvml: Any) -> str | None:
    for question in ("nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetCudaDriverVersion"):
        number = ask(nvml, question)
        if number:
            return f"{number // 1000}.{number % 1000 // 10}"
    return None


def _cards(nvml: Any, index: int, ram: int, second: Callable[[str], CudaMemory | None]) -> Iterator[Card]:
    """The card, or in its place its MIG slices: only they can compute then."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    whole = _card(nvml, handle, handle, index, ram, second)
    mode = ask(nvml, "nvmlDeviceGetMigMode", handle)
    if not mode or not mode[0]:
        yield whole
        return
    for number in range(ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        part = ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
        if part is not None:
            yield _card(nvml, part, handle, index, ram, second)


def _card(nvml: Any, handle: Any, whole: Any, index: int, ram: int, second: Callable[[str], CudaMemory | None]) -> Card:
    mig = handle is not whole
    capability = ask(nvml, "nvmlDeviceGetCudaComputeCapability", whole)
    version = None if capability is None else f"{capability[0]}.{capability[1]}"
    bus_id = _text(nvml.nvmlDeviceGetPciInfo(whole).busId)
    memory = ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    total, free = (int(memory.total), int(memory.free)) if memory is not None and memory.total > 0 else (None, None)
    source, unified = ("nvml" if total else ""), False
    same = total is not None and abs(total - ram) <= ram * SAME_MEMORY
    if not mig and (total is None or same or total == CAP_BYTES):
        other = second(bus_id)
        unified = same if other is None else other.unified
        if other is not None and other.total_bytes > (total or 0):
            # Free memory is unknown to the driver call, so it is what NVML said, or nothing.
            total, source, free = other.total_bytes, "cuda", None
    power = ask(nvml, "nvmlDeviceGetEnforcedPowerLimit", whole)
    return Card(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        bus_id=bus_id,
        vram_bytes=total,
        free_bytes=free,
        capability=version,
        unified=unified,
        memory_source=source,
        display=has_display(nvml, whole),
        mig=mig,
        power_limit_w=None if power is None else power / 1000,
        link=link_of(nvml, whole),
        processes=processes_of(nvml, handle),
        peak_gbps=peak_gbps(nvml, whole),
        peak_tflops=peak_tflops(nvml, whole, version),
    )


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _reason(error: Exception) -> str:
    return str(error).strip().lower() or type(error).__name__


def _remedy(error: Exception) -> str:
    """What to do about a driver whose parts do not match, as after an update (CTR-04)."""
    if getattr(error, "value", None) == LIBRARY_MISMATCH or "version mismatch" in str(error).lower():
        return "; the driver was updated while it ran: reboot the host, or restart the container"
    return ""
