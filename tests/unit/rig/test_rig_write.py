"""Writing a rig loses nothing, whatever the file system does."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from appliance.errors import RigError
from appliance.rig.load import load_text
from appliance.rig.write import render, write_rig
from tests.builders.machines import machine

HAND = """# our office
schema = 1

[server]
port = 9090 # the proxy expects it
cors_origins = ["https://chat.example"]
"""


def test_a_new_rig_has_what_must_be_there_and_loads() -> None:
    text = render(None, machine(), today="2026-09-01")
    loaded = load_text(text)
    assert loaded.origin("server.host").kind == loaded.origin("server.port").kind == "file"
    assert "schema = 1\n" in text
    assert loaded.rig.machine.measured_on == "2026-09-01"
    assert loaded.rig.server.host == "127.0.0.1"


def test_the_first_rig_of_the_image_is_reachable_through_the_published_port() -> None:
    """CTR-11"""
    server = load_text(render(None, machine(image=True))).rig.server
    assert (server.host, server.open) == ("0.0.0.0", True)


def test_keys_in_the_image_stay_required() -> None:
    server = load_text(render('[server]\nkeys_file = "keys.json"\n', machine(image=True))).rig.server
    assert (server.host, server.open) == ("0.0.0.0", False)


def test_hand_edits_and_comments_survive() -> None:
    """CFG-08"""
    text = render(HAND, machine(), today="2026-09-01")
    for line in HAND.splitlines():
        assert line in text
    assert load_text(text).rig.server.host == "127.0.0.1"


def test_writing_twice_changes_nothing_and_a_new_card_changes_the_machine_only() -> None:
    first = render(HAND, machine(cards=1), today="2026-09-01")
    assert render(first, machine(cards=1), today="2026-09-02") == first
    second = render(
        first.replace('capability = "12.0"', 'capability = "12.0"\nlink_gbps = [1.0, 2.0, 3.0]'), machine(cards=2)
    )
    cards = load_text(second).rig.machine.card
    assert [card.link_gbps for card in cards] == [(1.0, 2.0, 3.0), None]
    assert second.startswith(first[: first.index("[machine]")])
    assert load_text(render(second, machine())).rig.machine.card == ()


def test_a_file_without_schema_gets_it_above_the_first_table() -> None:
    text = render("# note\n[server]\nport = 1 # mine\n", machine())
    assert load_text(text).origin("schema").kind == "file"
    assert "# note" in text
    assert "port = 1 # mine" in text


def test_replaced_in_one_step_with_a_backup(tmp_path: Path) -> None:
    path = tmp_path / "rig.toml"
    assert write_rig(path, "a = 1\n").backup is None
    written = write_rig(path, "a = 2\n")
    assert written.backup is not None
    assert (path.read_text(), written.backup.read_text()) == ("a = 2\n", "a = 1\n")
    assert not write_rig(path, "a = 2\n").changed
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EXDEV])
def test_a_file_mounted_alone_is_written_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """CFG-09"""
    path = tmp_path / "rig.toml"
    path.write_text("a = 1 # longer than what comes\n")
    inode = path.stat().st_ino

    def refuses(self: Path, target: Path) -> Path:
        raise OSError(number, "busy")

    monkeypatch.setattr(Path, "replace", refuses)
    written = write_rig(path, "a = 2\n")
    assert (path.read_text(), path.stat().st_ino) == ("a = 2\n", inode)
    assert written.backup is not None
    assert sorted(tmp_path.iterdir()) == sorted([path, written.backup])


def test_read_only_place_leaves_the_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CFG-09"""
    path = tmp_path / "rig.toml"
    path.write_text("a = 1\n")

    def refuses(self: Path, target: Path) -> Path:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "replace", refuses)
    with pytest.raises(RigError, match="read-only"):
        write_rig(path, "a = 2\n")
    assert path.read_text() == "a = 1\n"
