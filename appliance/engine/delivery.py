"""The border between the event loop and the engine's thread: requests in, events and status out; torch-free."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from appliance.engine.admission import check_request
from appliance.engine.config import EngineConfig
from appliance.engine.handle import EngineStatus, QueueStatus
from appliance.engine.stream import Stream
from appliance.errors import EngineFault, NotReadyError
from appliance.model.host_gaps import HostGaps
from appliance.scheduler.planner import Acceptance
from appliance.scheduler.queue import RequestQueue
from appliance.scheduler.request import Finished, FinishReason, GenerationRequest
from appliance.scheduler.scheduler import SessionEvent
from appliance.scheduler.session import Session

_log = logging.getLogger(__name__)


class Delivery:
    """Implements EngineHandle.

    `submit` and `status` belong to the event loop; `show` and `publish` to the engine's thread; the others to any.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        vocabulary: int,
        queue: RequestQueue,
        status: EngineStatus,
        on_fault: Callable[[str], None],
        gaps: HostGaps | None = None,
    ) -> None:
        """Closed until `open`; `gaps` of a model whose windows have any."""
        self._config = config
        self._vocabulary = vocabulary
        self._queue = queue
        self._status = status
        self._on_fault = on_fault
        self._gaps = gaps
        self._streams: dict[Session, Stream] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed_because: str | None = "the engine has not started yet"
        self._fault: str | None = None
        self._fault_lock = threading.Lock()
        self._started_s = time.monotonic()

    @property
    def slots(self) -> int:
        """Conversations decoded together."""
        return self._config.slots

    @property
    def max_tokens(self) -> int:
        """Context per conversation: prompt and answer together."""
        return self._config.max_tokens

    @property
    def vocabulary(self) -> int:
        """Token ids are below this."""
        return self._vocabulary

    @property
    def fault(self) -> str | None:
        """Why the engine is lost, or None."""
        return self._fault

    def submit(self, request: GenerationRequest) -> Stream:
        """Queues a request; see EngineHandle.submit for what it raises."""
        if self._fault is not None:
            raise EngineFault(self._fault)
        if self._closed_because is not None:
            raise NotReadyError(self._closed_because)
        answer_tokens = check_request(request, self._config, vocabulary=self._vocabulary)
        session = Session(
            request=request,
            answer_tokens=answer_tokens,
            acceptance=Acceptance(self._config.draft_max),
            queued_s=time.monotonic(),
        )
        stream = Stream(session, wake=self._queue.wake)
        self._queue.put(session)
        self._streams[session] = stream
        return stream

    def status(self) -> EngineStatus:
        """The picture after the last window, with the queue and the uptime of this moment."""
        now_s = time.monotonic()
        waiting, oldest_s = self._queue.picture()
        wait_s = 0.0 if oldest_s is None else now_s - oldest_s
        gaps = self._gaps.times() if self._gaps is not None else None
        return replace(
            self._status,
            queue=QueueStatus(waiting=waiting, limit=self._queue.limit, oldest_wait_s=wait_s),
            timings=replace(
                self._status.timings,
                uptime_s=now_s - self._started_s,
                host_gap_p50_s=None if gaps is None else gaps.p50_s,
                host_gap_p99_s=None if gaps is None else gaps.p99_s,
                host_turn_p50_s=None if gaps is None else gaps.turn_p50_s,
                host_turn_p99_s=None if gaps is None else gaps.turn_p99_s,
            ),
            last_fault=self._fault,
        )

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Takes requests from now on and delivers events on `loop`."""
        self._loop = loop
        self._started_s = time.monotonic()
        self._closed_because = None

    def close(self, because: str) -> None:
        """Takes no more requests."""
        self._closed_because = because

    def end_in(self, deadline_s: float) -> None:
        """Any stream that is still open after `deadline_s` ends then, even when the current window takes longer."""
        if self._loop is not None:
            self._call(self._end_later, deadline_s)

    def show(self, status: EngineStatus) -> None:
        """The picture from now on."""
        self._status = status

    def publish(self, events: Sequence[SessionEvent]) -> None:
        """Hands a window's events to their streams, in one call to the event loop."""
        for session, event in events:
            if isinstance(event, Finished):
                _log_end(session, event)
        self._call(self._deliver, events)

    def fail(self, sentence: str) -> None:
        """Ends every stream as lost and refuses later requests; only the first fault counts."""
        with self._fault_lock:
            if self._fault is not None:
                return
            self._fault = sentence
        _log.error("event=engine_fault sentence=%r", sentence)
        self._call(self._end_all)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None, "the engine's thread runs only after open"
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # The event loop is closed: nobody is left to hear it.
            _log.warning("event=event_loop_closed undelivered=%s", function.__name__)

    def _deliver(self, events: Sequence[SessionEvent]) -> None:
        for session, event in events:
            stream = self._streams.get(session)
            if stream is None:
                continue
            stream.push(event)
            if isinstance(event, Finished):
                del self._streams[session]

    def _end_later(self, deadline_s: float) -> None:
        asyncio.get_running_loop().call_later(deadline_s, self._end_left)

    def _end_left(self) -> None:
        for session, stream in self._streams.items():
            stream.push(Finished(request_id=session.request.id, reason=FinishReason.CANCELLED, usage=session.usage()))
        self._streams.clear()

    def _end_all(self) -> None:
        for session, stream in self._streams.items():
            stream.push(
                Finished(
                    request_id=session.request.id,
                    reason=FinishReason.ERROR,
                    usage=session.usage(),
                    error=self._fault,
                    error_code=EngineFault.default_code,
                    fatal=True,
                )
            )
        self._streams.clear()
        self._on_fault(self._fault or "")


def _log_end(session: Session, event: Finished) -> None:
    usage = event.usage
    _log.info(
        "event=request_ended id=%s reason=%s code=%s prompt_tokens=%d completion_tokens=%d drafts_offered=%d "
        "drafts_accepted=%d",
        session.request.id,
        event.reason,
        event.error_code,
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.drafts_offered,
        usage.drafts_accepted,
    )
