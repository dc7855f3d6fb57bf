"""Owns the process that renders one template: starts it, asks it, replaces it when a template ended it."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.errors import ApplianceError
from appliance.text.chat import JsonValue

_START_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderLimits:
    """What one rendering may take; beyond it, the process ends or the answer is an error."""

    deadline_s: float = 5.0
    memory_bytes: int = 768 << 20
    output_chars: int = 16 << 20


class RenderFailed(ApplianceError):
    """The template did not give a text.

    Attributes:
        kind: "refused" (raise_exception), "template" (an error in it), "security", "limit" or "lost".
    """

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class Renderer:
    """One template in one process. Calls are serialised; the process starts with the first."""

    def __init__(self, source: str, *, limits: RenderLimits) -> None:
        self._source = source
        self._limits = limits
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[[subprocess.Popen[bytes]], Renderer] | None = None

    def render(self, variables: dict[str, JsonValue]) -> str:
        """The template's text.

        Raises:
            RenderFailed: see its kinds.
        """
        body = json.dumps(variables).encode("ascii")
        with self._lock:
            process = self._started()
            return self._ask(process, body, wait_s=self._limits.deadline_s + _START_S)

    def close(self) -> None:
        """Ends the process."""
        with self._lock:
            self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        limits = self._limits
        numbers = (str(limits.memory_bytes), str(limits.deadline_s), str(limits.output_chars))
        worker = str(Path(__file__).with_name("render_worker.py"))
        self._process = subprocess.Popen(
            [sys.executable, "-I", worker, *numbers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={name: os.environ[name] for name in ("TZ", "LD_LIBRARY_PATH") if name in os.environ},
            start_new_session=True,
        )
        self._finalizer = weakref.finalize(self, _stop, self._process)
        try:
            self._ask(self._process, json.dumps({"source": self._source}).encode("ascii"), wait_s=_START_S)
        except RenderFailed:
            # Without its template the process is of no use.
            self._end()
            raise
        return self._process

    def _ask(self, process: subprocess.Popen[bytes], body: bytes, *, wait_s: float) -> str:
        assert process.stdin is not None
        try:
            process.stdin.write(len(body).to_bytes(8, "little") + body)
            process.stdin.flush()
            until = time.monotonic() + wait_s
            size = int.from_bytes(_read(process, 8, until=until), "little")
            answer = json.loads(_read(process, size, until=until))
        except (OSError, EOFError) as error:
            self._end()
            raise self._lost(process.returncode) from error
        if "text" not in answer:
            raise RenderFailed(answer["error"], kind=answer["kind"])
        text: str = answer["text"]
        return text

    def _lost(self, returncode: int) -> RenderFailed:
        if returncode == -signal.SIGALRM:
            return RenderFailed(f"it took longer than {self._limits.deadline_s:g} s", kind="limit")
        return RenderFailed(f"its process ended with code {returncode}", kind="lost")

    def _end(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._finalizer = None
        self._process = None


def _stop(process: subprocess.Popen[bytes]) -> None:
    """A dead process keeps the code it died with, so a timeout is still told from a crash."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                continue
    try:
        process.wait(timeout=0.5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _read(process: subprocess.Popen[bytes], size: int, *, until: float) -> bytes:
    """Exactly size bytes of the process's output.

    Raises:
        EOFError: it ended, or the time is over.
    """
    assert process.stdout is not None
    parts: list[bytes] = []
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while size:
            if not selector.select(max(0.0, until - time.monotonic())):
                raise EOFError
            part = os.read(process.stdout.fileno(), min(size, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
    return b"".join(parts)
