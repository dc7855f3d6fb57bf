"""Makes machines in memory, and small file systems that look like one to the probes."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from appliance.rig.card_facts import CardProcess, Link
from appliance.rig.card_probe import READINGS
from appliance.rig.cards import Card, Cards
from appliance.rig.limits import Cores, Ram
from appliance.rig.machine import Machine
from appliance.rig.rates import CardRates, Rates, Reading
from appliance.rig.size import GIB, MIB
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


@dataclass(frozen=True)
class Kind:
    """A product: what its maker says, and what a slot gives."""

    name: str
    vram_gib: float
    capability: str
    vram_gbps: float
    tflops: float
    generation: int


RTX_5070 = Kind("NVIDIA GeForce RTX 5070", 11.94, "12.0", 672, 62, 5)
RTX_4090 = Kind("NVIDIA GeForce RTX 4090", 23.99, "8.9", 1008, 165, 4)
RTX_3090 = Kind("NVIDIA GeForce RTX 3090", 24, "8.6", 936, 71, 4)
RTX_5060_TI = Kind("NVIDIA GeForce RTX 5060 Ti", 15.93, "12.0", 448, 47, 5)
PRO_5000 = Kind("NVIDIA RTX PRO 5000 Blackwell", 47.8, "12.0", 1344, 258, 5)
GBPS = {(5, 16): 50.0, (4, 16): 25.0, (5, 8): 25.0, (4, 4): 6.2}


def real_card(index: int, kind: Kind, *, width: int = 16, free_gib: float | None = None) -> Card:
    """A card at rest, as NVML shows it: link lowered to generation 1, half a GiB taken by the desktop's driver."""
    total = int(kind.vram_gib * GIB)
    free = total - 450 * MIB if free_gib is None else int(free_gib * GIB)
    held = () if free_gib is None else (CardProcess(pid=4242, name="python3", used_bytes=total - free),)
    return Card(
        index=index,
        uuid=f"GPU-{index:08x}-0000-0000-0000-000000000000",
        name=kind.name,
        bus_id=f"00000000:{index + 1:02X}:00.0",
        vram_bytes=total,
        free_bytes=free,
        capability=kind.capability,
        display=index == 0,
        power_limit_w=300.0,
        link=Link(generation=1, width=width, top_generation=kind.generation, top_width=width),
        processes=held,
        peak_gbps=kind.vram_gbps,
        peak_tflops=kind.tflops,
    )


def real_rates(found: Card, kind: Kind) -> CardRates:
    """What a card of the kind was measured at: nine tenths of the peak, and the slot's practical rate."""
    assert found.link is not None
    link = GBPS[(kind.generation, found.link.width)]
    return CardRates(
        uuid=found.uuid,
        to_card_gbps=Reading.of(link),
        from_card_gbps=Reading.of(link),
        in_place_gbps=Reading.of(link * 0.95),
        vram_gbps=Reading.of(kind.vram_gbps * 0.9),
        tflops=Reading.of(kind.tflops * 0.9),
        generation=kind.generation,
        width=found.link.width,
    )


def box(
    *cards: tuple[Kind, int],
    ram_gib: float,
    limit_gib: float | None = None,
    free_gib: float | None = None,
    rotational: bool = False,
    rows_per_s: float = 400_000,
) -> Machine:
    """A whole machine: (kind, lanes) of each card, RAM, a container's limit, the last card's free memory, the disk."""
    found = tuple(
        real_card(index, kind, width=width, free_gib=free_gib if index == len(cards) - 1 else None)
        for index, (kind, width) in enumerate(cards)
    )
    total = int(ram_gib * GIB)
    limit = None if limit_gib is None else int(limit_gib * GIB)
    budget = total - 2 * GIB if limit is None else limit
    empty = machine()
    return dataclasses.replace(
        empty,
        cards=Cards(
            cards=found,
            driver="580.95.05" if found else None,
            cuda="13.0" if found else None,
            note=None if found else "no card: the NVIDIA driver does not answer (driver not loaded)",
        ),
        ram=Ram(
            total_bytes=total,
            available_bytes=total - 2 * GIB,
            limit_bytes=limit,
            limit_source="" if limit is None else "/sys/fs/cgroup/memory.max",
            budget_bytes=budget,
        ),
        cores=Cores(allowed=16, quota=None),
        storage=dataclasses.replace(empty.storage, free_bytes=500 * GIB, total_bytes=1000 * GIB, rotational=rotational),
        rates=Rates(
            ram_gbps=Reading.of(65.0),
            storage_gbps=Reading.of(0.18 if rotational else 6.0),
            storage_rows_per_s=Reading.of(rows_per_s),
            cards=tuple(real_rates(one, kind) for one, (kind, _) in zip(found, cards, strict=True)),
            cards_reason="" if found else "there is no card",
        ),
    )


# The ten machines that a recommendation is reviewed for.
BOXES: dict[str, Machine] = {
    "12 GB card, 64 GB RAM": box((RTX_5070, 16), ram_gib=64),
    "24 GB card": box((RTX_4090, 16), ram_gib=128),
    "48 GB card": box((PRO_5000, 16), ram_gib=128),
    "two 16 GB cards on x8": box((RTX_5060_TI, 8), (RTX_5060_TI, 8), ram_gib=96),
    "two 24 GB cards, one on x4": box((RTX_3090, 16), (RTX_3090, 4), ram_gib=128),
    "four 24 GB cards, 64 GB RAM": box(*[(RTX_3090, 16)] * 4, ram_gib=64),
    "no card": box(ram_gib=64),
    "a card that is full": box((RTX_4090, 16), ram_gib=128, free_gib=0.9),
    "32 GB limit on a 128 GB host": box((RTX_4090, 16), ram_gib=128, limit_gib=32),
    "spinning disk": box((RTX_4090, 16), ram_gib=128, rotational=True, rows_per_s=160),
}


def fake_root(root: Path, files: dict[str, str]) -> Path:
    """Writes the files of a small /proc and /sys below a folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


# What the card probe prints.
CARD_RATES = json.dumps(
    {
        "cards": [
            {
                "uuid": "GPU-0",
                **{name: {"value": 25.0, "reason": ""} for name in READINGS},
                "generation": 4,
                "width": 16,
                "peers": ["GPU-1"],
                "peer_note": "",
            }
        ],
        "cards_reason": "",
    }
)
