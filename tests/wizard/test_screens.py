"""The way through the screens by keyboard alone, and windows too small for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Button, Input

from appliance.rig.load import load_rig
from setup_wizard.app import SetupApp
from setup_wizard.screens.small import TooSmall
from tests.builders.machines import BOXES, machine
from tests.wizard.driving import drive, text, to


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param("no card", (80, 24), id="no card, 80x24"),
        pytest.param("two 16 GB cards on x8", (120, 40), id="two cards, 120x40"),
    ],
)
def test_every_step_by_keyboard_to_a_written_rig(rig: Path, name: str, size: tuple[int, int]) -> None:
    """CFG-15: no step needs a mouse, and the plan is on every step before the last."""

    async def steps(app: SetupApp, pilot: Pilot[int]) -> None:
        for number in range(1, 8):
            assert f"step {number} of 8" in text(app, "#title")
            assert "conversations of" in text(app, "#lines")
            assert text(app, "#help")
            await pilot.press("ctrl+s" if number == 7 else "ctrl+n")
            await pilot.pause()
        assert "step 8 of 8" in text(app, "#title")
        assert str(rig) in text(app, "#written")

    app = drive(rig, BOXES[name], steps, size=size)
    assert app.written
    assert load_rig(rig, environment={}).rig.model.path == "builtin"


def test_back_goes_back_and_leaving_touches_nothing(rig: Path) -> None:
    async def steps(app: SetupApp, pilot: Pilot[int]) -> None:
        await to(app, pilot, 3)
        await pilot.press("escape")
        await pilot.pause()
        assert "step 2" in text(app, "#title")
        await pilot.press("ctrl+q")

    app = drive(rig, machine(), steps)
    assert not rig.exists()
    assert "was not touched" in app.after[-1]


def test_a_change_is_priced_at_once_and_a_wrong_one_refused(rig: Path) -> None:
    """CFG-19"""

    async def steps(app: SetupApp, pilot: Pilot[int]) -> None:
        await to(app, pilot, 5)
        field = app.screen.query_one("#serving-parallel", Input)
        field.focus()
        field.value = "2"
        await pilot.pause()
        assert "conversations 8 to 2" in text(app, "#change")
        field.value = "99"
        await pilot.pause()
        assert "REFUSED" in text(app, "#lines")
        assert "1 to 64" in text(app, "#lines")
        assert "Conversations decoded together." in text(app, "#help")
        await to(app, pilot, 7)
        assert app.screen.query_one("#write", Button).disabled
        await pilot.press("ctrl+s")
        await pilot.press("ctrl+n")
        await pilot.pause()
        assert "step 7" in text(app, "#title")
        await pilot.press("ctrl+r")
        await pilot.pause()
        assert not app.screen.query_one("#write", Button).disabled

    drive(rig, machine(), steps)
    assert not rig.exists()


@pytest.mark.parametrize("size", [(1, 1), (20, 5), (40, 12)], ids=["1x1", "20x5", "40x12"])
def test_a_small_window_says_so_and_recovers(rig: Path, size: tuple[int, int]) -> None:
    """CFG-15"""

    async def steps(app: SetupApp, pilot: Pilot[int]) -> None:
        await pilot.pause()
        assert isinstance(app.screen, TooSmall)
        await pilot.resize_terminal(120, 40)
        await pilot.pause()
        assert "step 1" in text(app, "#title")
        await pilot.press("ctrl+n")
        await pilot.pause()
        await pilot.resize_terminal(*size)
        await pilot.pause()
        assert isinstance(app.screen, TooSmall)
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert "step 2" in text(app, "#title")

    drive(rig, machine(), steps, size=size)
