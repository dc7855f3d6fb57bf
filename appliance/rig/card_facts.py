"""Owns single questions to the driver's management library: each answered, or None when the card does not say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

# GB/s one lane carries in one direction after line coding, by PCIe generation.
LANE_GBPS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
CLOCK_SM, CLOCK_MEMORY = 1, 2
# Dense FP16 products with float32 sums, against plain float32: GeForce cards run their tensor cores at twice the plain
# rate (RTX 3090: 71 of 35.6), data-centre cards far above (A100: 312 of 19.5, H100: 989 of 67).
TENSOR_RATE = 2.0
TENSOR_RATE_BY_CAPABILITY = {"8.0": 16.0, "9.0": 14.8, "10.0": 28.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A card's PCIe link. A card at rest lowers its generation, so only what is read under load, or a measured copy,
    says what the link does.

    Attributes:
        generation, width: at this moment.
        top_generation, top_width: what card and slot agreed on at most; None when the driver does not say.
    """

    generation: int
    width: int
    top_generation: int | None
    top_width: int | None

    @property
    def advertised_gbps(self) -> float | None:
        """GB/s in one direction at the highest agreed generation and width."""
        generation = max(self.generation, self.top_generation or 0)
        lane = LANE_GBPS.get(generation)
        return None if lane is None else lane * max(self.width, self.top_width or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardProcess:
    """A process that holds VRAM; name "" and bytes None when they cannot be seen from here."""

    pid: int
    name: str
    used_bytes: int | None


def ask(nvml: Any, question: str, *arguments: Any) -> Any:
    """The answer of one function of the library; None when card, driver or library do not know it."""
    function = getattr(nvml, question, None)
    if function is None:
        return None
    try:
        return function(*arguments)
    except nvml.NVMLError:
        return None


def link_of(nvml: Any, handle: Any) -> Link | None:
    """Generation and width, now and at most."""
    generation = ask(nvml, "nvmlDeviceGetCurrPcieLinkGeneration", handle)
    width = ask(nvml, "nvmlDeviceGetCurrPcieLinkWidth", handle)
    if not generation or not width:
        return None
    return Link(
        generation=int(generation),
        width=int(width),
        top_generation=ask(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
        top_width=ask(nvml, "nvmlDeviceGetMaxPcieLinkWidth", handle),
    )


def processes_of(nvml: Any, handle: Any, *, root: Path = Path("/")) -> tuple[CardProcess, ...]:
    """Processes that hold VRAM, the largest first."""
    found: dict[int, CardProcess] = {}
    for question in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        for process in ask(nvml, question, handle) or ():
            pid = int(process.pid)
            used = process.usedGpuMemory
            found[pid] = CardProcess(pid=pid, name=_name(root, pid), used_bytes=None if used is None else int(used))
    return tuple(sorted(found.values(), key=lambda process: (-(process.used_bytes or 0), process.pid)))


def _name(root: Path, pid: int) -> str:
    try:
        return (root / f"proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""  # another container's process


def has_display(nvml: Any, handle: Any) -> bool | None:
    """Whether a screen is attached."""
    answers = [ask(nvml, f"nvmlDeviceGetDisplay{kind}", handle) for kind in ("Mode", "Active")]
    known = [bool(answer) for answer in answers if answer is not None]
    return any(known) if known else None


def peak_gbps(nvml: Any, handle: Any) -> float | None:
    """The vendor's VRAM bandwidth: two transfers a clock over the bus (RTX 4090: 10,501 MHz x 384 bit = 1,008)."""
    mhz = ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, CLOCK_MEMORY)
    bits = ask(nvml, "nvmlDeviceGetMemoryBusWidth", handle)
    return 2 * mhz * 1e6 * bits / 8 / 1e9 if mhz and bits else None


def peak_tflops(nvml: Any, handle: Any, capability: str | None) -> float | None:
    """Dense FP16 TFLOPS with float32 sums, estimated from cores and clock."""
    mhz = ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, CLOCK_SM)
    cores = ask(nvml, "nvmlDeviceGetNumGpuCores", handle)
    if not mhz or not cores:
        return None
    return float(2 * cores * mhz * 1e6 / 1e12 * TENSOR_RATE_BY_CAPABILITY.get(capability or "", TENSOR_RATE))
