"""The steps of machine and model: measuring, what fits, downloads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Button, Input

from appliance.errors import DoesNotFitError, ModelFileError
from appliance.models.download import Progress
from appliance.models.find import FoundSet
from appliance.models.repository import RemoteSet
from appliance.rig.containers import Containers
from appliance.rig.machine import Machine
from appliance.rig.measure import Measured
from setup_wizard.app import SetupApp
from setup_wizard.screens.widgets import Choice
from setup_wizard.sources import real_offers
from tests.builders.machines import BOXES, machine
from tests.wizard.driving import drive, text, to


def test_measuring_shows_progress_and_its_numbers(rig: Path) -> None:
    async def steps(app: SetupApp, pilot: Pilot[int]) -> None:
        app.screen.query_one("#measure", Button).focus()
        await pilot.press("enter")
        await pilot.pause()
        assert "44 GB/s" in text(app, "#progress")
        assert "RAM: 44.0 GB/s measured" in text(app, "#found")

    drive(rig, machine(), steps)


def test_the_model_step_offers_what_fits_and_refuses_an_incomplete_set(rig: Path, tmp_path: Path) -> None:
    """CFG-20"""
    part = tmp_path / "big-00001-of-00002.gguf"
    broken = FoundSet(
        path=part, role="model", present=(part,), missing=("big-00002-of-00002.gguf",), partial=(), size_bytes=1
    )

    async def steps(app: SetupApp, pilot: Pilot[int]) -> None:
        await to(app, pilot, 2)
        models = app.screen.query_one("#models", Choice)
        labels = [row.label() for row in models.rows]
        assert any("incomplete" in label and "big-00002-of-00002.gguf" in label for label in labels)
        assert any("tokens a second" in label for label in labels)
        assert "recommended for this machine: Unsloth UD-Q4_K_XL" in text(app, "#progress")
        models.focus()
        await pilot.press("end", "enter")
        await pilot.pause()
        assert app.draft is not None
        assert app.draft.model.size is not None
        assert "hits" in text(app, "#lines")
        await to(app, pilot, 7)
        assert "download it in step 2" in text(app, "#outcome")

    drive(rig, BOXES["24 GB card"], steps, find=lambda folder: (broken,), offers=real_offers)


def test_a_download_tells_its_progress_and_serves_what_came(rig: Path) -> None:
    from appliance.examine import BUILTIN_MODEL

    lines: list[str] = []

    def download(remote: RemoteSet, folder: Path, tell: Callable[[Progress], None]) -> Path:
        tell(Progress("x.gguf", "download", 5, 9, 5, 9))
        return BUILTIN_MODEL

    async def steps(app: SetupApp, pilot: Pilot[int]) -> None:
        await to(app, pilot, 2)
        app.screen.query_one("#repository", Input).value = "o/n"
        app.screen.query_one("#download", Button).focus()
        await pilot.press("enter")
        await pilot.pause()
        assert app.draft is not None
        lines.append(app.draft.model.path)

    drive(rig, machine(), steps, download=download)
    assert lines == [str(BUILTIN_MODEL)]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        pytest.param(ModelFileError("o/n: the hub cannot be reached"), "hub cannot be reached", id="no network"),
        pytest.param(DoesNotFitError("needs 9 GiB; 1 GiB are free"), "1 GiB are free", id="CFG-20 disk"),
    ],
)
def test_a_download_that_fails_says_why(rig: Path, error: Exception, words: str) -> None:
    def look_up(name: str) -> RemoteSet:
        raise error

    async def steps(app: SetupApp, pilot: Pilot[int]) -> None:
        await to(app, pilot, 2)
        app.screen.query_one("#repository", Input).value = "o/n"
        app.screen.query_one("#download", Button).focus()
        await pilot.press("enter")
        await pilot.pause()
        assert words in text(app, "#progress")

    drive(rig, machine(), steps, look_up=look_up)


@pytest.mark.parametrize("fails", [False, True], ids=["it ends", "it fails"])
@pytest.mark.parametrize(("step", "button"), [(1, "#measure"), (2, "#download")], ids=["measuring", "searching"])
def test_slow_work_that_ends_after_its_step_was_left(rig: Path, step: int, button: str, fails: bool) -> None:
    """On a busy machine the search takes longer than somebody who goes on."""
    waiting: list[Callable[[], None]] = []
    holding = False

    def later(work: Callable[[], None]) -> None:
        waiting.append(work) if holding else work()

    def find(folder: Path) -> tuple[FoundSet, ...]:
        if fails:
            raise ModelFileError("unreadable")
        return ()

    def slow(now: Machine, folder: Path, progress: object) -> Measured:
        if fails:
            raise DoesNotFitError("no room")
        return Measured(machine=now, containers=Containers(), skipped="")

    async def steps(app: SetupApp, pilot: Pilot[int]) -> None:
        nonlocal holding
        holding = True
        await to(app, pilot, step)
        app.screen.query_one(button, Button).press()
        await pilot.pause()
        assert waiting
        await to(app, pilot, 4)
        while waiting:
            waiting.pop(0)()
        await pilot.pause()
        assert "step 4 of 8" in text(app, "#title")

    drive(rig, machine(), steps, find=find, measure=slow, spawn=later)
