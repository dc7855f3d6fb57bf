"""Owns driving the image: a project of compose.yaml or one container of its image, on a free port, gone afterwards."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from docker.models.containers import Container

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
READY_S = 240


def compose(*arguments: str, timeout_s: float = 300) -> str:
    """Runs docker compose in the project's folder; returns what it printed.

    Raises:
        AssertionError: it failed; the message is what it said.
    """
    done = subprocess.run(
        ["docker", "compose", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, f"docker compose {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout


def image() -> str:
    """The name of the image that compose.yaml builds."""
    return compose("config", "--images").strip()


@dataclass(frozen=True, slots=True)
class Stack:
    """compose.yaml as it is, under a name of its own and on another port of this host."""

    name: str
    port: int
    override: Path

    def compose(self, *arguments: str) -> str:
        """docker compose for this stack."""
        files = ("-f", str(ROOT / "compose.yaml"), "-f", str(self.override))
        return compose("--project-name", self.name, *files, *arguments)

    def container(self) -> Container:
        """The one container."""
        found = docker.from_env().containers.get(self.compose("ps", "--all", "--quiet", "strata").strip())
        assert isinstance(found, Container)
        return found


@contextmanager
def stack(folder: Path) -> Iterator[Stack]:
    """A stack that is removed with its volumes."""
    port = free_port()
    override = folder / "override.yaml"
    override.write_text(f'services:\n  strata:\n    ports: !override ["127.0.0.1:{port}:8080"]\n')
    made = Stack(f"strata-test-{uuid.uuid4().hex[:8]}", port, override)
    try:
        yield made
    finally:
        made.compose("down", "--volumes", "--timeout", "1")


@contextmanager
def container(command: list[str] | None = None, **options: Any) -> Iterator[Container]:
    """A started container of the image, published at 127.0.0.1; removed with its anonymous volumes."""
    made = docker.from_env().containers.run(
        image(), command, detach=True, ports={"8080/tcp": ("127.0.0.1", None)}, **options
    )
    try:
        yield made
    finally:
        made.remove(force=True, v=True)


def finish(
    command: list[str] | None = None, *, timeout_s: float = 240, stderr: bool = True, **options: Any
) -> tuple[int, str]:
    """Runs the image to its end; returns exit code and what it printed, on both streams or on standard output only."""
    with container(command, **options) as running:
        code = running.wait(timeout=timeout_s)["StatusCode"]
        return code, running.logs(stderr=stderr).decode()


def port_of(running: Container) -> int:
    """The host's port of a container."""
    running.reload()
    return int(running.attrs["NetworkSettings"]["Ports"]["8080/tcp"][0]["HostPort"])


def get(port: int, path: str, *, timeout_s: float = 10) -> tuple[int, dict[str, Any]]:
    """Status and JSON of a GET; status 0 when nothing answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=timeout_s) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return 0, {}


def wait_ready(running: Container) -> int:
    """Waits for /ready through the published port; returns the port.

    Raises:
        AssertionError: the container ended, or was not ready in time; the message is its log.
    """
    end = time.monotonic() + READY_S
    port = port_of(running)
    while time.monotonic() < end:
        if get(port, "/ready")[0] == 200:
            return port
        running.reload()
        assert running.status == "running", running.logs().decode()
        time.sleep(0.2)
    raise AssertionError(f"not ready after {READY_S} s: {running.logs().decode()}")


def stop(running: Container, *, grace_s: int = 20) -> tuple[int, float]:
    """docker stop; returns the exit code and how long it took, in seconds."""
    begin = time.monotonic()
    running.stop(timeout=grace_s)
    took_s = time.monotonic() - begin
    running.reload()
    return int(running.attrs["State"]["ExitCode"]), took_s


def wait_for(condition: object, what: str, *, within_s: float = 30) -> None:
    """Waits until a condition holds; says what never came."""
    end = time.monotonic() + within_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)
