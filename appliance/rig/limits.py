"""Owns how much RAM and how many cores this process may use: the machine's, or a cgroup's smaller share.

Both cgroup versions are read, and every group from this process's own up to the root, because any of them may be
the one that kills. Swap is not counted as memory: a model in swap does not serve.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# cgroup v1 writes "no limit" as a number near 2^63; anything above this is one.
UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Ram:
    """Memory.

    Attributes:
        total_bytes: the machine's.
        available_bytes: what the kernel says can be had without swapping.
        limit_bytes: the smallest cgroup limit, None without one.
        limit_source: the file that holds it, "" without one.
        budget_bytes: what a new allocation may use: the smallest of the machine's and every group's remainder.
    """

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None
    limit_source: str
    budget_bytes: int

    @property
    def ceiling_bytes(self) -> int:
        """The machine's memory or the limit, whichever is smaller, whatever is in use."""
        return self.total_bytes if self.limit_bytes is None else min(self.total_bytes, self.limit_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """Processors.

    Attributes:
        allowed: those this process may run on.
        quota: cores' worth of time a cgroup grants, None without a quota.
    """

    allowed: int
    quota: float | None

    @property
    def usable(self) -> int:
        """Threads that make sense, at least one."""
        return self.allowed if self.quota is None else max(1, min(self.allowed, int(self.quota)))


@dataclass(frozen=True, slots=True)
class Group:
    """A cgroup folder of this process and the version of its files."""

    folder: Path
    version: int


def probe_ram(root: Path) -> Ram:
    """Reads /proc/meminfo and the memory groups below `root`."""
    total, available = _meminfo(root)
    limit: int | None = None
    source = ""
    budget = available
    for group in groups(root, "memory"):
        for name, group_limit in _memory_limits(group):
            if group_limit >= total:
                continue
            budget = min(budget, max(0, group_limit - _memory_used(group)))
            if limit is None or group_limit < limit:
                limit, source = group_limit, f"/{(group.folder / name).relative_to(root)}"
    return Ram(
        total_bytes=total, available_bytes=available, limit_bytes=limit, limit_source=source, budget_bytes=budget
    )


def probe_cores(root: Path) -> Cores:
    """Affinity and CPU quota of this process."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    quotas = [quota for group in groups(root, "cpu") if (quota := _cpu_quota(group)) is not None]
    return Cores(allowed=allowed, quota=min(quotas) if quotas else None)


def groups(root: Path, controller: str) -> Iterator[Group]:
    """This process's cgroup for a controller and all groups above it that can be seen, innermost first."""
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            yield from _ancestors(root, path, mount_type="cgroup2", controller="", version=2)
        elif controller in names.split(","):
            yield from _ancestors(root, path, mount_type="cgroup", controller=controller, version=1)


def _ancestors(root: Path, path: str, *, mount_type: str, controller: str, version: int) -> Iterator[Group]:
    mount = _mount(root, mount_type, controller)
    if mount is None:
        return
    mount_point, mount_root = mount
    inner = path
    if mount_root != "/" and (path == mount_root or path.startswith(mount_root + "/")):
        inner = path[len(mount_root) :]  # a container without its own cgroup namespace sees its group as the root
    top = root / mount_point.lstrip("/")
    parts = [part for part in inner.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        folder = top.joinpath(*parts[:depth])
        if folder.is_dir():
            yield Group(folder, version)


def _mount(root: Path, mount_type: str, controller: str) -> tuple[str, str] | None:
    """(mount point, root of the mount) of a cgroup hierarchy, from mountinfo."""
    for line in _lines(root / "proc/self/mountinfo"):
        fields, _, after = line.partition(" - ")
        kind = after.split()
        parts = fields.split()
        if len(parts) < 5 or not kind or kind[0] != mount_type:
            continue
        if controller and controller not in kind[-1].split(","):
            continue
        return parts[4], parts[3]
    return None


def _memory_limits(group: Group) -> Iterator[tuple[str, int]]:
    # memsw limits memory and swap together, so it bounds memory too.
    names = (
        ("memory.max", "memory.high")
        if group.version == 2
        else ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    )
    for name in names:
        value = _number(group.folder / name)
        if value is not None and value < UNLIMITED_BYTES:
            yield name, value
    if group.version == 1:
        # Says the smallest limit of groups above that a container cannot see.
        value = _statistic(group, "hierarchical_memory_limit")
        if value is not None and value < UNLIMITED_BYTES:
            yield "memory.stat", value


def _memory_used(group: Group) -> int:
    """Bytes in use, without file pages that the kernel drops when memory is short."""
    used = _number(group.folder / ("memory.current" if group.version == 2 else "memory.usage_in_bytes")) or 0
    name = "inactive_file" if group.version == 2 else "total_inactive_file"
    return max(0, used - (_statistic(group, name) or 0))


def _statistic(group: Group, name: str) -> int | None:
    for line in _lines(group.folder / "memory.stat"):
        words = line.split()
        if len(words) == 2 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return None


def _cpu_quota(group: Group) -> float | None:
    if group.version == 2:
        words = " ".join(_lines(group.folder / "cpu.max")).split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
            return int(words[0]) / int(words[1])
        return None
    quota = _number(group.folder / "cpu.cfs_quota_us")
    period = _number(group.folder / "cpu.cfs_period_us")
    return quota / period if quota is not None and quota > 0 and period else None


def _meminfo(root: Path) -> tuple[int, int]:
    values: dict[str, int] = {}
    for line in _lines(root / "proc/meminfo"):
        name, _, rest = line.partition(":")
        number = rest.split()
        if number and number[0].isdigit():
            values[name] = int(number[0]) * 1024
    if "MemTotal" not in values:
        import psutil  # type: ignore[import-untyped]  # a system without /proc

        memory = psutil.virtual_memory()
        return int(memory.total), int(memory.available)
    total = values["MemTotal"]
    return total, values.get("MemAvailable", values.get("MemFree", total))


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
