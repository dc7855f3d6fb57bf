"""The wizard's start against the real engine: each way it can fail ends in one sentence that says what to do."""

from __future__ import annotations

import dataclasses
import re
import socket
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from appliance.errors import AddressError, ApplianceError, MachineError
from appliance.rig.containers import probe_containers
from appliance.rig.load import LoadedRig, load_text
from setup_wizard.start import Tools, real_tools, run_lines, start
from tests.builders.machines import machine
from tests.container.stack import compose
from tests.ports import free_port

BASE = "debian:trixie-slim"  # what the project's own image begins with
CARDS_PROMISED = dataclasses.replace(
    real_tools(), containers=lambda image: dataclasses.replace(probe_containers(image), nvidia=True)
)
Project = Callable[..., Path]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """Folders with a small stand-in for compose.yaml, whose containers are removed afterwards."""
    name = f"strata-test-{uuid.uuid4().hex[:8]}"

    def make(*, dockerfile: str = "", command: str = "sleep 60") -> Path:
        image = f"    build: .\n    image: {name}\n" if dockerfile else f"    image: {BASE}\n"
        (tmp_path / "Dockerfile").write_text(dockerfile)
        (tmp_path / "compose.yaml").write_text(
            f"name: {name}\nservices:\n  strata:\n{image}    init: true\n    command: ['sh', '-c', '{command}']\n"
        )
        return tmp_path

    yield make
    compose("--project-name", name, "down", "--volumes", "--timeout", "1")


def refused(folder: Path, *, cards: int = 0, port: int | None = None, tools: Tools | None = None) -> ApplianceError:
    with pytest.raises(ApplianceError) as error:
        start(rig(folder, port), machine(cards=cards), folder, say=lambda line: None, tools=tools or real_tools())
    assert "\n" not in str(error.value)
    assert "\x1b" not in str(error.value)
    return error.value


def rig(folder: Path, port: int | None = None) -> LoadedRig:
    return load_text(f"[server]\nport = {port or free_port()}\n", path=folder / "rig.toml")


@pytest.mark.parametrize("host", ["unix:///nonexistent/docker.sock", "tcp://127.0.0.1:1"])
def test_no_engine(project: Project, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("DOCKER_HOST", host)
        error = refused(project())
    assert str(error) == f"no Docker answers at $DOCKER_HOST, which is {host}: start it there, or unset DOCKER_HOST"


def test_a_busy_port_before_the_build(project: Project) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        folder = project(dockerfile="FROM nothing-is-built\n")
        error = refused(folder, port=held.getsockname()[1])
    assert isinstance(error, AddressError)
    assert "choose another on the access screen" in str(error)


def test_a_port_that_is_taken_during_the_build(project: Project) -> None:
    def run(words: Sequence[str], folder: Path) -> Iterator[str]:
        published = re.search(r"127\.0\.0\.1:(\d+):8080", (folder / "compose.override.yaml").read_text())
        assert published is not None
        with socket.socket() as held:
            held.bind(("127.0.0.1", int(published[1])))
            held.listen()
            yield from run_lines(words, folder)

    error = refused(project(), tools=dataclasses.replace(real_tools(), run=run))
    assert isinstance(error, AddressError)
    assert "another program holds 127.0.0.1 port" in str(error)


@pytest.mark.parametrize("tools", [real_tools(), CARDS_PROMISED], ids=["as-the-engine-says", "as-compose-says"])
def test_ctr_01_cards_and_no_nvidia_runtime(project: Project, tools: Tools) -> None:
    if probe_containers(BASE).nvidia:
        return  # this engine hands cards over
    assert "nvidia-ctk runtime configure --runtime=docker, and restart Docker" in str(
        refused(project(), cards=1, tools=tools)
    )


@pytest.mark.parametrize(
    ("dockerfile", "says"),
    [
        pytest.param(f"FROM {BASE}\nRUN echo what it lacks >&2; exit 3\n", "what it lacks (docker", id="a-step"),
        pytest.param(f"FROM {BASE}\nRUNN x\n", "unknown instruction: RUNN", id="the-file"),
    ],
)
def test_a_failed_build(project: Project, dockerfile: str, says: str) -> None:
    error = refused(project(dockerfile=dockerfile))
    assert str(error).startswith("the image cannot be built")
    assert says in str(error)
    assert str(error).endswith("(docker compose build --progress plain shows all of it)")


def test_ctr_04_a_container_that_ends(project: Project) -> None:
    error = refused(project(command="echo strata: the driver is too old; exit 6"))
    assert isinstance(error, MachineError)
    assert str(error).startswith("the container ended: strata: the driver is too old (")
