"""The very first start writes the rig that it then serves from, if it may."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from appliance import first_rig
from appliance.errors import ExitCode, RigError
from appliance.first_rig import ask_first, load_or_write
from appliance.rig.paths import RigPath
from tests.builders.machines import machine


@pytest.fixture(autouse=True)
def _in_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_rig, "probe", lambda folder: machine(image=True))


def test_an_absent_default_is_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """CTR-11: in the image it is reachable through the published port."""
    path = tmp_path / "config" / "rig.toml"
    with caplog.at_level("INFO", logger="strata"):
        loaded = load_or_write(RigPath(path, given=False), environment={})
    assert (loaded.rig.server.host, loaded.rig.server.open) == ("0.0.0.0", True)
    assert "host = " in path.read_text()
    assert "wrote a rig" in caplog.text
    assert load_or_write(RigPath(path, given=False), environment={}).rig == loaded.rig


def test_where_none_can_be_written_it_serves_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A read-only root without a volume."""
    (tmp_path / "file").touch()
    loaded = load_or_write(RigPath(tmp_path / "file" / "rig.toml", given=False), environment={})
    assert loaded.rig.server.host == "0.0.0.0"
    assert "none can be written" in caplog.text


def test_flags_and_environment_are_not_written(tmp_path: Path) -> None:
    path = tmp_path / "rig.toml"
    flags = [("--port", "server.port", "9000")]
    assert load_or_write(RigPath(path, given=False), environment={}, flags=flags).rig.server.port == 9000
    assert "9000" not in path.read_text()


def test_a_named_path_is_never_written(tmp_path: Path) -> None:
    """CFG-05"""
    with pytest.raises(RigError, match="no rig here"):
        load_or_write(RigPath(tmp_path / "rig.toml", given=True), environment={})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("image", "terminal", "given", "asked"),
    [
        pytest.param(True, True, False, True, id="in the image, in a terminal"),
        pytest.param(True, False, False, False, id="CFG-14 no terminal"),
        pytest.param(False, True, False, False, id="on the host the planner writes"),
        pytest.param(True, True, True, False, id="CFG-05 a rig that was named must be there"),
    ],
)
def test_the_wizard_asks_only_in_the_image_and_in_a_terminal(
    tmp_path: Path, image: bool, terminal: bool, given: bool, asked: bool
) -> None:
    calls: list[Sequence[str]] = []

    def run(words: Sequence[str]) -> int:
        calls.append(words)
        return 0

    found = RigPath(tmp_path / "rig.toml", given=given)
    left = ask_first(found, image=image, terminal=terminal, run=run)
    assert [call[1:] for call in calls] == [["-m", "setup_wizard", "--rig", str(found.path)]] * asked
    assert left == (ExitCode.OK if asked else None)


@pytest.mark.parametrize(
    ("code", "writes", "left"),
    [
        pytest.param(0, True, None, id="written: it is served"),
        pytest.param(0, False, ExitCode.OK, id="left"),
        pytest.param(2, False, None, id="nobody at the terminal: the planner writes"),
        pytest.param(70, False, ExitCode.FAULT, id="a fault of the screens"),
        pytest.param(130, False, ExitCode.OK, id="ended by a signal"),
    ],
)
def test_what_follows_the_wizard(tmp_path: Path, code: int, writes: bool, left: ExitCode | None) -> None:
    found = RigPath(tmp_path / "rig.toml", given=False)

    def run(words: Sequence[str]) -> int:
        if writes:
            found.path.write_text("schema = 1\n")
        return code

    assert ask_first(found, image=True, terminal=True, run=run) == left
