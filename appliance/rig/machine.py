"""Owns what was found: cards, RAM and its limits, cores, storage, speeds; frozen once probed."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from appliance.rig.cards import Cards, probe_cards
from appliance.rig.limits import Cores, Ram, probe_cores, probe_ram
from appliance.rig.paths import in_image
from appliance.rig.processor import Processor, probe_processor
from appliance.rig.rates import Rates
from appliance.rig.storage import Storage, probe_storage

ROOT = Path("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine, as this process may use it.

    Attributes:
        cards: cards of the driver, and why there are none.
        ram: memory and its limits.
        cores: processors and their limits.
        storage: the disk under the folder that was asked about.
        system: kernel and architecture.
        container: "docker", "podman" and so on, None outside a container.
        image: whether this is the appliance's own image.
        processor: what the cores are, and how much RAM may be locked.
        rates: measured speeds; `probe` measures none, see `measure`.
    """

    cards: Cards
    ram: Ram
    cores: Cores
    storage: Storage
    system: str
    container: str | None
    image: bool
    processor: Processor = field(default_factory=Processor)
    rates: Rates = field(default_factory=Rates)


def probe(folder: Path | None = None, *, root: Path = ROOT, cards: Callable[[], Cards] = probe_cards) -> Machine:
    """Looks at the machine; reads only, and never fails for a part that cannot be read.

    Args:
        folder: where the model is, for the storage; the working folder by default.
        root: root of the file system; tests give a small one of their own.
        cards: how cards are found.
    """
    return Machine(
        cards=cards(),
        ram=probe_ram(root),
        cores=probe_cores(root),
        storage=probe_storage(folder or Path.cwd(), root=root),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        container=_container(root),
        image=in_image(root),
        processor=probe_processor(root),
    )


def _container(root: Path) -> str | None:
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    try:
        words = (root / "proc/1/cgroup").read_text()
    except OSError:
        return None
    return next((name for name in ("docker", "kubepods", "lxc", "containerd") if name in words), None)
