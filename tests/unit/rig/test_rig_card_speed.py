"""Speeds of cards: measured here, in a process of its own, or inside the image; a reason where none can be."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from appliance.engine import probe as engine_probe
from appliance.rig import card_probe
from appliance.rig.card_probe import measure_cards, read_rates
from appliance.rig.rates import Rates
from appliance.rig.size import GIB, MIB
from tests.builders.machines import CARD_RATES


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
