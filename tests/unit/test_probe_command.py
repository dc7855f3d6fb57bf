"""`strata probe`: the machine as lines and as JSON, speeds when asked, and what was skipped."""

from __future__ import annotations

import dataclasses
import json

import pytest

from appliance import examine as examine_module
from appliance import probe_command
from appliance.__main__ import main
from appliance.errors import ExitCode, MachineError
from appliance.examine import examine
from appliance.rig.containers import Containers
from appliance.rig.load import load_text
from appliance.rig.machine import Machine
from appliance.rig.measure import Measured, Step
from appliance.rig.rates import Rates
from tests.builders.machines import BOXES

BOX = BOXES["two 24 GB cards, one on x4"]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    bare = dataclasses.replace(BOX, rates=Rates())
    monkeypatch.setattr(probe_command, "probe", lambda folder: bare)
    monkeypatch.setattr(probe_command, "find_running", lambda host, port: None)
    return bare


def measured(found: Machine, folder: object, *, progress: object, **options: object) -> Measured:
    progress(Step("RAM", True, "65 GB/s", 2, 4))  # type: ignore[operator]
    return Measured(
        machine=dataclasses.replace(found, rates=BOX.rates),
        containers=Containers(engine="28.2.2", compose="2.30.1", nvidia=True),
        skipped="",
    )


def test_without_deep_nothing_is_measured(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe"]) == ExitCode.OK
    out = capsys.readouterr().out
    for words in (
        "NVIDIA GeForce RTX 3090, 24 GiB",
        "PCIe 1 x4 at the moment",
        "drives a screen",
        "CUDA 13.0",
        "300 W",
    ):
        assert words in out
    assert "GB/s" not in out


def test_deep(machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(probe_command, "measure", measured)
    assert main(["probe", "--deep"]) == ExitCode.OK
    captured = capsys.readouterr()
    assert captured.err == "[2/4] RAM: 65 GB/s\n"
    for words in ("RAM speed  65 GB/s", "400,000 random reads a second", "read in place 5.89 GB/s", "hands cards over"):
        assert words in captured.out


def test_deep_as_json(machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(probe_command, "measure", measured)
    assert main(["probe", "--deep", "--json"]) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert found["rates"]["cards"][1]["to_card_gbps"] == {"value": 6.2, "reason": ""}
    assert found["cards"]["cards"][0]["link"]["top_generation"] == 4
    assert found["containers"]["compose"] == "2.30.1"
    assert found["processor"]["memlock_bytes"] is None


def test_a_running_appliance_is_named_to_the_probes(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(probe_command, "find_running", lambda host, port: "ready")
    given: list[object] = []
    monkeypatch.setattr(
        probe_command, "measure", lambda *a, **options: given.append(options["running"]) or measured(*a, **options)
    )
    assert main(["probe", "--deep", "--rig", "absent.toml"]) == ExitCode.OK
    assert given == ["127.0.0.1 port 8080, ready"]


def test_a_driver_that_is_too_old_is_refused_before_the_model_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """CTR-04: found and required version, not a failure deep in a library."""
    old = dataclasses.replace(BOX, cards=dataclasses.replace(BOX.cards, driver="535.104.05", cuda="12.2"))
    monkeypatch.setattr(examine_module, "open_set", lambda path: pytest.fail("the model was read"))
    with pytest.raises(MachineError, match=r"driver 535\.104\.05 supports CUDA 12\.2; .* 580\.65\.06 or newer"):
        examine(load_text("schema = 1\n"), old)
