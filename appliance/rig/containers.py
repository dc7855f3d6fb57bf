"""Owns the look at Docker: engine, NVIDIA runtime, Compose, our image and our running containers."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from appliance import __version__

# As compose.yaml names it.
IMAGE = f"strata-appliance:{__version__}"
PROJECT = "strata"
SERVICE = "com.docker.compose.service"
COMPOSE_LEAST = (2, 20)
ANSWER_S = 5
HOOK = "nvidia-container-runtime-hook"


@dataclass(frozen=True, slots=True, kw_only=True)
class Containers:
    """Docker as this user reaches it.

    Attributes:
        engine: its version; None when it does not answer.
        nvidia: whether it can hand cards over; None when unknown.
        compose: Compose's version; None without it.
        image: id of the appliance's image; None when it was not built.
        running: names of the appliance's running containers.
        note: why something is missing, "" when all is well.
    """

    engine: str | None = None
    nvidia: bool | None = None
    compose: str | None = None
    image: str | None = None
    running: tuple[str, ...] = ()
    note: str = ""

    @property
    def compose_is_new_enough(self) -> bool:
        """Whether our compose.yaml is valid for it."""
        numbers = re.findall(r"\d+", self.compose or "")
        return tuple(map(int, numbers[:2])) >= COMPOSE_LEAST


def probe_containers(
    image: str,
    *,
    connect: Callable[[], Any] | None = None,
    command: Callable[[Sequence[str]], str | None] | None = None,
) -> Containers:
    """Asks the engine through its SDK, and Compose by its command; never fails.

    Args:
        image: name and tag of the appliance's image.
        connect: gives a docker client; tests give their own.
        command: runs a command and gives its output, None when it failed; tests give their own.
    """
    compose = _compose_version((command or _output)(["docker", "compose", "version", "--short"]))
    try:
        client = (connect or _connect)()
        engine = str(client.version()["Version"])
        info = client.info()
    except ImportError:
        return Containers(compose=compose, note="the Python package docker is not installed")
    except Exception as error:  # the SDK's errors, and those of its transport
        return Containers(compose=compose, note=_why(error))
    found, running = None, []
    with contextlib.suppress(Exception):  # no such image
        found = str(client.images.get(image).id)
    with contextlib.suppress(Exception):
        for container in client.containers.list(filters={"label": SERVICE}):
            if container.labels.get(SERVICE) == PROJECT:
                running.append(str(container.name))
    return Containers(
        engine=engine,
        nvidia=_hands_cards_over(info),
        compose=compose,
        image=found,
        running=tuple(running),
        note="" if compose else "docker compose is not installed",
    )


def _connect() -> Any:
    return importlib.import_module("docker").from_env(timeout=ANSWER_S)


def _hands_cards_over(info: dict[str, Any]) -> bool:
    """A registered runtime, the hook that older engines look for, or a CDI device of newer ones."""
    if "nvidia" in (info.get("Runtimes") or {}) or shutil.which(HOOK):
        return True
    devices = info.get("DiscoveredDevices") or []
    return any(str(device.get("ID", "")).startswith("nvidia.com/") for device in devices)


def _compose_version(text: str | None) -> str | None:
    match = re.search(r"\d+\.\d+(?:\.\d+)?", text or "")
    return match[0] if match else None


def _output(words: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _why(error: Exception) -> str:
    text = str(error)
    if "Permission" in text:
        return "this user may not ask Docker: add it to the group docker, or run as root"
    if named := os.environ.get("DOCKER_HOST"):
        return f"no Docker answers at $DOCKER_HOST, which is {named}: start it there, or unset DOCKER_HOST"
    if "FileNotFound" in text or "No such file" in text or "Connection refused" in text or "ConnectionRefused" in text:
        return "Docker does not run here: start it, such as with systemctl start docker"
    return f"Docker does not answer: {(text.splitlines() or [type(error).__name__])[0][:160]}"
