"""Every screen as it is drawn, at both sizes: pictures that a person has looked at, compared letter by letter.

After a change that is meant: `pytest tests/wizard/test_pictures.py --snapshot-update`, then look at what changed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from appliance.models.catalogue import read_catalogue
from appliance.models.outline import outline
from appliance.rig.write import render
from setup_wizard import draft
from setup_wizard.app import SetupApp
from setup_wizard.draft import Model
from setup_wizard.screens import STEPS
from setup_wizard.sources import real_offers
from tests.builders.machines import BOXES, machine
from tests.wizard.driving import sources

SIZES = ((80, 24), (120, 40))
NAMES = [step.__name__.removesuffix("Step").lower() for step in STEPS]


def wizard(name: str | None) -> SetupApp:
    """On a machine that is data, with nothing of this one to be seen."""
    found = machine() if name is None else BOXES[name]
    app = SetupApp(Path("/srv/strata/rig.toml"), sources=sources(found, offers=real_offers))
    app.models_folder = Path("/srv/strata/models")
    return app


async def settled(pilot: Pilot[int]) -> None:
    """Waits until two looks in a row see the same, however busy this machine is."""
    before, now = "", pilot.app.export_screenshot()
    while plain(now) != plain(before):
        await pilot.pause()
        before, now = now, pilot.app.export_screenshot()


def plain(picture: str) -> str:
    """Without the random name that every picture carries."""
    return re.sub(r"terminal-\d+", "terminal", picture)


@pytest.fixture(autouse=True)
def _one_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "render", functools.partial(render, today="2026-09-01"))


@pytest.mark.parametrize("size", SIZES, ids=["80x24", "120x40"])
@pytest.mark.parametrize("step", range(len(STEPS)), ids=NAMES)
def test_a_step_looks_as_it_did(snap_compare: Callable[..., bool], step: int, size: tuple[int, int]) -> None:
    async def before(pilot: Pilot[int]) -> None:
        app = pilot.app
        assert isinstance(app, SetupApp)
        await pilot.pause()
        published = read_catalogue().size("ud-q4-k-xl")
        app.serve(Model(path="/srv/strata/models/m.gguf", spec=outline(published)))
        app.go(step)
        await pilot.pause()
        for field in app.screen.query(Input):
            field.cursor_blink = False  # the picture is not to depend on the moment
        await settled(pilot)

    assert snap_compare(wizard("two 24 GB cards, one on x4"), terminal_size=size, run_before=before)


def test_a_window_that_is_too_small_looks_as_it_did(snap_compare: Callable[..., bool]) -> None:
    """CFG-15"""
    assert snap_compare(wizard(None), terminal_size=(40, 12))
