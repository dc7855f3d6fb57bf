"""What the server sees of the engine: submit, stream, cancel, status. Imports no torch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from appliance.model.expert_status import ExpertStatus
from appliance.model.stage_status import StageStatus
from appliance.scheduler.drafting import DraftPlan
from appliance.scheduler.request import (
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    PromptScored,
    SamplingParams,
    TokenLogprob,
    Tokens,
    Usage,
)

__all__ = [
    "CacheStatus",
    "DraftCounts",
    "DraftPlan",
    "EngineHandle",
    "EngineStatus",
    "Event",
    "ExpertStatus",
    "FinishReason",
    "Finished",
    "GenerationRequest",
    "PromptScored",
    "QueueStatus",
    "RequestStream",
    "SamplingParams",
    "SlotStatus",
    "StageStatus",
    "TimingStatus",
    "TokenLogprob",
    "Tokens",
    "Usage",
    "WindowCost",
]


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Drafts by depth: index 0 is the first draft of a window."""

    offered: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatus:
    """One slot. state: "free", "reading" (its prompt) or "decoding"."""

    index: int
    state: str
    request_id: str | None
    client: str | None
    prompt_tokens: int
    read_tokens: int
    generated_tokens: int
    context_tokens: int
    drafts: DraftCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """Requests that wait for a slot."""

    waiting: int
    limit: int
    oldest_wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStatus:
    """KV pages, and on cards the routed experts."""

    page_tokens: int
    pages_total: int
    pages_used: int
    experts: ExpertStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingStatus:
    """Totals since start, in seconds and tokens; rates over the last busy minute.

    Over the last 4,096 windows that followed another one at once, None where the model has no such windows (the CPU):
    `host_gap_p50_s` and `host_gap_p99_s` that the card had nothing to compute, `host_turn_p50_s` and `host_turn_p99_s`
    from a window's end seen to the next one handed to the card, which may be computing another meanwhile.
    """

    windows: int
    prompt_tokens: int
    generated_tokens: int
    forward_s: float
    draft_s: float
    sample_s: float
    host_s: float
    tokens_per_s: float
    uptime_s: float
    host_gap_p50_s: float | None = None
    host_gap_p99_s: float | None = None
    host_turn_p50_s: float | None = None
    host_turn_p99_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowCost:
    """What windows of one shape took, which the drafts are planned by.

    Attributes:
        groups: that were on their way side by side.
        conversations, rows, steps: of the window, and of the chain of drafts after it.
        seconds: median of the latest ones, from the end of the window before.
        windows: how many those are.
    """

    groups: int
    conversations: int
    rows: int
    steps: int
    seconds: float
    windows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """A consistent picture of the engine between two windows; `stages` is empty where one device computes.

    `plans`: what the next windows of each group carry and why; `costs`: what such windows took.
    """

    slots: tuple[SlotStatus, ...]
    queue: QueueStatus
    cache: CacheStatus
    timings: TimingStatus
    drafts: DraftCounts
    requests_finished: dict[str, int]
    nonfinite_rows: int
    last_fault: str | None
    stages: tuple[StageStatus, ...] = ()
    plans: tuple[DraftPlan, ...] = ()
    costs: tuple[WindowCost, ...] = ()


class RequestStream(Protocol):
    """The events of one request; the last is always a Finished."""

    @property
    def request_id(self) -> str:
        """The request's id."""
        ...

    def __aiter__(self) -> AsyncIterator[Event]:
        """Yields events; stops after Finished."""
        ...

    def cancel(self) -> None:
        """Ends the request at the next window and frees its slot; safe to repeat and after the end."""
        ...


class EngineHandle(Protocol):
    """Called from the event loop only; never blocks."""

    @property
    def slots(self) -> int:
        """Conversations decoded together."""
        ...

    @property
    def max_tokens(self) -> int:
        """Context per conversation: prompt and answer together."""
        ...

    @property
    def vocabulary(self) -> int:
        """Token ids are below this."""
        ...

    def submit(self, request: GenerationRequest) -> RequestStream:
        """Queues a request.

        Raises:
            QueueFullError: the queue is at its limit.
            ContextLengthError: the prompt leaves no room for one token.
            RequestError: an id outside the vocabulary, an empty prompt.
            NotReadyError: the engine is draining or not loaded.
            EngineFault: the engine is lost.
        """
        ...

    def status(self) -> EngineStatus:
        """The last picture; costs nothing."""
        ...
