"""An engine without a model: scripts play the events of a request, and every state can be waited for."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from appliance.engine.handle import (
    CacheStatus,
    DraftCounts,
    DraftPlan,
    EngineStatus,
    Event,
    ExpertStatus,
    Finished,
    FinishReason,
    GenerationRequest,
    PromptScored,
    QueueStatus,
    SlotStatus,
    StageStatus,
    TimingStatus,
    TokenLogprob,
    Tokens,
    Usage,
    WindowCost,
)
from appliance.errors import ApplianceError, ContextLengthError, NotReadyError, QueueFullError

WAIT_S = 10.0
Script = Callable[["FakeStream"], Awaitable[None]]


class FakeStream:
    """The events of one request."""

    def __init__(self, engine: FakeEngine, request: GenerationRequest) -> None:
        self.engine = engine
        self.request = request
        self.cancelled = False
        self.sent = 0
        self.ended = False
        self.state = "waiting"
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    @property
    def request_id(self) -> str:
        return self.request.id

    def __aiter__(self) -> FakeStream:
        return self

    async def __anext__(self) -> Event:
        if self.ended and self._events.empty():
            raise StopAsyncIteration
        return await self._events.get()

    def cancel(self) -> None:
        self.engine.note(lambda: self._cancel())

    def _cancel(self) -> None:
        if self.ended or self.cancelled:
            return
        self.cancelled = True
        self.engine.cancels.append(self.request.id)
        if not self.engine.deaf:
            self.finish(FinishReason.CANCELLED)

    def emit(self, event: Event) -> None:
        """Any event, also a wrong one."""
        self.engine.windows += 1
        self._events.put_nowait(event)

    def tokens(self, *ids: int) -> None:
        """One window's tokens, no more than asked for."""
        ids = ids[: self.request.max_tokens - self.sent]
        if not ids or self.ended:
            return
        self.sent += len(ids)
        top = self.request.top_logprobs
        logprobs = None if top is None else tuple(logprob_of(token_id, top) for token_id in ids)
        self.emit(Tokens(request_id=self.request.id, ids=tuple(ids), logprobs=logprobs))

    def scored(self) -> None:
        """The prompt's log-probabilities."""
        top = self.request.prompt_logprobs
        assert top is not None
        known = tuple(logprob_of(token_id, top) for token_id in self.request.prompt_ids[1:])
        self.emit(PromptScored(request_id=self.request.id, logprobs=(None, *known)))

    def finish(self, reason: FinishReason = FinishReason.STOP, *, error: str | None = None, **more: object) -> None:
        """The last event; the slot is free afterwards."""
        if self.ended:
            return
        self.ended = True
        stop_token = reason is FinishReason.STOP and bool(self.request.stop_token_ids)
        usage = Usage(
            prompt_tokens=len(self.request.prompt_ids), completion_tokens=self.sent + stop_token, cached_tokens=2
        )
        self.emit(Finished(request_id=self.request.id, reason=reason, usage=usage, error=error, **more))
        self.engine.note(lambda: self.engine.leave(self, reason))

    def start(self, script: Script) -> None:
        self.state = "decoding"
        self._task = asyncio.get_running_loop().create_task(self._play(script))

    async def _play(self, script: Script) -> None:
        if self.request.prompt_logprobs is not None:
            self.scored()
        await script(self)


def logprob_of(token_id: int, top: int) -> TokenLogprob:
    """Always the same numbers; one alternative is impossible, so its logarithm is no JSON number."""
    others = ((token_id, -0.25), (token_id + 1, -1.5), (token_id + 2, float("-inf")))
    return TokenLogprob(token_id, -0.25, others[:top])


def say(*pieces: tuple[int, ...] | list[int], reason: FinishReason = FinishReason.STOP) -> Script:
    """One window a piece, then the end; running into max_tokens ends with LENGTH."""

    async def play(stream: FakeStream) -> None:
        for piece in pieces:
            stream.tokens(*piece)
            await asyncio.sleep(0)
        full = stream.sent >= stream.request.max_tokens
        stream.finish(FinishReason.LENGTH if full else FinishReason(reason))

    return play


def hold(*pieces: tuple[int, ...] | list[int]) -> Script:
    """One window a piece, then silence until the request is cancelled or `engine.release` is set."""

    async def play(stream: FakeStream) -> None:
        for piece in pieces:
            stream.tokens(*piece)
            await asyncio.sleep(0)
        await stream.engine.released()
        stream.finish()

    return play


def endless(token_id: int) -> Script:
    """Tokens until somebody stops it."""

    async def play(stream: FakeStream) -> None:
        while not stream.ended:
            stream.tokens(token_id)
            if stream.sent >= stream.request.max_tokens:
                stream.finish(FinishReason.LENGTH)
            await asyncio.sleep(0.001)

    return play


@dataclass
class FakeEngine:
    """Implements EngineHandle. `script` decides what a request gets; runs on the loop of its first submit."""

    script: Script
    slots: int = 4
    max_tokens: int = 4096
    vocabulary: int = 8192
    queue_limit: int = 8
    deaf: bool = False
    refusal: ApplianceError | None = None
    draining: bool = False
    last_fault: str | None = None
    stages: tuple[StageStatus, ...] = ()
    plans: tuple[DraftPlan, ...] = ()
    costs: tuple[WindowCost, ...] = ()
    gaps: tuple[float | None, float | None] = (None, None)
    experts: ExpertStatus | None = None
    windows: int = 0
    requests: list[GenerationRequest] = field(default_factory=list)
    cancels: list[str] = field(default_factory=list)
    running: list[FakeStream] = field(default_factory=list)
    waiting: deque[FakeStream] = field(default_factory=deque)
    finished: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._release: asyncio.Event | None = None

    def submit(self, request: GenerationRequest) -> FakeStream:
        if self.refusal is not None:
            raise self.refusal
        if self.draining:
            raise NotReadyError("the server is stopping")
        if len(request.prompt_ids) + min(1, request.max_tokens) > self.max_tokens:
            raise ContextLengthError("the prompt leaves no room for one token")
        if len(self.running) >= self.slots and len(self.waiting) >= self.queue_limit:
            raise QueueFullError(f"{len(self.waiting)} requests wait already; the limit is {self.queue_limit}")
        stream = FakeStream(self, request)
        self.note(lambda: self._admit(stream))
        return stream

    def _admit(self, stream: FakeStream) -> None:
        self.requests.append(stream.request)
        self.waiting.append(stream)
        self._fill()

    def _fill(self) -> None:
        while self.waiting and len(self.running) < self.slots:
            stream = self.waiting.popleft()
            self.running.append(stream)
            stream.start(self.script)

    def leave(self, stream: FakeStream, reason: FinishReason) -> None:
        """Frees the slot and lets the next one in."""
        self.finished[reason.value] = self.finished.get(reason.value, 0) + 1
        if stream in self.running:
            self.running.remove(stream)
        elif stream in self.waiting:
            self.waiting.remove(stream)
        self._fill()

    def note(self, change: Callable[[], None]) -> None:
        """Makes a change that a waiting test may look for."""
        with self._changed:
            change()
            self._changed.notify_all()

    def wait_until(self, is_true: Callable[[FakeEngine], object], *, within_s: float = WAIT_S) -> None:
        """For tests in another thread; fails when it does not come true in time."""
        with self._changed:
            assert self._changed.wait_for(lambda: is_true(self), timeout=within_s), "the engine's state never came"

    async def released(self) -> None:
        """Waits for `release`."""
        if self._release is None:
            self._release = asyncio.Event()
        await self._release.wait()

    def release(self) -> None:
        """Lets every held script go on; on the loop's thread."""
        if self._release is None:
            self._release = asyncio.Event()
        self._release.set()

    def drain(self, deadline_s: float) -> None:
        """Ends what runs and waits, as a stop does."""
        self.draining = True
        for stream in [*self.waiting, *self.running]:
            stream.finish(FinishReason.CANCELLED)

    def status(self) -> EngineStatus:
        used = dict(enumerate(self.running))
        slots = tuple(slot_of(index, used.get(index)) for index in range(self.slots))
        return EngineStatus(
            slots=slots,
            queue=QueueStatus(waiting=len(self.waiting), limit=self.queue_limit, oldest_wait_s=0.0),
            cache=CacheStatus(page_tokens=64, pages_total=256, pages_used=4 * len(self.running), experts=self.experts),
            timings=TimingStatus(
                windows=self.windows,
                prompt_tokens=7,
                generated_tokens=self.windows,
                forward_s=1.0,
                draft_s=0.1,
                sample_s=0.1,
                host_s=0.1,
                tokens_per_s=12.5,
                uptime_s=3.0,
                host_gap_p50_s=self.gaps[0],
                host_gap_p99_s=self.gaps[1],
            ),
            drafts=DraftCounts((10, 6, 3, 1), (8, 4, 1, 0)),
            requests_finished=dict(self.finished),
            nonfinite_rows=0,
            last_fault=self.last_fault,
            stages=self.stages,
            plans=self.plans,
            costs=self.costs,
        )


def slot_of(index: int, stream: FakeStream | None) -> SlotStatus:
    """A slot as the status shows it."""
    request = stream.request if stream else None
    return SlotStatus(
        index=index,
        state=stream.state if stream else "free",
        request_id=request.id if request else None,
        client=request.client if request else None,
        prompt_tokens=len(request.prompt_ids) if request else 0,
        read_tokens=len(request.prompt_ids) if request else 0,
        generated_tokens=stream.sent if stream else 0,
        context_tokens=4096,
        drafts=DraftCounts((2, 1), (1, 1)),
    )
