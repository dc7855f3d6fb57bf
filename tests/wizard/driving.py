"""Drives the wizard's screens through Textual's pilot, on machines that are data; nothing outside is reached."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Static

from appliance.models.repository import RemoteFile, RemoteSet
from appliance.rig.containers import Containers
from appliance.rig.machine import Machine
from appliance.rig.measure import Measured
from appliance.rig.measure import Step as Probe
from appliance.rig.rates import Rates, Reading
from setup_wizard.app import SetupApp
from setup_wizard.sources import Sources
from setup_wizard.start import Tools

REMOTE = RemoteSet(
    repository="o/n", revision="1", title="X", files=(RemoteFile(path="x.gguf", size_bytes=9, sha256=None),)
)


def sources(found: Machine, **others: Any) -> Sources:
    def measure(now: Machine, folder: Path, progress: Callable[[Probe], None]) -> Measured:
        progress(Probe("RAM", False, "copying", 1, 1))
        progress(Probe("RAM", True, "44 GB/s", 1, 1))
        faster = dataclasses.replace(now, rates=Rates(ram_gbps=Reading.of(44.0)))
        return Measured(machine=faster, containers=Containers(), skipped="")

    tools = Tools(
        containers=lambda image: Containers(note="Docker does not run here"),
        run=unreachable,
        connect=unreachable,
        sleep=unreachable,
    )
    standard = Sources(
        probe=lambda folder: found,
        measure=measure,
        find=lambda folder: (),
        offers=lambda draft, folder: (),
        look_up=lambda name: REMOTE,
        download=lambda remote, folder, tell: folder / "x.gguf",
        tools=tools,
        project=None,
        spawn=lambda work: work(),
    )
    return dataclasses.replace(standard, **others)


def unreachable(*_: Any) -> Any:
    raise AssertionError("nothing outside may be reached")


def drive(
    rig: Path,
    found: Machine,
    steps: Callable[[SetupApp, Pilot[int]], Awaitable[None]],
    *,
    size: tuple[int, int] = (80, 24),
    **others: Any,
) -> SetupApp:
    """Runs the app and the steps in it."""
    app = SetupApp(rig, sources=sources(found, **others))

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await steps(app, pilot)

    asyncio.run(run())
    return app


async def to(app: SetupApp, pilot: Pilot[int], step: int) -> None:
    """Goes to a step at once; that the keyboard gets there too is a test of its own."""
    app.go(step - 1)
    await pilot.pause()


def text(app: App[Any], selector: str) -> str:
    return str(app.screen.query_one(selector, Static).content)
