"""The README's lines, run as they are written there."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import httpx

from tests.container.stack import READY_S, ROOT, get
from tests.ports import free_port


def command(name: str) -> str:
    return subprocess.run([ROOT / ".ci/readme", name], capture_output=True, text=True, check=True).stdout.strip()


def test_the_docker_line_is_what_the_container_tests_run() -> None:
    assert command("docker") == "docker compose up"


def test_the_python_line_installs_serves_and_answers(tmp_path: Path) -> None:
    port = free_port()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("STRATA_")},
        "XDG_CONFIG_HOME": str(tmp_path),
        "STRATA_SERVER__PORT": str(port),
    }
    log = tmp_path / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            ["bash", "-c", command("python")],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            end = time.monotonic() + 300 + READY_S  # the installation is there already, or takes minutes
            while get(port, "/ready")[0] != 200:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.5)
            body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
            answer = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=120)
            assert "Paris" in answer.json()["choices"][0]["message"]["content"]
            assert (tmp_path / "strata" / "rig.toml").is_file()
        finally:
            os.killpg(process.pid, signal.SIGINT)  # Ctrl-C
            code = process.wait(30)
    assert code == 0, log.read_text()
