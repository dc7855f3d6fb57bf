"""Owns the look at the disk under a folder: free space, file system, whether it rotates."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs", "virtiofs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The disk of a folder.

    Attributes:
        folder: the folder asked about, or the closest one above it that exists.
        free_bytes, total_bytes: None when the system does not say.
        filesystem: such as "ext4", None when unknown.
        rotational: whether it is a turning disk, None when unknown.
        network: whether it is behind a network or a virtual machine's share.
    """

    folder: Path
    free_bytes: int | None
    total_bytes: int | None
    filesystem: str | None
    rotational: bool | None
    network: bool


def probe_storage(folder: Path, *, root: Path = Path("/")) -> Storage:
    """Looks at the disk of the folder; never fails."""
    place = folder.absolute()
    while not place.is_dir() and place != place.parent:
        place = place.parent
    free = total = None
    try:
        usage = shutil.disk_usage(place)
        free, total = usage.free, usage.total
        number = place.stat().st_dev
    except OSError:
        number = 0
    device = f"{os.major(number)}:{os.minor(number)}"
    filesystem = _filesystem(root, device)
    return Storage(
        folder=place,
        free_bytes=free,
        total_bytes=total,
        filesystem=filesystem,
        rotational=_rotational(root, device),
        network=filesystem in NETWORK,
    )


def _filesystem(root: Path, device: str) -> str | None:
    try:
        lines = (root / "proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        fields, _, after = line.partition(" - ")
        parts = fields.split()
        if len(parts) > 2 and parts[2] == device and after:
            return after.split()[0]
    return None


def _rotational(root: Path, device: str) -> bool | None:
    block = root / "sys/dev/block" / device
    for path in (block / "queue/rotational", block / "../queue/rotational"):  # a partition's queue is its disk's
        try:
            return path.read_text().strip() == "1"
        except OSError:
            continue
    return None
