"""Measurements: bounded, honest about what they could not do, and never beside a running appliance."""

from __future__ import annotations

import dataclasses
import http.server
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.rig import speed
from appliance.rig.card_probe import read_rates
from appliance.rig.containers import Containers
from appliance.rig.deadline import Late, within
from appliance.rig.load import load_text
from appliance.rig.machine import Machine
from appliance.rig.measure import Probes, Step, measure
from appliance.rig.rates import Rates, Reading
from appliance.rig.recorded import with_recorded
from appliance.rig.running import find_running
from appliance.rig.size import GIB, MIB
from appliance.rig.warnings import table_advice
from appliance.rig.write import render
from tests.builders.machines import BOXES, CARD_RATES, machine


def clock(*, step: float = 0.25) -> object:
    ticks = itertools.count()
    return lambda: next(ticks) * step


# -- RAM and disk


def test_ram_takes_a_tenth_of_what_is_free_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    taken: list[int] = []
    real = np.ones
    monkeypatch.setattr(np, "ones", lambda count: taken.append(count * 8) or real(count))
    found = speed.measure_ram(400 * MIB, threads=2, clock=clock())  # type: ignore[arg-type]
    assert found.value is not None
    assert found.value > 0
    assert 2 * sum(taken) <= 40 * MIB


def test_too_little_ram_is_a_reason() -> None:
    found = speed.measure_ram(100 * MIB, threads=2)
    assert found.value is None
    assert "a tenth of the free RAM" in found.reason


def test_storage_is_read_past_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "STORAGE_S", 0.05)
    (tmp_path / "m.gguf").write_bytes(bytes(20 * MIB))
    stream, rows = speed.measure_storage(tmp_path, 10 * GIB)
    if stream.value is None:
        assert "O_DIRECT" in stream.reason
    else:
        assert stream.value > 0
        assert rows.value is not None
        assert rows.value > 0
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_a_scratch_file_is_a_tenth_of_the_free_space_and_goes_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "STORAGE_S", 0.05)
    sizes: list[int] = []
    real = speed._direct
    monkeypatch.setattr(speed, "_direct", lambda path: sizes.append(path.stat().st_size) or real(path))
    speed.measure_storage(tmp_path, 200 * MIB)
    assert sizes == [20 * MIB]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("free", "writable", "reason"),
    [
        pytest.param(50 * MIB, True, "too little space", id="CFG-20 no room for a scratch file"),
        pytest.param(10 * GIB, False, "not writable", id="read-only"),
    ],
)
def test_a_folder_that_cannot_be_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, writable: bool, reason: str
) -> None:
    monkeypatch.setattr(speed.os, "access", lambda path, mode: writable)
    stream, rows = speed.measure_storage(tmp_path, free)
    assert (stream.value, rows.value) == (None, None)
    assert reason in stream.reason


def test_few_answers_in_all_that_time_are_a_reason() -> None:
    """CFG-17: 200 random reads at 12 ms each is what a turning disk gives; a handful is not a rate."""
    box = BOXES["spinning disk"]
    usable, says = table_advice(box.storage, box.rates, table_bytes=28 * GIB, free_ram_bytes=90 * GIB) or (None, "")
    assert usable is True
    assert "keep the table in RAM" in says
    assert "160 random reads a second (measured)" in says


@pytest.mark.parametrize(
    ("changes", "rows", "free", "expected"),
    [
        pytest.param(
            {"rotational": True}, 160.0, 4, (False, "not usable here"), id="CFG-17 turning disk, RAM too small"
        ),
        pytest.param({"rotational": True}, None, 4, (False, "assumed, not measured"), id="CFG-17 turning, unmeasured"),
        pytest.param({"network": True}, None, 90, (True, "a network file system"), id="CFG-17 network mount"),
        pytest.param({}, 200 / 12.0, 4, (False, "not usable here"), id="CFG-17 NVMe at 12 ms a read"),
        pytest.param({}, 8000.0, 4, (True, "a prompt of 8,192 tokens waits 16 s"), id="CFG-17 a slow disk"),
        pytest.param({}, 400_000.0, 4, None, id="quick"),
        pytest.param({}, None, 4, None, id="solid state, unmeasured"),
        pytest.param({"rotational": True}, 400_000.0, 4, None, id="the measurement wins over the flag"),
    ],
)
def test_what_a_disk_means_for_the_table(
    changes: dict[str, bool], rows: float | None, free: int, expected: tuple[bool, str] | None
) -> None:
    storage = dataclasses.replace(machine().storage, **changes)  # type: ignore[arg-type]
    rates = Rates(storage_rows_per_s=Reading() if rows is None else Reading.of(rows))
    found = table_advice(storage, rates, table_bytes=28 * GIB, free_ram_bytes=free * GIB)
    if expected is None or found is None:
        assert found is expected
    else:
        assert found[0] is expected[0]
        assert expected[1] in found[1]


# -- the order of things


def probes(**changes: object) -> Probes:
    plain = Probes(
        ram=lambda machine: Reading.of(50.0),
        storage=lambda machine, folder: (Reading.of(5.0), Reading.of(300_000.0)),
        cards=lambda machine, image: read_rates(CARD_RATES),
        containers=lambda image: Containers(engine="28.0", compose="2.30.1", nvidia=True),
    )
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def run(found: Machine | None = None, *, running: str | None = None, **changes: object) -> tuple[Rates, list[Step]]:
    steps: list[Step] = []
    measured = measure(
        found or machine(), Path("/"), image="i", running=running, progress=steps.append, probes=probes(**changes)
    )
    return measured.machine.rates, steps


def test_every_probe_tells_when_it_begins_and_ends() -> None:
    rates, steps = run()
    assert [(step.probe, step.done) for step in steps] == [
        (name, done) for name in ("Docker", "RAM", "storage", "cards") for done in (False, True)
    ]
    assert [step.number for step in steps] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert {step.of for step in steps} == {4}
    assert (rates.ram_gbps.value, rates.storage_gbps.value) == (50.0, 5.0)
    assert rates.cards[0].peers == ("GPU-1",)


def test_a_probe_that_fails_is_a_reason_and_the_others_go_on() -> None:
    def broken(*_: object) -> object:
        raise OSError("the disk is on fire")

    rates, steps = run(storage=broken, ram=broken, cards=broken, containers=broken)
    assert rates.storage_gbps == rates.storage_rows_per_s == Reading(None, "the disk is on fire")
    assert rates.cards_reason == "the disk is on fire"
    assert [step.says for step in steps if step.done] == ["could not measure, because the disk is on fire"] * 4


@pytest.mark.parametrize(
    ("running", "containers", "words"),
    [
        pytest.param("127.0.0.1 port 8080, ready", (), "127.0.0.1 port 8080", id="answers"),
        pytest.param(None, ("strata-strata-1",), "container strata-strata-1", id="a container of ours runs"),
    ],
)
def test_a_running_appliance_is_not_disturbed(running: str | None, containers: tuple[str, ...], words: str) -> None:
    def never(*_: object) -> object:
        raise AssertionError("it was disturbed")

    rates, steps = run(
        running=running,
        containers=lambda image: Containers(engine="28.0", compose="2.30", running=containers),
        ram=never,
        storage=never,
        cards=never,
    )
    assert rates.ram_gbps.value is None
    for text in (rates.ram_gbps.reason, rates.cards_reason, *(step.says for step in steps[2:])):
        assert "so as not to disturb" in text
        assert words in text


def test_a_deadline_is_a_reason() -> None:
    held = threading.Event()
    began = time.monotonic()
    with pytest.raises(Late, match=r"no answer within 0\.05 s"):
        within(0.05, held.wait)
    assert time.monotonic() - began < 2
    held.set()
    assert within(5, lambda: 7) == 7
    with pytest.raises(ValueError, match="own"):
        within(5, lambda: int("own"))


# -- cards in a process of their own


@pytest.fixture
def answering() -> Iterator[tuple[int, dict[str, bytes]]]:
    body = {"body": b'{"ready": true, "stage": "ready", "percent": 100, "device": "cpu"}'}

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body["body"])))
            self.end_headers()
            self.wfile.write(body["body"])

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield server.server_port, body
    server.shutdown()
    server.server_close()


def test_an_appliance_is_known_by_its_readiness(answering: tuple[int, dict[str, bytes]]) -> None:
    port, body = answering
    assert find_running("0.0.0.0", port) == "ready"
    for other in (b"<html>", b"[1]", b'{"ready": true}'):
        body["body"] = other
        assert find_running("127.0.0.1", port) is None
    assert find_running("127.0.0.1", 9) is None


# -- kept in the rig


def test_measured_speeds_are_written_and_read_back() -> None:
    box = BOXES["two 24 GB cards, one on x4"]
    text = render(None, box, today="2026-01-01")
    loaded = load_text(text)
    written = loaded.rig.machine
    assert (written.ram_gbps, written.storage_gbps, written.storage_rows_per_s) == (65.0, 6.0, 400_000.0)
    assert written.card[1].link_gbps == pytest.approx((6.2, 6.2, 5.89))
    bare = dataclasses.replace(box, rates=Rates())
    again = with_recorded(bare, written)
    assert again.rates.card(box.cards.cards[1].uuid).to_card_gbps.value == 6.2  # type: ignore[union-attr]
    assert again.rates.ram_gbps.value == 65.0
    assert render(text, bare, today="2026-02-02") == text
    assert with_recorded(box, written) == box
