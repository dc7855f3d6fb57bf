"""Owns starting and stopping the two servers of the bench, never both at once."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_port

SLOTS = 8
CONTEXT_TOKENS = 4096


@contextmanager
def appliance(model: Path, *, settings: tuple[str, ...] = ()) -> Iterator[int]:
    """Runs `strata serve` on the model; yields its port.

    Args:
        settings: keys of the rig to override, each TABLE.KEY=VALUE.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        rig = Path(folder) / "rig.toml"
        rig.write_text(
            f'schema = 1\n[model]\npath = "{model}"\n[cards]\ndevices = "cpu"\n[serving]\nparallel = {SLOTS}\n'
            f'[context]\nmax_tokens = {CONTEXT_TOKENS}\n[server]\nhost = "127.0.0.1"\nport = {port}\n'
        )
        extra = [part for setting in settings for part in ("--set", setting)]
        with _running([sys.executable, "-m", "appliance", "serve", "--rig", str(rig), *extra], port, "/ready"):
            yield port


@contextmanager
def llama(model: Path) -> Iterator[int]:
    """Runs llama.cpp's server on the model; yields its port."""
    port = free_port()
    with _running([sys.executable, "-m", "tests.bench.llama", str(model), str(port)], port, "/health"):
        yield port


@contextmanager
def _running(command: list[str], port: int, path: str) -> Iterator[None]:
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT)
        try:
            if not _answers(process, f"http://127.0.0.1:{port}{path}", within_s=180):
                log.seek(0)
                raise RuntimeError(f"{' '.join(command)} did not become ready:\n{log.read()[-3000:]}")
            yield
        finally:
            process.terminate()
            process.wait(30)


def _answers(process: subprocess.Popen[bytes], url: str, *, within_s: float) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    return False
