"""What docker compose says when a start fails, as a sentence with the fix; the texts are those of real engines."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from appliance.errors import AddressError, MachineError
from setup_wizard.failures import failure

SOLVE = "failed to solve: executor failed running [/bin/sh -c pip install x]: exit code: 1"
HIDDEN = "failed to solve: rpc error: code = Unknown desc = failed to solve with frontend dockerfile.v0: failed to "
NO_NAME = "dial tcp: lookup registry.example on 10.0.0.53:53: no such host"


@pytest.mark.parametrize(
    ("lines", "kind", "sentence"),
    [
        pytest.param(
            ["Error starting userland proxy: listen tcp4 127.0.0.1:80: bind: address already in use"],
            AddressError,
            "another program holds 127.0.0.1 port 80 (stop the program that holds it, or choose another on the access "
            "screen)",
            id="the port is taken meanwhile",
        ),
        pytest.param(
            ["#5 [strata 2/2] RUN pip install x", "------", " > [strata 2/2] RUN pip install x:", "0.739 no x", SOLVE],
            MachineError,
            "the image cannot be built, at RUN pip install x: no x (docker compose build --progress plain shows all of "
            "it)",
            id="a step that says why",
        ),
        pytest.param(
            [" > [environment 3/3] RUN " + "long " * 20 + ":", "#9 12.5 mkdir: permission denied", SOLVE],
            MachineError,
            f"the image cannot be built, at {('RUN ' + 'long ' * 20)[:60]} ...: mkdir: permission denied (docker "
            "compose build --progress plain shows all of it)",
            id="a long step, whose permissions are not the engine's",
        ),
        pytest.param(
            [f"{HIDDEN}create LLB definition: dockerfile parse error line 2: unknown instruction: RUNN"],
            MachineError,
            "the image cannot be built: dockerfile parse error line 2: unknown instruction: RUNN (docker compose build "
            "--progress plain shows all of it)",
            id="before any step",
        ),
        pytest.param(
            [" > [strata internal] load metadata for x:", "------", f"{HIDDEN}do request: Head: {NO_NAME}"],
            MachineError,
            "the image cannot be built: a registry or a package index cannot be reached (check the network, the name "
            "server and Docker's proxy)",
            id="no network",
        ),
        pytest.param(
            ["yaml: line 5: mapping values are not allowed in this context", ""],
            MachineError,
            "docker compose up failed (exit code 15): yaml: line 5: mapping values are not allowed in this context "
            "(docker compose config checks the files)",
            id="something else",
        ),
        pytest.param(
            [],
            MachineError,
            "docker compose up failed (exit code 15): it said nothing (docker compose config checks the files)",
            id="nothing",
        ),
    ],
)
def test_each_is_one_sentence_with_the_fix(lines: Sequence[str], kind: type[Exception], sentence: str) -> None:
    found = failure(lines, "exit code 15", address="127.0.0.1 port 80")
    assert isinstance(found, kind)
    assert str(found) == sentence
