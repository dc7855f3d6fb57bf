"""The start-up of the real process with the built-in model: early port, order of refusals, signals, exit codes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from appliance.errors import ExitCode
from tests.ports import free_port

LIMIT_S = 120.0
GRACE_S = 8.0


class Process:
    """`strata serve` with its log."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.port = free_port()
        self.log = folder / "log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STRATA_")}
        environment |= {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "OMP_NUM_THREADS": "1"}
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "appliance", "serve", "--port", str(self.port), *arguments],
                stderr=log,
                stdout=log,
                env=environment,
            )

    def get(self, path: str) -> httpx.Response | None:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=30, trust_env=False)
        return None

    def wait_for(self, word: str) -> None:
        end = time.monotonic() + LIMIT_S
        while word not in self.log.read_text():
            assert self.child.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.02)

    def leave(self) -> ExitCode:
        began = time.monotonic()
        self.child.send_signal(signal.SIGTERM)
        code = self.child.wait(LIMIT_S)
        assert time.monotonic() - began < GRACE_S
        return ExitCode(code)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path)
    yield process
    if process.child.poll() is None:
        process.child.kill()
        process.child.wait()


def test_from_the_first_second_to_a_stop_that_ends_streams(serve: Process, tmp_path: Path) -> None:
    """CTR-09, CTR-08, CTR-03"""
    serve.wait_for("event=listening")
    ready, health, models = (serve.get(path) for path in ("/ready", "/health", "/v1/models"))
    assert ready is not None
    assert health is not None
    assert models is not None
    assert health.status_code == 200
    if ready.status_code == 503:
        assert set(ready.json()) >= {"stage", "percent"}
    if models.status_code == 503:
        assert int(models.headers["retry-after"]) > 0
        assert "not ready" in models.json()["error"]["message"]
    assert (tmp_path / "strata" / "rig.toml").is_file()  # the first start wrote the default rig and said so
    assert "wrote a rig" in serve.log.read_text()
    serve.wait_for("event=ready")
    answer = serve.get("/ready")
    assert answer is not None
    assert answer.status_code == 200
    assert "built-in model runs on the CPU" in answer.json()["device"]
    assert "built-in model runs on the CPU" in serve.log.read_text()
    body = {"messages": [{"role": "user", "content": "Tell me a story"}], "stream": True, "max_tokens": 4000}
    body |= {"ignore_eos": True, "model": "strata-tiny"}
    url = f"http://127.0.0.1:{serve.port}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=60, trust_env=False) as stream:
        lines = stream.iter_lines()
        next(line for line in lines if '"content"' in line)
        assert serve.leave() is ExitCode.OK
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"' in "".join(rest)


def test_a_stop_while_it_loads(serve: Process) -> None:
    """CTR-08"""
    serve.wait_for("loading the runtime")
    assert serve.leave() is ExitCode.OK


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        pytest.param(["--set", "cards.devices=[0]"], ExitCode.RIG, "this machine has no card 0", id="CTR-03 cards"),
        pytest.param(["--model", "/nope.gguf"], ExitCode.MACHINE, 'devices = "cpu"', id="CTR-03 other model"),
        pytest.param(
            ["--host", "192.0.2.1", "--set", "server.open=true"], ExitCode.ADDRESS, "does not have", id="CFG-13"
        ),
        pytest.param(["--host", "0.0.0.0"], ExitCode.RIG, "no API keys", id="SEC open without keys"),
    ],
)
def test_refused_before_anything_is_loaded(tmp_path: Path, arguments: list[str], code: ExitCode, says: str) -> None:
    process = Process(tmp_path, *arguments)
    assert process.child.wait(LIMIT_S) == code
    log = process.log.read_text()
    assert says in log
    assert "Traceback" not in log
    assert "event=loading" not in log


def test_a_port_in_use_is_refused_before_the_load(tmp_path: Path) -> None:
    """CFG-13"""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        process = Process(tmp_path, "--port", str(other.getsockname()[1]))
        assert process.child.wait(LIMIT_S) == ExitCode.ADDRESS
    assert "another program listens there" in process.log.read_text()
    assert "event=loading" not in process.log.read_text()
