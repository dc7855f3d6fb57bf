"""Owns the look at the processor: name, the instructions that matter, memory nodes, how much may be locked."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

# Instruction sets that decide how quickly quantised rows are multiplied, as /proc/cpuinfo spells them.
ISA = (
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
)
CAP_IPC_LOCK = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """A memory node: its bytes, and its cores as the kernel lists them."""

    index: int
    total_bytes: int | None
    cores: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """The processor.

    Attributes:
        name: as it calls itself, "" when unknown.
        isa: those of ISA that it has.
        physical_cores: without their second threads; None when unknown.
        numa: memory nodes; one or none on most machines.
        memlock_bytes: RAM that this process may lock; None for no limit.
    """

    name: str = ""
    isa: tuple[str, ...] = ()
    physical_cores: int | None = None
    numa: tuple[NumaNode, ...] = ()
    memlock_bytes: int | None = None


def probe_processor(root: Path) -> Processor:
    """Reads /proc/cpuinfo and the memory nodes below `root`; never fails."""
    name, flags, cores = "", set[str](), set[tuple[str, str]]()
    package = ""
    for line in _text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        key, value = key.strip(), value.strip()
        if key in ("model name", "Model", "Processor") and not name:
            name = value
        elif key in ("flags", "Features"):
            flags |= set(value.split())
        elif key == "physical id":
            package = value
        elif key == "core id":
            cores.add((package, value))
    return Processor(
        name=name,
        isa=tuple(flag for flag in ISA if flag in flags),
        physical_cores=len(cores) or None,
        numa=_nodes(root),
        memlock_bytes=_memlock(root),
    )


def _nodes(root: Path) -> tuple[NumaNode, ...]:
    nodes = []
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        total = None
        for line in _text(folder / "meminfo").splitlines():
            words = line.split()
            if "MemTotal:" in words and words[words.index("MemTotal:") + 1].isdigit():
                total = int(words[words.index("MemTotal:") + 1]) * 1024
        index = int(folder.name.removeprefix("node"))
        nodes.append(NumaNode(index=index, total_bytes=total, cores=_text(folder / "cpulist").strip()))
    return tuple(sorted(nodes, key=lambda node: node.index))


def _memlock(root: Path) -> int | None:
    """The soft limit; none for a process that holds the capability to lock."""
    for line in _text(root / "proc/self/status").splitlines():
        key, _, value = line.partition(":")
        if key == "CapEff" and int(value.strip() or "0", 16) >> CAP_IPC_LOCK & 1:
            return None
    for line in _text(root / "proc/self/limits").splitlines():
        if line.startswith("Max locked memory"):
            soft = line.removeprefix("Max locked memory").split()[0]
            return int(soft) if soft.isdigit() else None
    if root != Path(os.sep):
        return None
    soft_bytes = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if soft_bytes == resource.RLIM_INFINITY else soft_bytes


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
