"""Owns the start through Docker: compose as a subprocess, /ready followed, a first answer, failures as sentences."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.client import Client, Message, base_url
from appliance.errors import AddressError, MachineError
from appliance.rig.containers import IMAGE, Containers, probe_containers
from appliance.rig.load import LoadedRig
from appliance.rig.machine import Machine
from appliance.rig.running import find_running
from appliance.rig.schema import BUILTIN
from appliance.rig.write import write_rig
from setup_wizard.compose import Host, override
from setup_wizard.failures import FREE_THE_PORT, NO_TOOLKIT, failure
from setup_wizard.finish import OVERRIDE, reserved

QUESTION = "What is the capital of France?"
POLL_S = 1.0
LOAD_S = 3600.0
COMMAND_S = 30.0
ENDED = ("exited", "restarting", "dead")
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # Compose clears its line before one of the log

Say = Callable[[str], None]
Run = Callable[[Sequence[str], Path], Iterator[str]]


class CommandFailed(Exception):
    """A command ended with an exit code other than 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What reaches outside; tests give their own."""

    containers: Callable[[str], Containers]
    run: Run
    connect: Callable[[str], Client]
    sleep: Callable[[float], None]


def real_tools() -> Tools:
    """Docker and the network."""
    return Tools(containers=probe_containers, run=run_lines, connect=Client, sleep=time.sleep)


def host_commands(rig: Path) -> tuple[str, ...]:
    """What to type where this process cannot start anything itself."""
    return (
        ("docker compose up -d --build", "docker compose exec strata strata chat")
        if str(rig).startswith("/config/")
        else (f"strata serve --rig {shlex.quote(str(rig))}",)
    )


def start(loaded: LoadedRig, machine: Machine, project: Path, *, say: Say, tools: Tools, key: str | None = None) -> str:
    """Starts the container and gives the first answer.

    Args:
        loaded: the rig as it was written.
        machine: for the cards.
        project: folder of compose.yaml.
        say: told each line of progress.
        tools: what reaches outside.
        key: for the first question; without it a server that has keys is only waited for.

    Raises:
        ApplianceError: one sentence with the fix.
    """
    _look(loaded, machine, tools)
    _port(loaded)
    written = write_rig(project / OVERRIDE, override(reserved(loaded, machine), host_of(loaded)))
    if written.changed:
        say(f"wrote {written.path}")
    server = loaded.rig.server
    last: list[str] = []
    try:
        for line in tools.run(["docker", "compose", "up", "-d", "--build"], project):
            last = [*last[-39:], line]
            say(line)
    except CommandFailed as error:
        raise failure(last, str(error), address=f"{server.host} port {server.port}") from error
    url = base_url(server.host, server.port)
    with tools.connect(url) if key is None else Client(url, key=key) as client:
        _follow(client, project, say=say, tools=tools)
        say(f"ready at {url}/v1")
        if server.keys_file is not None and key is None:
            return "ready; ask it with one of its keys"
        say(f"asking: {QUESTION}")
        model = client.models()[0]
        pieces = client.chat([Message("user", QUESTION)], model=model, thinking=False)
        return "".join(piece.text for piece in pieces if piece.kind == "content").strip()


def host_of(loaded: LoadedRig) -> Host:
    """What the container needs of this host."""
    rig, server = (loaded.path or Path("rig.toml")).absolute(), loaded.rig.server
    path = loaded.rig.model.path
    model = None if path == BUILTIN else loaded.resolve(path)
    return Host(
        rig=rig,
        models=None if model is None else (model if model.is_dir() else model.parent).absolute(),
        host=server.host,
        port=server.port,
        keyed=server.keys_file is not None,
        user=f"{os.getuid()}:{os.getgid()}",
    )


def _look(loaded: LoadedRig, machine: Machine, tools: Tools) -> None:
    found = tools.containers(IMAGE)
    if found.engine is None:
        raise MachineError(found.note)
    if not found.compose_is_new_enough:
        raise MachineError(
            f"docker compose is {found.compose or 'not installed'}; 2.20 or newer is needed",
            hint="install the package docker-compose-plugin",
        )
    if reserved(loaded, machine) and found.nvidia is False:
        raise MachineError(NO_TOOLKIT)


def _port(loaded: LoadedRig) -> None:
    """Refuses a port that another program holds, before minutes of building."""
    host, port = loaded.rig.server.host, loaded.rig.server.port
    if find_running(host, port) is not None:
        return  # an appliance, which `up` replaces
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise AddressError(
                f"{host} port {port} cannot be had: {(error.strerror or str(error)).lower()}",
                hint=FREE_THE_PORT,
            ) from error


def _follow(client: Client, project: Path, *, say: Say, tools: Tools) -> None:
    shown = ""
    for _ in range(int(LOAD_S / POLL_S)):
        try:
            ready, stage = client.readiness()
        except AddressError:
            ready, stage = False, "the container starts"
            _ended(project, tools)
        if ready:
            return
        if stage != shown:
            say(stage)
            shown = stage
        tools.sleep(POLL_S)
    raise MachineError(f"the appliance did not become ready: {shown}", hint="docker compose logs strata says more")


def _ended(project: Path, tools: Tools) -> None:
    """Raises when the container is gone: its own last error says why."""
    try:
        lines = list(tools.run(["docker", "compose", "ps", "-a", "--format", "json", "strata"], project))
        states = [str(json.loads(line).get("State", "")) for line in lines if line.startswith("{")]
        if not any(state in ENDED for state in states):
            return
        logs = list(tools.run(["docker", "compose", "logs", "--no-log-prefix", "--tail", "20", "strata"], project))
    except (CommandFailed, ValueError):
        return
    said = [line for line in logs if "level=error" in line or line.startswith("strata:")] or logs[-1:] or ["no reason"]
    raise MachineError(f"the container ended: {said[-1].strip()}", hint="docker compose logs strata says more")


def run_lines(words: Sequence[str], folder: Path) -> Iterator[str]:
    """Output of a command line by line, errors among it.

    Raises:
        CommandFailed: it ended with another code than 0, or is not there.
    """
    environment = {**os.environ, "BUILDKIT_PROGRESS": "plain", "COMPOSE_ANSI": "never"}
    try:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise CommandFailed(str(error)) from error
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            yield ESCAPE.sub("", line).rstrip()
    if process.returncode != 0:
        raise CommandFailed(f"exit code {process.returncode}")


__all__ = ["Tools", "host_commands", "host_of", "real_tools", "start"]
