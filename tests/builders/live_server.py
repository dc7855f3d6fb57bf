"""A whole server on loopback around a fake engine: the real framework stack, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from appliance.engine.handle import EngineHandle, SamplingParams
from appliance.errors import ExitCode, NotReadyError
from appliance.gguf.reader import open_set
from appliance.server.app import create_app
from appliance.server.backend import ModelCard, Readiness, RigSummary, ServerConfig, TextStack
from appliance.server.serve import Service, bind
from appliance.text.template import ChatTemplate
from appliance.text.tokenizer import Tokenizer
from tests.builders.fake_engine import FakeEngine

BUILTIN = Path(__file__).parents[2] / "appliance/data/strata-tiny.gguf"
STOP_IDS = frozenset({8176, 8178})
THINK, END_THINK, CALL, END_CALL = 8179, 8180, 8181, 8182
READY = Readiness(stage="ready", percent=100, ready=True, device="cpu")


@functools.cache
def text_stack() -> TextStack:
    """Tokenizer and template of the built-in model."""
    metadata = open_set(BUILTIN).metadata
    tokenizer = Tokenizer.from_metadata(metadata)
    return TextStack(tokenizer, ChatTemplate(metadata.str_("tokenizer.chat_template"), tokenizer))


def ids(text: str) -> list[int]:
    """Token ids of a text that may hold tags."""
    return text_stack().tokenizer.encode(text, special=True)


def pieces(text: str) -> list[list[int]]:
    """The same, one token a window."""
    return [[token_id] for token_id in ids(text)]


@dataclass
class FakeBackend:
    """Everything the server asks for; fields may be changed while it runs."""

    fake: FakeEngine
    state: Readiness = READY
    defaults: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0.6, top_p=0.9, top_k=20))
    loaded: bool = True
    silences: list[str] = field(default_factory=list)
    card: ModelCard = field(
        default_factory=lambda: ModelCard(
            id="strata-tiny", aliases=("tiny",), context_tokens=4096, created=1_700_000_000, stop_token_ids=STOP_IDS
        )
    )
    stack: TextStack | None = None

    def readiness(self) -> Readiness:
        return self.state

    def engine(self) -> EngineHandle:
        self._require()
        return self.fake

    def text(self) -> TextStack:
        self._require()
        return self.stack or text_stack()

    def model(self) -> ModelCard:
        self._require()
        return self.card

    def sampling_defaults(self) -> SamplingParams:
        return self.defaults

    def rig_summary(self) -> RigSummary:
        return RigSummary(path="rig.toml", settings={"serving.draft_max": 4})

    def report_silence(self, sentence: str) -> None:
        self.silences.append(sentence)

    def _require(self) -> None:
        if not self.loaded:
            raise NotReadyError("the model is still loading")


class LiveServer:
    """What a test needs of a running server."""

    def __init__(self, backend: FakeBackend, config: ServerConfig) -> None:
        self.backend = backend
        self.engine = backend.fake
        self._listener = bind("127.0.0.1", 0)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.service = Service(create_app(backend, config), listener=self._listener, drain=self.drain)
        self.loop = asyncio.new_event_loop()
        self.code: ExitCode | None = None
        self._thread = threading.Thread(target=self._main, daemon=True)

    def drain(self, deadline_s: float) -> None:
        """As the boot does it: not ready first, then the engine."""
        self.backend.state = Readiness(stage="draining", percent=100, ready=False, device="cpu")
        self.engine.drain(deadline_s)

    def start(self) -> None:
        self._thread.start()

    def _main(self) -> None:
        with contextlib.closing(self.loop):
            self.code = self.loop.run_until_complete(self.service.run())

    def call(self, work: Callable[[], Any]) -> None:
        """Runs something on the server's loop."""
        self.loop.call_soon_threadsafe(work)

    def join(self, *, within_s: float = 8.0) -> ExitCode | None:
        """Waits for the end."""
        self._thread.join(within_s)
        assert not self._thread.is_alive(), "the server did not stop"
        return self.code

    def stop(self) -> None:
        self.service.stop()
        self.join()

    def connect(self) -> socket.socket:
        """A raw connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)


@contextlib.contextmanager
def live(engine: FakeEngine, **config: Any) -> Iterator[LiveServer]:
    """A running server; keyword arguments are ServerConfig's."""
    backend = config.pop("backend", None) or FakeBackend(engine)
    server = LiveServer(backend, ServerConfig(**config))
    server.start()
    try:
        yield server
    finally:
        server.stop()


def raw_request(body: object, *, path: str = "/v1/chat/completions", headers: str = "") -> bytes:
    """A POST as bytes."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n{headers}\r\n".encode() + data
