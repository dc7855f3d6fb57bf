"""`strata-setup --auto`: writes what `strata check` accepts, and loses nothing."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import yaml

from appliance.__main__ import main as strata
from appliance.errors import DoesNotFitError, ExitCode, RigError
from appliance.rig.load import load_rig
from appliance.rig.migrate import MIGRATIONS
from appliance.rig.size import MIB
from setup_wizard.__main__ import main
from setup_wizard.compose import override
from setup_wizard.headless import OVERRIDE, read_answers, set_up, set_up_with
from tests.builders.machines import card, machine

HAND = """# ours
[server]
port = 9090 # the proxy expects it
cors_origins = ["https://chat.example"]

[context]
max_tokens = 2048
"""


@pytest.fixture
def rig(tmp_path: Path) -> Path:
    return tmp_path / "rig.toml"


def run(rig: Path, *, reset: bool = False, cards: int = 0) -> list[str]:
    lines: list[str] = []
    set_up(rig, machine(cards=cards), reset=reset, say=lines.append)
    return lines


def test_writes_a_rig_that_check_accepts(rig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--auto", "--rig", str(rig)]) == ExitCode.OK
    assert f"wrote {rig}" in capsys.readouterr().out
    text = rig.read_text()
    for line in ("schema = 1", "[server]", 'host = "127.0.0.1"', "port = 8080", "[machine]"):
        assert line in text.splitlines()
    assert strata(["check", "--rig", str(rig)]) == ExitCode.OK


def test_hand_edits_survive_and_what_is_missing_is_filled_in(rig: Path) -> None:
    """CFG-08"""
    rig.write_text(HAND)
    run(rig)
    text = rig.read_text()
    for line in HAND.splitlines():
        assert line in text
    loaded = load_rig(rig, environment={})
    assert loaded.rig.context.max_tokens == 2048
    assert loaded.origin("server.host").kind == "file"
    (backup,) = rig.parent.glob("rig.toml.*.bak")
    assert backup.read_text() == HAND


OLD = "# ours\nschema = 0\n[listen]\nport = 9090 # the proxy expects it\n"


def test_an_older_schema_is_written_anew_with_its_comments_and_a_backup(
    rig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CFG-08"""
    monkeypatch.setitem(MIGRATIONS, 0, lambda tree: tree.update(server=tree.pop("listen")))
    rig.write_text(OLD)
    lines = run(rig)
    assert any("is of schema 0 and becomes schema 1" in line for line in lines)
    text = rig.read_text()
    assert "port = 9090 # the proxy expects it" in text
    assert text.startswith("# ours\n")
    assert "schema = 1" in text
    loaded = load_rig(rig, environment={})
    assert (loaded.rig.server.port, loaded.migrated_from) == (9090, None)
    (backup,) = rig.parent.glob("rig.toml.*.bak")
    assert backup.read_text() == OLD


def test_a_second_run_changes_nothing(rig: Path) -> None:
    run(rig)
    first = rig.read_bytes()
    assert any(line.startswith("nothing to change") for line in run(rig))
    assert rig.read_bytes() == first
    assert not list(rig.parent.glob("*.bak"))


def test_reset_starts_anew_and_keeps_a_backup(rig: Path) -> None:
    rig.write_text("not [ TOML")
    with pytest.raises(RigError):
        run(rig)
    assert rig.read_text() == "not [ TOML"
    run(rig, reset=True)
    assert load_rig(rig, environment={}).rig.server.port == 8080
    (backup,) = rig.parent.glob("rig.toml.*.bak")
    assert backup.read_text() == "not [ TOML"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param("[server]\nport = 70000\n", RigError, id="CFG-08 invalid key"),
        pytest.param("[cards]\ndevices = [0]\n", RigError, id="not available"),
    ],
)
def test_a_failed_check_leaves_the_file_as_it_was(rig: Path, text: str, error: type[Exception]) -> None:
    """CFG-08"""
    rig.write_text(text)
    with pytest.raises(error):
        run(rig)
    assert rig.read_text() == text
    assert list(rig.parent.iterdir()) == [rig]


def test_what_does_not_fit_is_not_written(rig: Path) -> None:
    with pytest.raises(DoesNotFitError):
        set_up(rig, machine(ram_bytes=200 * MIB), reset=False, say=lambda line: None)
    assert not rig.exists()


def test_an_empty_file_counts_as_none(rig: Path) -> None:
    rig.touch()
    run(rig)
    assert load_rig(rig, environment={}).rig.server.port == 8080


def test_a_read_only_place_gets_the_text_printed(rig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CFG-09"""

    def refuses(self: Path, target: Path) -> Path:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "replace", refuses)
    lines: list[str] = []
    with pytest.raises(RigError, match="read-only"):
        set_up(rig, machine(), reset=False, say=lines.append)
    assert "[server]" in lines[0]
    assert not rig.exists()


def test_without_auto_it_names_the_headless_mode(rig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CFG-14"""
    assert main(["--rig", str(rig)]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert f"strata-setup --auto --rig {rig}" in captured.err
    assert not rig.exists()


def test_cards_are_reserved_by_uuid_and_never_counted(rig: Path) -> None:
    """CTR-02, CFG-10"""
    lines = run(rig, cards=2)
    assert any(OVERRIDE in line for line in lines)
    service = yaml.safe_load((rig.parent / OVERRIDE).read_text())["services"]["strata"]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "device_ids": [card(0).uuid, card(1).uuid], "capabilities": ["gpu"]}
    assert service["ulimits"] == {"memlock": -1}
    assert [entry.uuid for entry in load_rig(rig, environment={}).rig.machine.card] == [card(0).uuid, card(1).uuid]


def test_several_cards_in_an_answers_file(rig: Path, tmp_path: Path) -> None:
    """CFG-14, SPLIT-02: the order is kept, every card's layers are said, the override hands all of them over."""
    uuids = [card(1).uuid, card(0).uuid]
    file, lines = tmp_path / "answers.toml", list[str]()
    file.write_text(f"[cards]\ndevices = {uuids}\nlayer_split = [3]\n")
    set_up_with(rig, machine(cards=3), read_answers(file), reset=False, say=lines.append)
    loaded = load_rig(rig, environment={})
    assert loaded.rig.cards.devices == tuple(uuids)
    assert loaded.rig.cards.layer_split == (3,)
    assert [line.partition(",")[0] for line in lines if line.startswith("card ")] == [
        "card 1 NVIDIA Test 32G: layers 0 to 2",
        "card 0 NVIDIA Test 32G: layers 3 to 7",
    ]
    service = yaml.safe_load((rig.parent / OVERRIDE).read_text())["services"]["strata"]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device["device_ids"] == uuids
    file.write_text(f"[cards]\ndevices = {uuids}\nlayer_split = [4, 4]\n")
    with pytest.raises(RigError, match=r"write \[4\]"):
        set_up_with(rig, machine(cards=3), read_answers(file), reset=False, say=lines.append)


def test_no_card_no_override(rig: Path) -> None:
    run(rig)
    assert not (rig.parent / OVERRIDE).exists()
    with pytest.raises(ValueError, match="at least one card"):
        override(())
