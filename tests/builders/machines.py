"""Makes machines in memory, and small file systems that look like one to the probes."""

from __future__ import annotations

from pathlib import Path

from appliance.rig.cards import Card, Cards
from appliance.rig.limits import Cores, Ram
from appliance.rig.machine import Machine
from appliance.rig.size import GIB
from appliance.rig.storage import Storage


def card(index: int = 0, *, vram_bytes: int = 32 * GIB) -> Card:
    return Card(
        index=index,
        uuid=f"GPU-{index:08x}",
        name="NVIDIA Test 32G",
        bus_id=f"00000000:{index + 1:02X}:00.0",
        vram_bytes=vram_bytes,
        free_bytes=vram_bytes,
        capability="12.0",
    )


def machine(*, ram_bytes: int = 16 * GIB, cards: int = 0, cores: int = 4, image: bool = False) -> Machine:
    found = tuple(card(index) for index in range(cards))
    return Machine(
        cards=Cards(cards=found, driver="580.65.06" if cards else None, note=None if cards else "no card: none here"),
        ram=Ram(
            total_bytes=ram_bytes, available_bytes=ram_bytes, limit_bytes=None, limit_source="", budget_bytes=ram_bytes
        ),
        cores=Cores(allowed=cores, quota=None),
        storage=Storage(
            folder=Path("/"), free_bytes=None, total_bytes=None, filesystem="ext4", rotational=False, network=False
        ),
        system="Linux test",
        container=None,
        image=image,
    )


def fake_root(root: Path, files: dict[str, str]) -> Path:
    """Writes the files of a small /proc and /sys below a folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
