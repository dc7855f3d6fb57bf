"""Owns pictures of the screens for docs/: `python -m setup_wizard.pictures [FOLDER]`, on a machine that is data."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import sys
import tempfile
from pathlib import Path

from appliance.models.catalogue import read_catalogue
from appliance.models.outline import outline
from appliance.rig.card_facts import Link
from appliance.rig.cards import Card, Cards
from appliance.rig.limits import Cores, Ram
from appliance.rig.machine import Machine
from appliance.rig.rates import Rates, Reading
from appliance.rig.size import GIB
from appliance.rig.storage import Storage
from setup_wizard.app import SetupApp
from setup_wizard.draft import Model
from setup_wizard.sources import real_sources

SIZE = (100, 30)
# Name of each picture: step, and how many cards the machine has.
PICTURES = {"machine": (1, 1), "model": (2, 1), "cards": (3, 2), "users": (5, 1)}


def example(cards: int) -> Machine:
    """24 GiB cards in a box with 128 GiB of RAM."""
    return Machine(
        cards=Cards(cards=tuple(_card(index) for index in range(cards)), driver="580.95.05", cuda="13.0"),
        ram=Ram(
            total_bytes=128 * GIB,
            available_bytes=124 * GIB,
            limit_bytes=None,
            limit_source="",
            budget_bytes=124 * GIB,
        ),
        cores=Cores(allowed=16, quota=None),
        storage=Storage(
            folder=Path("/srv/strata"),
            free_bytes=900 * GIB,
            total_bytes=1000 * GIB,
            filesystem="ext4",
            rotational=False,
            network=False,
        ),
        system="Linux",
        container=None,
        image=False,
        rates=Rates(ram_gbps=Reading.of(65.0), storage_gbps=Reading.of(6.0), storage_rows_per_s=Reading.of(400_000.0)),
    )


def _card(index: int) -> Card:
    return Card(
        index=index,
        uuid=f"GPU-1b2c3d4{index}-0000-0000-0000-000000000000",
        name="NVIDIA GeForce RTX 4090",
        bus_id=f"00000000:0{index + 1}:00.0",
        vram_bytes=24 * GIB,
        free_bytes=23 * GIB,
        capability="8.9",
        link=Link(generation=4, width=16, top_generation=4, top_width=16),
        peak_gbps=1008.0,
        peak_tflops=165.0,
    )


async def take(folder: Path) -> None:
    """Writes the pictures."""
    for name, (step, cards) in PICTURES.items():
        path = folder / f"setup-{name}.svg"
        path.write_text(await picture(step, example(cards)), encoding="utf-8")
        print(f"wrote {path}")


async def picture(step: int, machine: Machine) -> str:
    """One step on one machine."""
    sources = dataclasses.replace(
        real_sources(), probe=lambda where: machine, find=lambda where: (), spawn=lambda work: work()
    )
    with tempfile.TemporaryDirectory() as place:
        app = SetupApp(Path(place) / "rig.toml", sources=sources)
        app.models_folder = Path("/srv/strata/models")
        async with app.run_test(size=SIZE) as pilot:
            size = read_catalogue().size("ud-q4-k-xl")
            app.serve(Model(path=f"/srv/strata/models/{size.id}.gguf", spec=outline(size), size=size))
            app.go(step - 1)
            await pilot.pause()
            await pilot.pause()
            return _plain(app.export_screenshot(title="strata-setup"))


def _plain(picture: str) -> str:
    """The picture without fonts from a network and without the random names that differ at every run."""
    picture = re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)
    return re.sub(r"terminal-\d+", "terminal", picture)


if __name__ == "__main__":
    asyncio.run(take(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs"))
