"""What the server needs from the rest of the appliance, and how it is configured; torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from appliance.engine.handle import EngineHandle, SamplingParams
from appliance.text.template import ChatTemplate
from appliance.text.tokenizer import Tokenizer

Setting = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """How far the start-up is.

    Attributes:
        stage: a sentence or word: "loading", "ready", "draining", "fault".
        percent: 0 to 100 of the start-up.
        ready: whether requests are answered.
        device: what computes, such as "cpu" or the cards' names.
        fault: the sentence of the fault that ended the engine.
    """

    stage: str
    percent: int
    ready: bool
    device: str
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """The served model as clients see it.

    Attributes:
        id: stable over restarts and file names.
        aliases: other ids that mean the same model.
        created: Unix seconds, stable over restarts.
        stop_token_ids: tokens that end a turn.
        draft_note: why the model cannot draft, if it cannot.
    """

    id: str
    aliases: tuple[str, ...] = ()
    context_tokens: int
    created: int
    description: str = ""
    stop_token_ids: frozenset[int] = frozenset()
    draft_note: str | None = None


@dataclass(frozen=True, slots=True)
class TextStack:
    """Tokenizer and chat template of the served model."""

    tokenizer: Tokenizer
    template: ChatTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class RigSummary:
    """The rig as the status page shows it: file and settings by dotted key. Holds no secret."""

    path: str | None = None
    settings: Mapping[str, Setting] = field(default_factory=dict)


class Backend(Protocol):
    """Called from the event loop only; never blocks."""

    def readiness(self) -> Readiness:
        """Where the start-up is; answers from the first second."""
        ...

    def engine(self) -> EngineHandle:
        """The engine, also while draining and after a fault; raises NotReadyError before it exists."""
        ...

    def text(self) -> TextStack:
        """Raises NotReadyError before the model file is open."""
        ...

    def model(self) -> ModelCard:
        """Raises NotReadyError before the model file is open."""
        ...

    def sampling_defaults(self) -> SamplingParams:
        """What a bare request gets; the seed is ignored."""
        ...

    def rig_summary(self) -> RigSummary:
        """The rig in use."""
        ...

    def report_silence(self, sentence: str) -> None:
        """The engine stopped answering: record the fault and end the process."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where and how the server listens.

    Attributes:
        keys_file: hashed API keys; None answers everybody who passes the host and origin checks.
        open: listen beyond loopback without keys.
        cors_origins: origins such as "https://chat.example" whose pages may call; "*" is any.
        allowed_hosts: names beside localhost and addresses that a Host or Origin header may carry without keys.
        body_limit_bytes: None derives it from the context, above a full prompt in JSON.
        body_idle_s: longest pause inside a request body.
        keep_alive_s: longest silence of a stream.
        watchdog_s: engine silence that counts as a fault, for an empty prompt.
        watchdog_token_s: seconds added per prompt token.
        text_threads: threads that render and tokenise beside the event loop.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    keys_file: Path | None = None
    open: bool = False
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    body_limit_bytes: int | None = None
    body_idle_s: float = 30.0
    keep_alive_s: float = 10.0
    watchdog_s: float = 120.0
    watchdog_token_s: float = 0.05
    text_threads: int = 2
