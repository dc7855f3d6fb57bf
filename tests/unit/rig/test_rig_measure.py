"""Measurements: bounded, honest about what they could not do, and never beside a running appliance."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from appliance.engine import probe as engine_probe
from appliance.rig import card_probe, speed
from appliance.rig.card_probe import measure_cards, read_rates
from appliance.rig.containers import Containers, probe_containers
from appliance.rig.deadline import Late, within
from appliance.rig.host import memory_kills, toolkit_fix
from appliance.rig.load import load_text
from appliance.rig.machine import Machine
from appliance.rig.measure import Probes, Step, measure
from appliance.rig.processor import probe_processor
from appliance.rig.rates import Rates, Reading
from appliance.rig.recorded import with_recorded
from appliance.rig.running import find_running
from appliance.rig.size import GIB, MIB
from appliance.rig.warnings import table_advice
from appliance.rig.write import render
from tests.builders.machines import BOXES, fake_root, machine

CARD_RATES = json.dumps(
    {
        "cards": [
            {
                "uuid": "GPU-0",
                **{name: {"value": 25.0, "reason": ""} for name in card_probe.READINGS},
                "generation": 4,
                "width": 16,
                "peers": ["GPU-1"],
                "peer_note": "",
            }
        ],
        "cards_reason": "",
    }
)


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


class FakeDocker:
    """A client of the SDK, as far as it is used."""

    def __init__(self, *, output: str = CARD_RATES, code: int = 0, error: Exception | None = None) -> None:
        self.asked: dict[str, object] = {}
        self.removed = 0
        self._output, self._code, self._error = output, code, error
        self.containers = SimpleNamespace(create=self._create)

    def _create(self, image: str, command: list[str], **options: object) -> SimpleNamespace:
        self.asked = {"image": image, "command": command, **options}
        return SimpleNamespace(
            start=self._start,
            wait=lambda timeout: {"StatusCode": self._code},
            logs=lambda stdout, stderr: self._output.encode(),
            remove=self._remove,
        )

    def _start(self) -> None:
        if self._error is not None:
            raise self._error

    def _remove(self, force: bool) -> None:
        self.removed += force


def in_image(docker: FakeDocker) -> Rates:
    return measure_cards(
        ["GPU-0"], ram_bytes=GIB, image="strata:1", deadline_s=9, connect=lambda: docker, has_torch=False
    )


def test_without_torch_the_image_measures_the_cards_it_is_given() -> None:
    docker = FakeDocker()
    rates = in_image(docker)
    assert rates.cards[0].to_card_gbps.value == 25.0
    assert docker.asked["command"][:3] == ["python", "-m", "appliance.engine.probe"]  # type: ignore[index]
    (request,) = docker.asked["device_requests"]  # type: ignore[misc]
    assert request["DeviceIDs"] == ["GPU-0"]
    assert docker.asked["network_mode"] == "none"
    assert docker.removed == 1


@pytest.mark.parametrize(
    ("docker", "words"),
    [
        pytest.param(
            FakeDocker(error=OSError("no such image")),
            "strata:1 did not measure the cards: no such image",
            id="no image",
        ),
        pytest.param(FakeDocker(code=1, output="boom"), "ended with 1: boom", id="it fails"),
        pytest.param(FakeDocker(output="hello"), "printed no result", id="it prints something else"),
        pytest.param(
            FakeDocker(error=RuntimeError('could not select device driver "nvidia" with capabilities: [[gpu]]')),
            "Docker cannot hand cards to strata:1 (could not select device driver): see strata doctor",
            id="CTR-01 no NVIDIA runtime",
        ),
    ],
)
def test_an_image_that_cannot_measure(docker: FakeDocker, words: str) -> None:
    rates = in_image(docker)
    assert rates.cards == ()
    assert words in rates.cards_reason
    assert docker.removed == 1


@pytest.mark.parametrize(
    ("done", "words"),
    [
        pytest.param(SimpleNamespace(returncode=0, stdout=CARD_RATES, stderr=""), "", id="measured"),
        pytest.param(
            SimpleNamespace(returncode=1, stdout="", stderr="a\nOSError: boom"), "failed: OSError: boom", id="fails"
        ),
        pytest.param(subprocess.TimeoutExpired("python", 9), "not measured within 9 s", id="hangs"),
    ],
)
def test_with_torch_a_process_of_its_own_measures(
    monkeypatch: pytest.MonkeyPatch, done: SimpleNamespace | Exception, words: str
) -> None:
    def run(command: list[str], **options: object) -> SimpleNamespace:
        assert command[1:4] == ["-m", "appliance.engine.probe", "--json"]
        assert options["timeout"] == 9
        if isinstance(done, Exception):
            raise done
        return done

    monkeypatch.setattr(card_probe.subprocess, "run", run)
    rates = measure_cards(["GPU-0"], ram_bytes=GIB, image="i", deadline_s=9, has_torch=True)
    assert words in rates.cards_reason
    assert bool(rates.cards) is not bool(words)
    assert measure_cards([], ram_bytes=GIB, image="i", deadline_s=1).cards_reason == "there is no card"


def fake_torch(*uuids: str, free: int = 8 * GIB) -> SimpleNamespace:
    """A torch that sees cards and refuses every allocation, as a full card does."""

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: out of memory\nmore lines")

    return SimpleNamespace(
        zeros=refuse,
        arange=refuse,
        int32="int32",
        cuda=SimpleNamespace(
            is_available=lambda: bool(uuids),
            device_count=lambda: len(uuids),
            get_device_properties=lambda number: SimpleNamespace(uuid=uuids[number]),
            mem_get_info=lambda number: (free, 24 * GIB),
            device=lambda number: contextlib.nullcontext(),
            empty_cache=lambda: None,
            can_device_access_peer=lambda one, other: True,
        ),
    )


@pytest.mark.parametrize(
    ("torch", "wanted", "reason", "card_reason"),
    [
        pytest.param(fake_torch(), [], "torch sees no card here", "", id="CTR-03 no card in the container"),
        pytest.param(fake_torch("1-2"), ["GPU-9"], "none of these cards is visible", "", id="CFG-10 another card"),
        pytest.param(
            fake_torch("1-2"), ["GPU-1-2", "GPU-9"], "not visible here: GPU-9", "out of memory", id="one of two"
        ),
        pytest.param(fake_torch("1-2", free=MIB), [], "", "a tenth of the free memory", id="MEM-04 a full card"),
        pytest.param(fake_torch("1", "2"), [], "", "pinned RAM were refused: CUDA error", id="CTR-10 pinning refused"),
    ],
)
def test_what_the_card_probe_cannot_measure(
    monkeypatch: pytest.MonkeyPatch, torch: SimpleNamespace, wanted: list[str], reason: str, card_reason: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    lines: list[str] = []
    rates = engine_probe.probe_cards(wanted, ram_bytes=8 * GIB, say=lines.append)
    assert reason in rates.cards_reason
    for card in rates.cards:
        assert card.to_card_gbps.value is None
        assert card_reason in card.to_card_gbps.reason
        assert card.peers == ()
    assert read_rates(json.dumps(dataclasses.asdict(rates))) == rates


# -- Docker


def client(**info: object) -> SimpleNamespace:
    def missing(name: str) -> None:
        raise LookupError(name)

    return SimpleNamespace(
        version=lambda: {"Version": "28.2.2"},
        info=lambda: info,
        images=SimpleNamespace(get=missing),
        containers=SimpleNamespace(
            list=lambda filters: [
                SimpleNamespace(name="strata-strata-1", labels={"com.docker.compose.service": "strata"}),
                SimpleNamespace(name="db-1", labels={"com.docker.compose.service": "db"}),
            ]
        ),
    )


@pytest.mark.parametrize(
    ("info", "nvidia"),
    [
        pytest.param({"Runtimes": {"runc": {}, "nvidia": {}}}, True, id="runtime"),
        pytest.param({"Runtimes": {}, "DiscoveredDevices": [{"ID": "nvidia.com/gpu=0"}]}, True, id="CDI"),
        pytest.param({"Runtimes": {"runc": {}}}, False, id="CTR-01 neither"),
        pytest.param({"Runtimes": None}, False, id="CTR-01 an engine that says nothing"),
    ],
)
def test_whether_docker_hands_cards_over(info: dict[str, object], nvidia: bool) -> None:
    found = probe_containers("i", connect=lambda: client(**info), command=lambda words: "v2.26.1-4\n")
    assert (found.engine, found.nvidia, found.compose, found.image) == ("28.2.2", nvidia, "2.26.1", None)
    assert found.running == ("strata-strata-1",)
    assert found.note == ""


@pytest.mark.parametrize(
    ("version", "enough"),
    [("2.20.0", True), ("v2.19.9", False), ("1.29.2", False), (None, False), ("2.40.3-desktop.1", True)],
    ids=["CTR-02 the least", "CTR-02 one below", "CTR-02 the old program", "CTR-02 none", "with a suffix"],
)
def test_compose_must_be_new_enough(version: str | None, enough: bool) -> None:
    found = probe_containers("i", connect=lambda: client(), command=lambda words: version)
    assert found.compose_is_new_enough is enough


@pytest.mark.parametrize(
    ("error", "words"),
    [
        pytest.param(OSError("('Connection aborted.', PermissionError(13))"), "group docker", id="not allowed"),
        pytest.param(OSError("FileNotFoundError(2)"), "Docker does not run here", id="stopped"),
        pytest.param(ValueError("odd"), "Docker does not answer: odd", id="anything else"),
    ],
)
def test_an_engine_that_does_not_answer(error: Exception, words: str) -> None:
    def refuse() -> object:
        raise error

    assert words in probe_containers("i", connect=refuse, command=lambda words: None).note


# -- processor, host, a running appliance


def test_the_processor(tmp_path: Path) -> None:
    """CTR-10: how much RAM may be locked is known before the plan pins it."""
    root = fake_root(
        tmp_path,
        {
            "proc/cpuinfo": "model name\t: Test 7950X\nflags\t\t: fpu avx2 fma avx512f\nphysical id : 0\n"
            "core id : 1\n\n"
            "model name\t: Test 7950X\nflags\t\t: fpu avx2 fma avx512f\nphysical id : 0\ncore id : 1\n",
            "proc/self/limits": "Max locked memory         8388608              8388608              bytes\n",
            "proc/self/status": "CapEff:\t0000000000000000\n",
            "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       65536 kB\n",
            "sys/devices/system/node/node0/cpulist": "0-15\n",
            "sys/devices/system/node/node1/cpulist": "16-31\n",
        },
    )
    found = probe_processor(root)
    assert (found.name, found.isa, found.physical_cores) == ("Test 7950X", ("avx2", "fma", "avx512f"), 1)
    assert [(node.index, node.total_bytes, node.cores) for node in found.numa] == [
        (0, 64 * MIB, "0-15"),
        (1, None, "16-31"),
    ]
    assert found.memlock_bytes == 8 * MIB
    (root / "proc/self/status").write_text("CapEff:\t000001ffffffffff\n")
    assert probe_processor(root).memlock_bytes is None
    assert probe_processor(tmp_path / "nothing") == probe_processor(tmp_path / "nothing else")


@pytest.mark.parametrize(
    ("release", "words"),
    [
        pytest.param("ID=ubuntu\nID_LIKE=debian\n", "apt-get install", id="CTR-01 Ubuntu"),
        pytest.param('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "dnf install", id="CTR-01 Rocky"),
        pytest.param('ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"\n', "zypper", id="CTR-01 openSUSE"),
        pytest.param("ID=void\n", "with this system's packages", id="CTR-01 another"),
    ],
)
def test_the_fix_is_the_distributions_own(tmp_path: Path, release: str, words: str) -> None:
    fix = toolkit_fix(fake_root(tmp_path, {"etc/os-release": release}))
    assert words in fix
    assert "nvidia-ctk runtime configure" in fix


def test_kills_for_memory_are_counted(tmp_path: Path) -> None:
    """MEM-02: after a kill the next look says so."""
    root = fake_root(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            "sys/fs/cgroup/memory.events": "low 0\noom 3\noom_kill 2\n",
        },
    )
    assert memory_kills(root) == 2
    assert memory_kills(tmp_path / "nothing") == 0


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
