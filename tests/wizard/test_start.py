"""The start: what compose is told, what /ready says, the first answer, and each failure as one sentence."""

from __future__ import annotations

import dataclasses
import json
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest
import yaml

from appliance.client import Client
from appliance.errors import AddressError, ApplianceError
from appliance.rig.containers import Containers
from appliance.rig.load import LoadedRig, load_text
from setup_wizard.compose import Host, override
from setup_wizard.finish import OVERRIDE
from setup_wizard.start import CommandFailed, Tools, host_commands, host_of, run_lines, start
from tests.builders.machines import card, machine
from tests.ports import free_port

DOCKER = Containers(engine="27.0", nvidia=False, compose="2.26.1")
READY = [(503, {"stage": "reading weights", "percent": 40}), (200, {"stage": "ready", "percent": 100})]


class Loader(yaml.SafeLoader):
    """Reads Compose's own tag."""


Loader.add_constructor("!override", lambda loader, node: loader.construct_sequence(node))


def loaded(folder: Path, text: str = "", *, port: int | None = None) -> LoadedRig:
    port = free_port() if port is None else port
    return load_text(f"{text}\n[server]\nport = {port}\n", path=folder / "rig.toml")


def client(answers: Sequence[tuple[int, dict[str, object]]] = READY) -> Client:
    waiting = list(answers)

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/ready":
            code, body = waiting.pop(0)
            if code == 0:
                raise httpx.ConnectError("refused")
            return httpx.Response(code, json=body)
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "tiny"}]})
        chunk = json.dumps({"choices": [{"delta": {"content": "Paris."}}]})
        return httpx.Response(200, text=f"data: {chunk}\n\ndata: [DONE]\n\n")

    return Client("http://127.0.0.1:1", transport=httpx.MockTransport(handle))


def tools(
    *,
    containers: Containers = DOCKER,
    up: Sequence[str] = ("built",),
    fails: bool = False,
    state: str = "running",
    logs: Sequence[str] = (),
    answers: Sequence[tuple[int, dict[str, object]]] = READY,
) -> Tools:
    def run(words: Sequence[str], folder: Path) -> Iterator[str]:
        if "ps" in words:
            yield json.dumps({"State": state})
        elif "logs" in words:
            yield from logs
        else:
            assert list(words) == ["docker", "compose", "up", "-d", "--build"]
            yield from up
            if fails:
                raise CommandFailed("exit code 1")

    found = client(answers)
    return Tools(containers=lambda image: containers, run=run, connect=lambda url: found, sleep=lambda seconds: None)


def test_it_follows_ready_and_gives_the_first_answer(tmp_path: Path) -> None:
    lines: list[str] = []
    answer = start(loaded(tmp_path), machine(), tmp_path, say=lines.append, tools=tools())
    assert answer == "Paris."
    assert "reading weights (40 %)" in lines
    assert any(line.startswith("ready at http://127.0.0.1:") for line in lines)
    assert (tmp_path / OVERRIDE).is_file()


def test_a_server_whose_keys_nobody_knows_is_only_waited_for(tmp_path: Path) -> None:
    rig = load_text(f'[server]\nport = {free_port()}\nkeys_file = "keys.json"\n', path=tmp_path / "rig.toml")
    answer = start(rig, machine(), tmp_path, say=lambda line: None, tools=tools())
    assert answer == "ready; ask it with one of its keys"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param(
            tools(containers=Containers(note="Docker does not run here: start it")), "does not run", id="engine"
        ),
        pytest.param(
            tools(containers=dataclasses.replace(DOCKER, compose="2.10.0")), "2.20 or newer", id="CTR-02 Compose"
        ),
        pytest.param(tools(up=["pip: error", "failed to solve"], fails=True), "failed to solve", id="build"),
        pytest.param(
            tools(up=['could not select device driver "nvidia"'], fails=True),
            "nvidia-container-toolkit",
            id="CTR-01 toolkit",
        ),
        pytest.param(
            tools(up=["Bind for 0.0.0.0:8080 failed: port is already allocated"], fails=True),
            "another program holds 127.0.0.1 port",
            id="port taken meanwhile",
        ),
        pytest.param(
            tools(state="restarting", logs=["x", "level=error driver too old"], answers=[(0, {})]),
            "driver too old",
            id="CTR-04 the container ends",
        ),
    ],
)
def test_each_failure_is_one_sentence(tmp_path: Path, given: Tools, words: str) -> None:
    with pytest.raises(ApplianceError, match=words) as error:
        start(loaded(tmp_path), machine(), tmp_path, say=lambda line: None, tools=given)
    assert "\n" not in str(error.value)


def test_cards_without_the_runtime_are_refused_before_the_build(tmp_path: Path) -> None:
    """CTR-01"""
    with pytest.raises(ApplianceError, match="nvidia-ctk"):
        start(loaded(tmp_path), machine(cards=1), tmp_path, say=lambda line: None, tools=tools())
    assert not (tmp_path / OVERRIDE).exists()


def test_a_busy_port_is_said_before_the_build(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        rig = loaded(tmp_path, port=held.getsockname()[1])
        with pytest.raises(AddressError, match="choose another on the access screen"):
            start(rig, machine(), tmp_path, say=lambda line: None, tools=tools())


@pytest.mark.parametrize(
    ("text", "port", "published", "open_"),
    [
        pytest.param("", 8080, None, "true", id="as compose.yaml has it"),
        pytest.param("", 9000, "127.0.0.1:9000:8080", "true", id="another port"),
    ],
)
def test_the_host_part_of_the_override(tmp_path: Path, text: str, port: int, published: str | None, open_: str) -> None:
    """CTR-11: reachable through the published port, and only where the rig says."""
    service = yaml.load(override((), host_of(loaded(tmp_path, text, port=port))), Loader)["services"]["strata"]
    assert service["environment"]["STRATA_SERVER__HOST"] == "0.0.0.0"
    assert service["environment"]["STRATA_SERVER__OPEN"] == open_
    assert service["volumes"] == [f"{tmp_path}:/config"]
    assert service.get("ports") == (None if published is None else [published])


def test_cards_keys_and_the_models_folder_in_one_override(tmp_path: Path) -> None:
    """CTR-02: one of count and device_ids, capabilities beside it."""
    host = Host(
        rig=tmp_path / "rig.toml", models=Path("/data"), host="0.0.0.0", port=8080, keyed=True, user="1000:1000"
    )
    service = yaml.load(override([card(2), card(0)], host), Loader)["services"]["strata"]
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "device_ids": [card(2).uuid, card(0).uuid], "capabilities": ["gpu"]}
    assert service["ports"] == ["0.0.0.0:8080:8080"]
    assert service["volumes"][1] == "/data:/data:ro"
    assert "STRATA_SERVER__OPEN" not in service["environment"]


def test_commands_for_a_hand() -> None:
    assert host_commands(Path("/config/rig.toml"))[0] == "docker compose up -d --build"
    assert host_commands(Path("/a b/rig.toml")) == ("strata serve --rig '/a b/rig.toml'",)


def test_a_command_gives_its_lines_and_its_failure(tmp_path: Path) -> None:
    lines: list[str] = []
    with pytest.raises(CommandFailed, match="3"):
        lines.extend(run_lines([sys.executable, "-c", "print('a'); import sys; sys.exit(3)"], tmp_path))
    assert list(run_lines([sys.executable, "-c", "print('a')"], tmp_path)) == ["a"]
    with pytest.raises(CommandFailed):
        list(run_lines(["no-such-command"], tmp_path))
