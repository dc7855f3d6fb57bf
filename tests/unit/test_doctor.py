"""The doctor's page: each promise broken in turn, with its fix; no secrets."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import pytest

from appliance.__main__ import main
from appliance.doctor import command
from appliance.doctor.facts import Facts, Finding, Verdict
from appliance.doctor.page import examine_promises, exit_code, page
from appliance.errors import AddressError, DoesNotFitError, ExitCode, ModelFileError, RigError
from appliance.examine import Examined, examine
from appliance.models.find import FoundSet
from appliance.rig.containers import Containers
from appliance.rig.load import load_text
from appliance.rig.machine import Machine
from appliance.rig.processor import Processor
from appliance.rig.rates import Rates
from appliance.rig.size import GIB, MIB
from appliance.rig.write import render
from appliance.server.auth import add_key
from tests.builders.machines import BOXES, machine

DOCKER = Containers(engine="28.2.2", nvidia=True, compose="2.30.1", image="sha256:1")
CARD = BOXES["24 GB card"]
RIG = load_text("schema = 1\n")


@pytest.fixture(scope="module")
def examined() -> Examined:
    found = examine(load_text('schema = 1\n[cards]\ndevices = "cpu"\n'), machine())
    found.model.close()
    return found


def facts(found: Machine | None = None, **changes: object) -> Facts:
    return Facts(machine=found or machine(), **{"containers": DOCKER, "loaded": RIG, **changes})  # type: ignore[arg-type]


def find(looked: Facts, check: str) -> Finding:
    return next(finding for finding in examine_promises(looked) if finding.check == check)


def server(text: str) -> Facts:
    return facts(loaded=load_text(f"schema = 1\n[server]\n{text}\n"))


OLD = dataclasses.replace(CARD, cards=dataclasses.replace(CARD.cards, driver="535.104.05", cuda="12.2"))
MISMATCH = dataclasses.replace(
    CARD,
    cards=dataclasses.replace(
        CARD.cards,
        cards=(),
        note="no card: the driver was updated while it ran: reboot the host, or restart the container",
    ),
)
FOUND = FoundSet(
    path=Path("/m/a-00001-of-00003.gguf"),
    role="model",
    present=(Path("/m/a-00001-of-00003.gguf"),),
    missing=("a-00002-of-00003.gguf",),
    partial=("a-00003-of-00003.gguf",),
    size_bytes=1,
)
WANTS = load_text("schema = 1\n[cards]\ndevices = [0]\n")
FAILURES = [
    pytest.param(facts(rig_error=RigError("rig.toml:3: bad", hint="do")), "rig", "rig.toml:3", "do", 3, id="rig"),
    pytest.param(facts(OLD), "driver", "driver 535.104.05 supports CUDA 12.2", "update", 6, id="CTR-04 driver 535"),
    pytest.param(
        facts(MISMATCH, loaded=WANTS),
        "driver",
        "reboot the host",
        "nvidia-smi",
        6,
        id="CTR-04 driver and library differ",
    ),
    pytest.param(facts(loaded=WANTS), "driver", "no card", "nvidia-smi", 6, id="CTR-03 the rig names a card"),
    pytest.param(
        facts(CARD, containers=dataclasses.replace(DOCKER, nvidia=False), toolkit_fix="sudo apt-get install it"),
        "runtime",
        'could not select device driver "nvidia" with capabilities: [[gpu]]',
        "sudo apt-get install it",
        6,
        id="CTR-01 no NVIDIA runtime",
    ),
    pytest.param(
        facts(containers=dataclasses.replace(DOCKER, compose="2.10.0")),
        "compose",
        "2.20 or newer",
        "docker-compose-plugin",
        6,
        id="CTR-02 Compose too old",
    ),
    pytest.param(
        facts(plan_error=DoesNotFitError("2 x 9 tokens need 9 GiB", hint="parallel = 1")),
        "plan",
        "need 9 GiB",
        "parallel = 1",
        5,
        id="MEM-01 it does not fit any more",
    ),
    pytest.param(
        facts(plan_error=ModelFileError("parts are missing"), sets=(FOUND,)),
        "model",
        "missing a-00002-of-00003.gguf; partial a-00003-of-00003.gguf",
        "finish the download",
        4,
        id="CFG-20 an incomplete set",
    ),
    pytest.param(
        facts(address_error=AddressError("cannot listen on 127.0.0.1 port 8080", hint="change server.port")),
        "address",
        "cannot listen",
        "change server.port",
        7,
        id="CFG-13 the port is taken",
    ),
    pytest.param(facts(keys=0), "keys", "holds no key", "strata keys add NAME", 3, id="no key"),
    pytest.param(
        facts(keys_error="keys file k does not exist"), "keys", "does not exist", "strata keys add", 3, id="keys"
    ),
    pytest.param(
        facts(dataclasses.replace(CARD, image=True), compiler=False), "compiler", "no C compiler", "CC", 6, id="CTR-06"
    ),
]


@pytest.mark.parametrize(("looked", "check", "says", "fix", "code"), FAILURES)
def test_a_broken_promise_has_its_fix_and_an_exit_code(
    looked: Facts, check: str, says: str, fix: str, code: int
) -> None:
    finding = find(looked, check)
    assert finding.verdict is Verdict.FAIL
    assert says in finding.says
    assert fix in finding.fix
    assert finding.exit_code == code
    findings = examine_promises(looked)
    assert exit_code(findings) != ExitCode.OK
    lines = page(looked, findings)
    assert any(line.startswith("FAIL") and says in line for line in lines)
    assert lines[-1].endswith("failed")


@pytest.mark.parametrize(
    ("looked", "check", "says"),
    [
        pytest.param(facts(memory_kills=2), "kills", "ended 2 process(es)", id="MEM-02 killed for memory"),
        pytest.param(server('host = "0.0.0.0"\nopen = true'), "keys", "whoever reaches", id="CTR-11 open to everybody"),
        pytest.param(
            facts(BOXES["a card that is full"]), "card 0", "process 4242 (python3) holds", id="MEM-04 full card"
        ),
        pytest.param(
            facts(dataclasses.replace(CARD, processor=Processor(memlock_bytes=64 * MIB))),
            "memlock",
            "64 MiB of RAM may be locked",
            id="CTR-10 a low limit",
        ),
        pytest.param(
            facts(containers=Containers(note="Docker does not run here")), "docker", "does not run", id="stopped"
        ),
        pytest.param(
            facts(dataclasses.replace(machine(), storage=dataclasses.replace(machine().storage, free_bytes=GIB))),
            "disk",
            "only 1 GiB",
            id="little disk",
        ),
    ],
)
def test_what_is_odd_is_a_note_and_no_failure(looked: Facts, check: str, says: str) -> None:
    finding = find(looked, check)
    assert finding.verdict is Verdict.NOTE
    assert says in finding.says
    assert exit_code((finding,)) is ExitCode.OK


def test_a_pin_limit_below_the_plan_fails(examined: Examined) -> None:
    """CTR-10: the plan pins more than may be locked."""

    class Pinning:
        pinned_bytes = 40 * GIB
        total_bytes, budget_bytes, ngram_home = 0, 0, "ram"
        device, parallel, max_tokens = "cuda:0", 1, 64

    found = dataclasses.replace(examined, placement=Pinning())  # type: ignore[arg-type]
    tight = dataclasses.replace(machine(), processor=Processor(memlock_bytes=8 * GIB))
    finding = find(facts(tight, examined=found), "memlock")
    assert finding.verdict is Verdict.FAIL
    assert "8 GiB may be locked and the plan pins 40 GiB" in finding.says
    assert "memlock: -1" in finding.fix


def test_a_slow_link_is_known_from_the_rigs_own_measurement() -> None:
    """CFG-11: nothing is measured by the doctor; what the set-up measured is beside what the slot promises."""
    box = BOXES["two 24 GB cards, one on x4"]
    text = render(None, box).replace("[6.2, 6.2, 5.89]", "[1.5, 1.5, 1.4]")
    looked = facts(dataclasses.replace(box, rates=Rates()), loaded=load_text(text))
    assert find(looked, "card 0").verdict is Verdict.OK
    assert "1.5 GB/s measured, under half" in find(looked, "card 1").says


def test_a_running_appliance_is_no_failure(examined: Examined) -> None:
    finding = find(facts(running="127.0.0.1 port 8080, ready", examined=examined), "address")
    assert (finding.verdict, "answers" in finding.says) == (Verdict.OK, True)


def test_all_is_well(examined: Examined) -> None:
    looked = facts(examined=examined)
    findings = examine_promises(looked)
    assert exit_code(findings) is ExitCode.OK
    assert page(looked, findings)[-1] == "everything that was promised holds"
    assert find(looked, "RAM").verdict is Verdict.OK


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(command, "probe_containers", lambda image: DOCKER)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = tmp_path / "rig.toml"
    path.write_text(f'schema = 1\n[cards]\ndevices = "cpu"\n[server]\nport = {port}\nkeys_file = "keys.json"\n')
    return path


def test_the_command_holds_no_secret(rig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = add_key(rig.parent / "keys.json", "alice")
    assert main(["doctor", "--rig", str(rig)]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "1 key(s)" in out
    assert "everything that was promised holds" in out
    for secret in (key, "sha256", "alice"):
        assert secret not in out.replace("image built", "")


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        pytest.param("", ExitCode.RIG, "does not exist", id="no keys file"),
        pytest.param("\nprot = 1\n", ExitCode.RIG, "prot", id="CFG-03 an unknown key"),
        pytest.param('\n[model]\npath = "absent.gguf"\n', ExitCode.MODEL_FILE, "absent.gguf", id="no model"),
    ],
)
def test_the_command_fails_with_what_is_wrong(
    rig: Path, capsys: pytest.CaptureFixture[str], change: str, code: ExitCode, words: str
) -> None:
    rig.write_text(rig.read_text() + change)
    assert main(["doctor", "--rig", str(rig)]) == code
    out = capsys.readouterr().out
    assert words in out
    assert "failed" in out.splitlines()[-1]


def test_a_port_that_is_taken(rig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CFG-13"""
    add_key(rig.parent / "keys.json", "alice")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        lines = [
            line if not line.startswith("port") else f"port = {taken.getsockname()[1]}"
            for line in rig.read_text().splitlines()
        ]
        rig.write_text("\n".join(lines))
        assert main(["doctor", "--rig", str(rig)]) == ExitCode.ADDRESS
    assert "another program listens there" in capsys.readouterr().out
