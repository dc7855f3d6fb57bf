"""Owns the sentences for what docker compose says when a start fails: what it is, and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence

from appliance.errors import AddressError, ApplianceError, MachineError

NO_TOOLKIT = (
    "Docker has no NVIDIA container toolkit: install nvidia-container-toolkit, run "
    "nvidia-ctk runtime configure --runtime=docker, and restart Docker"
)
FREE_THE_PORT = "stop the program that holds it, or choose another on the access screen"
WHOLE_BUILD = "docker compose build --progress plain shows all of it"
PORT_TAKEN = ("port is already allocated", "address already in use")
FAILURES = (
    ("could not select device driver", NO_TOOLKIT),
    ("Cannot connect to the Docker daemon", "Docker does not run here: start it, such as with systemctl start docker"),
    (
        "permission denied while trying to connect",
        "this user may not ask Docker: add it to the group docker, or run as root",
    ),
    ("CERTIFICATE_VERIFY_FAILED", "a proxy replaces certificates: certs/README.md says what to do"),
    (
        "x509: certificate",
        "Docker does not trust the registry's certificate, which a proxy may have replaced: add it to the certificates "
        "of this host, and restart Docker",
    ),
    ("no space left on device", "the disk is full: docker system prune frees what Docker no longer needs"),
)
# What the engine, apt and pip say when nobody answers.
UNREACHABLE = (
    "failed to do request",
    "no such host",
    "name resolution",
    "could not resolve",
    "network is unreachable",
    "i/o timeout",
)
STEP = re.compile(r"> \[[^\]]*\] (?P<step>.+?):?$")
SAID = re.compile(r"#?\d* ?\d+\.\d+ (?P<said>.*\S)")
STEP_CHARACTERS = 60


def failure(lines: Sequence[str], code: str, *, address: str) -> ApplianceError:
    """One sentence for a `docker compose up` that failed.

    Args:
        lines: the last ones that it printed.
        code: how it ended.
        address: what it was to publish.
    """
    text = "\n".join(lines).lower()
    if any(words in text for words in PORT_TAKEN):
        return AddressError(f"another program holds {address}", hint=FREE_THE_PORT)
    for words, sentence in FAILURES:
        if words.lower() in text:
            return MachineError(sentence)
    if any(words in text for words in UNREACHABLE):
        return MachineError(
            "the image cannot be built: a registry or a package index cannot be reached",
            hint="check the network, the name server and Docker's proxy",
        )
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
    if "failed to solve" in text:
        return MachineError(f"the image cannot be built{_step(lines) or f': {_cause(last)}'}", hint=WHOLE_BUILD)
    return MachineError(f"docker compose up failed ({code}): {last}", hint="docker compose config checks the files")


def _step(lines: Sequence[str]) -> str:
    """Which step of the build failed, and the last that it said; "" when no step had begun."""
    for number in reversed(range(len(lines))):
        if named := STEP.search(lines[number]):
            said = [match["said"] for line in lines[number:] if (match := SAID.fullmatch(line.strip()))]
            step = named["step"]
            short = step if len(step) <= STEP_CHARACTERS else f"{step[:STEP_CHARACTERS]} ..."
            return f", at {short}: {said[-1]}" if said else ""
    return ""


def _cause(line: str) -> str:
    """The innermost of nested errors, which have the cause last."""
    return line.rpartition("LLB definition: ")[2].removeprefix("failed to solve: ")
