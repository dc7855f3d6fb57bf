"""Every screen by keyboard alone, through Textual's pilot, on machines that are data."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Button, Input, Static

from appliance.errors import DoesNotFitError, ModelFileError
from appliance.models.catalogue import read_catalogue
from appliance.models.download import Progress
from appliance.models.find import FoundSet
from appliance.models.outline import outline
from appliance.models.repository import RemoteFile, RemoteSet
from appliance.rig.containers import Containers
from appliance.rig.load import load_rig
from appliance.rig.machine import Machine
from appliance.rig.measure import Measured
from appliance.rig.measure import Step as Probe
from appliance.rig.migrate import MIGRATIONS
from appliance.rig.rates import Rates, Reading
from setup_wizard.app import SetupApp
from setup_wizard.draft import Answer, Model
from setup_wizard.headless import read_answers, set_up_with
from setup_wizard.screens.card_widgets import Boundary, CardPicker
from setup_wizard.screens.small import TooSmall
from setup_wizard.screens.widgets import Choice
from setup_wizard.sources import Sources, real_offers
from setup_wizard.start import Tools
from tests.builders.machines import BOXES, machine

TWO = "two 16 GB cards on x8"
HAND = "# ours\n[server]\nport = 9090 # the proxy\n"
REMOTE = RemoteSet(
    repository="o/n", revision="1", title="X", files=(RemoteFile(path="x.gguf", size_bytes=9, sha256=None),)
)


def sources(found: Machine, **others: Any) -> Sources:
    def measure(now: Machine, folder: Path, progress: Callable[[Probe], None]) -> Measured:
        progress(Probe("RAM", False, "copying", 1, 1))
        progress(Probe("RAM", True, "44 GB/s", 1, 1))
        faster = dataclasses.replace(now, rates=Rates(ram_gbps=Reading.of(44.0)))
        return Measured(machine=faster, containers=Containers(), skipped="")

    tools = Tools(containers=lambda image: Containers(note="Docker does not run here"), run=_no, connect=_no, sleep=_no)
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


def _no(*_: Any) -> Any:
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


@pytest.fixture
def rig(tmp_path: Path) -> Path:
    return tmp_path / "rig.toml"


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


def test_measuring_shows_progress_and_its_numbers(rig: Path) -> None:
    async def steps(app: SetupApp, pilot: Pilot[int]) -> None:
        app.screen.query_one("#measure", Button).focus()
        await pilot.press("enter")
        await pilot.pause()
        assert "44 GB/s" in text(app, "#progress")
        assert "RAM: 44.0 GB/s measured" in text(app, "#found")

    drive(rig, machine(), steps)


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


def given(name: str, size: str = "iq3-s") -> Model:
    found = read_catalogue().size(size)
    return Model(path=f"/m/{name}.gguf", spec=outline(found))


def test_several_cards_are_taken_and_the_boundary_is_dragged(rig: Path) -> None:
    """SPLIT-02, CFG-19: the order is as they are taken; every move is priced at once, in the cards' own bars."""

    async def steps(app: SetupApp, pilot: Pilot[int]) -> None:
        app.serve(given("m"))
        await to(app, pilot, 3)
        assert app.judged is not None
        assert "2 x NVIDIA GeForce RTX 5060 Ti" in text(app, "#lines")
        app.screen.query_one(CardPicker).focus()
        await pilot.press("home", "down", "enter")
        await pilot.pause()
        assert app.draft is not None
        assert "on NVIDIA GeForce RTX 5060 Ti" in text(app, "#lines")
        app.screen.query_one(CardPicker).focus()
        await pilot.press("home", "down", "enter")
        await pilot.pause()
        assert app.draft.value("cards.devices") == [card.uuid for card in BOXES[TWO].cards.cards][::-1]
        assert "card 1 layers 0-" in text(app, "#lines")
        boundary = app.screen.query_one(Boundary)
        before = boundary.split[0]
        boundary.focus()
        await pilot.press(*["shift+left"] * 3)
        await pilot.pause()
        assert app.draft.value("cards.layer_split") == [before - 12]
        assert "slower" in text(app, "#change")
        assert "the slowest card takes" in text(app, "#lines")

    drive(rig, BOXES[TWO], steps)


def test_a_boundary_moved_under_automatic_states_the_cards_too(rig: Path) -> None:
    async def steps(app: SetupApp, pilot: Pilot[int]) -> None:
        app.serve(given("m"))
        app.answer(Answer("cards.devices", "auto"))
        await to(app, pilot, 3)
        app.screen.query_one(Boundary).focus()
        await pilot.press("right")
        await pilot.pause()
        assert app.judged is not None
        assert app.judged.accepted, app.judged.problems
        assert app.draft is not None
        assert len(app.draft.value("cards.devices")) == 2
        assert len(app.draft.value("cards.layer_split")) == 1

    drive(rig, BOXES[TWO], steps)


def test_an_old_card_is_shown_with_the_reason_and_cannot_be_taken(rig: Path) -> None:
    """SPLIT-07"""
    here = BOXES[TWO]
    first, last = here.cards.cards
    old = dataclasses.replace(here.cards, cards=(dataclasses.replace(first, capability="7.0"), last))

    async def steps(app: SetupApp, pilot: Pilot[int]) -> None:
        await to(app, pilot, 3)
        rows = app.screen.query_one(CardPicker).rows
        assert "its compute capability is 7.0" in rows[1].why_not
        assert rows[2].why_not == ""

    drive(rig, dataclasses.replace(here, cards=old), steps)


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
    tools = Tools(containers=lambda image: Containers(note=note), run=_no, connect=_no, sleep=_no)

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
