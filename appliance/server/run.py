"""The engine requests behind one API call: submitted together, their events merged, cancelled together."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from litestar.types import Receive

from appliance.engine.handle import (
    EngineHandle,
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    RequestStream,
    Usage,
)
from appliance.errors import EngineFault
from appliance.server.body import ClientGoneError

log = logging.getLogger("appliance.server")

CANCEL_ACK_S = 1.0
Result = TypeVar("Result")
Batch = list[tuple[int, Event]]


class Run:
    """Owns the streams from submit to close. Whoever makes one closes it in a `finally`.

    The streams are cancelled by `close` itself, not by the clean-up of a generator or task: those may never have
    started, or wait for an event that does not come.
    """

    def __init__(
        self,
        engine: EngineHandle,
        requests: Sequence[GenerationRequest],
        *,
        watchdog_s: float,
        on_silence: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._requests = tuple(requests)
        self._watchdog_s = watchdog_s
        self._on_silence = on_silence
        self._streams: list[RequestStream] = []
        self._pumps: list[asyncio.Task[None]] = []
        self._timers: list[asyncio.TimerHandle] = []
        self._events: asyncio.Queue[tuple[int, Event | Exception] | None] = asyncio.Queue()
        self._alarm: asyncio.TimerHandle | None = None
        self._windows = -1
        self._broken: EngineFault | None = None
        self._moved = time.monotonic()

    def submit(self) -> None:
        """Queues every request, or none: raises what EngineHandle.submit raises."""
        for request in self._requests:
            self._streams.append(self._engine.submit(request))
        self._pumps = [asyncio.create_task(self._pump(index)) for index in range(len(self._streams))]

    async def step(self, timeout_s: float) -> Batch:
        """Events that are there, or that come within the time; empty when none came, perhaps before its end.

        Raises:
            EngineFault: the engine fell silent, or a stream ended without its end.
        """
        if self._broken is not None:
            raise self._broken
        if self._events.empty() and self._alarm is None:
            # One alarm serves all steps until it rings: a later step never wants to wait for a shorter time.
            self._alarm = asyncio.get_running_loop().call_later(timeout_s, self._ring)
        first = await self._events.get()
        if first is not None:
            return self._gather([first])
        if self._events.empty():
            self._watch()
            return []
        return self._gather([])

    def _ring(self) -> None:
        self._alarm = None
        self._events.put_nowait(None)

    def cancel(self, index: int) -> None:
        """Ends one request early. Its Finished follows, made up when the engine does not send it in time."""
        self._streams[index].cancel()
        request = self._requests[index]
        end = Finished(
            request_id=request.id,
            reason=FinishReason.CANCELLED,
            usage=Usage(prompt_tokens=len(request.prompt_ids), completion_tokens=0),
        )
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(CANCEL_ACK_S, self._events.put_nowait, (index, end)))

    def close(self) -> None:
        """Cancels whatever still runs; safe to repeat."""
        for stream in self._streams:
            stream.cancel()
        for timer in (*self._timers, *([self._alarm] if self._alarm else [])):
            timer.cancel()
        for pump in self._pumps:
            pump.cancel()

    def _gather(self, items: list[tuple[int, Event | Exception]]) -> Batch:
        while not self._events.empty():
            further = self._events.get_nowait()
            if further is not None:
                items.append(further)
        self._moved = time.monotonic()
        batch: Batch = []
        for index, item in items:
            if isinstance(item, Exception):
                log.error("event=stream_broken id=%s error=%s", self._requests[index].id, type(item).__name__)
                self._broken = EngineFault("the engine's answer broke off")
                break
            batch.append((index, item))
        return batch

    async def _pump(self, index: int) -> None:
        """Moves one stream's events to the common queue; checks that they are its own and end as they must."""
        wanted = self._requests[index].id
        try:
            async for event in self._streams[index]:
                if event.request_id != wanted:
                    raise EngineFault("the engine sent an event that is not this request's")
                self._events.put_nowait((index, event))
                if isinstance(event, Finished):
                    return
            raise EngineFault("the engine's stream ended without an end")
        except Exception as error:
            self._events.put_nowait((index, error))

    def _watch(self) -> None:
        """Silence is a fault only while the engine runs no window for anybody."""
        windows = self._engine.status().timings.windows
        now = time.monotonic()
        if windows != self._windows:
            self._windows, self._moved = windows, now
        if now - self._moved > self._watchdog_s:
            sentence = f"the engine was silent for {now - self._moved:.0f} s while a request waited"
            self._on_silence(sentence)
            raise EngineFault("the engine stopped answering")


async def unless_gone(work: Coroutine[Any, Any, Result], receive: Receive) -> Result:
    """The result of the work; raises ClientGoneError as soon as the client leaves, whatever the work waits for."""
    worker = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait((worker, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not worker.done():
            raise ClientGoneError
        return worker.result()
    finally:
        worker.cancel()
        watcher.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
