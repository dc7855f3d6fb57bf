"""The steps of access, review and start: keys, what is written where, what is said when it cannot be."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Button, Input

from appliance.rig.containers import Containers
from appliance.rig.load import load_rig
from appliance.rig.migrate import MIGRATIONS
from setup_wizard.app import SetupApp
from setup_wizard.headless import read_answers, set_up_with
from setup_wizard.screens.widgets import Choice
from setup_wizard.start import Tools
from tests.builders.machines import machine
from tests.wizard.driving import drive, text, to, unreachable

HAND = "# ours\n[server]\nport = 9090 # the proxy\n"


@pytest.mark.parametrize(
    ("downs", "expected"),
    [
        pytest.param(1, ("0.0.0.0", "keys.json", False), id="office with keys"),
        pytest.param(2, ("0.0.0.0", None, True), id="CTR-11 office without keys, said so"),
    ],
)
def test_access(rig: Path, downs: int, expected: tuple[str, str | None, bool]) -> None:
    async def steps(app: SetupApp, pilot: Pilot[int]) -> None:
        await to(app, pilot, 6)
        app.screen.query_one("#access", Choice).focus()
        await pilot.press(*["down"] * downs, "enter")
        await pilot.pause()
        await pilot.press("ctrl+n")
        await pilot.pause()
        await pilot.press("ctrl+s")
        await pilot.pause()

    app = drive(rig, machine(), steps)
    server = load_rig(rig, environment={}).rig.server
    assert (server.host, server.keys_file, server.open) == expected
    assert (rig.parent / "keys.json").exists() == (expected[1] is not None)
    assert any("shown this once" in line for line in app.after) == (expected[1] is not None)


def test_a_rig_that_is_there_keeps_its_hand_edits_and_the_difference_is_shown(rig: Path, tmp_path: Path) -> None:
    """CFG-08, CFG-14: the answers file gives the same rig as the screens."""
    rig.write_text(HAND)

    async def steps(app: SetupApp, pilot: Pilot[int]) -> None:
        await to(app, pilot, 5)
        app.screen.query_one("#context-max_tokens", Input).value = "1024"
        await pilot.pause()
        await to(app, pilot, 7)
        assert "+max_tokens = 1024" in text(app, "#changes")
        await pilot.press("ctrl+s")
        await pilot.pause()

    drive(rig, machine(), steps)
    assert "port = 9090 # the proxy" in rig.read_text()
    (backup,) = rig.parent.glob("rig.toml.*.bak")
    assert backup.read_text() == HAND
    other, answers = tmp_path / "other" / "rig.toml", tmp_path / "answers.toml"
    other.parent.mkdir()
    other.write_text(HAND)
    answers.write_text("[context]\nmax_tokens = 1024\n")
    set_up_with(other, machine(), read_answers(answers), reset=False, say=lambda line: None)
    assert other.read_text() == rig.read_text()


def test_an_older_schema_is_offered_to_be_migrated(rig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CFG-08: said in step 1, shown as a difference in step 7, written only there."""
    monkeypatch.setitem(MIGRATIONS, 0, lambda tree: tree.update(server=tree.pop("listen")))
    old = "schema = 0\n[listen]\nport = 9090 # the proxy\n"
    rig.write_text(old)

    async def steps(app: SetupApp, pilot: Pilot[int]) -> None:
        assert "it is of schema 0: writing it in step 7 makes it schema 1" in text(app, "#found")
        await to(app, pilot, 7)
        for line in ("-schema = 0", "+schema = 1", "-[listen]", "+[server]"):
            assert line in text(app, "#changes").splitlines()
        assert not app.written
        await pilot.press("ctrl+s")
        await pilot.pause()

    drive(rig, machine(), steps)
    assert load_rig(rig, environment={}).migrated_from is None
    assert "port = 9090 # the proxy" in rig.read_text()


def test_a_read_only_place_gives_the_text_afterwards(rig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CFG-09"""

    def refuses(self: Path, target: Path) -> Path:
        raise OSError(errno.EROFS, "Read-only file system")

    async def steps(app: SetupApp, pilot: Pilot[int]) -> None:
        await to(app, pilot, 7)
        monkeypatch.setattr(Path, "replace", refuses)
        await pilot.press("ctrl+s")
        await pilot.pause()
        assert "read-only" in text(app, "#outcome")

    app = drive(rig, machine(), steps)
    assert "[server]" in app.after[0]
    assert not rig.exists()


def test_a_rig_that_is_not_toml_is_said_and_left(rig: Path) -> None:
    rig.write_text("not [ TOML")

    async def steps(app: SetupApp, pilot: Pilot[int]) -> None:
        assert "REFUSED" in text(app, "#found")
        await pilot.press("ctrl+n")
        await pilot.pause()
        assert "step 1" in text(app, "#title")

    drive(rig, machine(), steps)
    assert rig.read_text() == "not [ TOML"


def test_inside_the_image_it_prints_the_hosts_command(rig: Path) -> None:
    async def steps(app: SetupApp, pilot: Pilot[int]) -> None:
        await to(app, pilot, 7)
        await pilot.press("ctrl+s")
        await pilot.pause()
        assert "on the host" in text(app, "#command")
        assert not app.screen.query("#start")

    drive(rig, machine(image=True), steps)
    assert load_rig(rig, environment={}).rig.server.open


@pytest.mark.parametrize(
    ("note", "words"),
    [pytest.param("Docker does not run here", "REFUSED: Docker does not run here", id="no engine")],
)
def test_a_start_that_fails_says_why_and_may_be_tried_again(rig: Path, note: str, words: str) -> None:
    tools = Tools(
        containers=lambda image: Containers(note=note), run=unreachable, connect=unreachable, sleep=unreachable
    )

    async def steps(app: SetupApp, pilot: Pilot[int]) -> None:
        await to(app, pilot, 7)
        await pilot.press("ctrl+s")
        await pilot.pause()
        app.screen.query_one("#start", Button).focus()
        await pilot.press("enter")
        await pilot.pause()
        assert words in text(app, "#log")
        assert not app.screen.query_one("#start", Button).disabled

    app = drive(rig, machine(), steps, tools=tools, project=rig.parent)
    assert app.after[-1] == f"strata-setup: {note}"
