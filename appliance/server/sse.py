"""Runs a prepared answer against the engine and sends it, streamed or whole; the slot is free when this returns."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass

from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from appliance.engine.handle import Finished, PromptScored, Tokens
from appliance.errors import ApplianceError
from appliance.server.body import ClientGoneError
from appliance.server.choice import Choice
from appliance.server.metrics import Metrics
from appliance.server.problems import INTERNAL_MESSAGE, where
from appliance.server.run import Batch, Run, unless_gone
from appliance.server.writer import KEEP_ALIVE, AnswerWriter
from appliance.text.stream import Delta

log = logging.getLogger("appliance.server")

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An answer that only needs the engine."""

    run: Run
    choices: tuple[Choice, ...]
    writer: AnswerWriter
    metrics: Metrics
    model: str
    started: float
    keep_alive_s: float


class Answer(ASGIResponse):
    """The response of a generating route.

    The engine gets the requests inside the call, so that a refusal is a status and not an event, and leaves them in
    the same call's `finally`, whichever of client, engine and server ends it.
    """

    def __init__(self, job: Job, *, stream: bool) -> None:
        super().__init__()
        self._job = job
        self._is_stream = stream
        self._waits_for_first = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the answer. Errors before the first byte are raised."""
        run = self._job.run
        try:
            run.submit()
            if self._is_stream:
                await send({"type": "http.response.start", "status": 200, "headers": list(STREAM_HEADERS)})
                await unless_gone(self._stream(send), receive)
            else:
                body = await unless_gone(self._collect(), receive)
                headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                await send({"type": "http.response.body", "body": body, "more_body": False})
        except (ClientGoneError, OSError):
            self._note(scope, "gone")
        else:
            self._note(scope, self._job.choices[0].finish_reason or "error")
        finally:
            run.close()

    async def _stream(self, send: Send) -> None:
        job = self._job
        try:
            await self._events(send)
            last = job.writer.closing(job.choices)
        except ApplianceError as error:
            last = job.writer.failure(error, job.choices)
        except OSError:
            raise
        except Exception as error:
            log.error("event=internal_error error=%s where=%s", type(error).__name__, where(error))
            last = job.writer.failure(ApplianceError(INTERNAL_MESSAGE), job.choices)
        await send({"type": "http.response.body", "body": last, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self, send: Send) -> None:
        job, writer = self._job, self._job.writer
        out = writer.opening(job.choices)
        sent_at = time.monotonic()
        while True:
            if not out and time.monotonic() - sent_at >= job.keep_alive_s:
                out = KEEP_ALIVE
            if out:
                await send({"type": "http.response.body", "body": out, "more_body": True})
                sent_at = time.monotonic()
            if all(choice.ended for choice in job.choices):
                return
            batch = await job.run.step(max(0.0, sent_at + job.keep_alive_s - time.monotonic()))
            parts: list[bytes] = []
            try:
                parts.extend(self._encoded(choice, event, deltas) for choice, event, deltas in self._taken(batch))
            except ApplianceError:
                await send({"type": "http.response.body", "body": b"".join(parts), "more_body": True})
                raise
            out = b"".join(parts)

    def _encoded(self, choice: Choice, event: object, deltas: tuple[Delta, ...]) -> bytes:
        writer = self._job.writer
        if isinstance(event, PromptScored):
            return writer.prompt(choice)
        text = writer.deltas(choice, deltas) if deltas else b""
        return text + writer.ending(choice) if isinstance(event, Finished) else text

    async def _collect(self) -> bytes:
        job = self._job
        deltas: list[list[Delta]] = [[] for _ in job.choices]
        while not all(choice.ended for choice in job.choices):
            batch = await job.run.step(job.keep_alive_s)
            for choice, _, new in self._taken(batch):
                deltas[choice.index] += new
        return job.writer.whole(job.choices, deltas)

    def _taken(self, batch: Batch) -> Iterator[tuple[Choice, object, tuple[Delta, ...]]]:
        """Feeds events to their choices; a matched stop string ends its request."""
        job = self._job
        for index, event in batch:
            choice = job.choices[index]
            if choice.ended:
                continue
            if self._waits_for_first and isinstance(event, Tokens):
                self._waits_for_first = False
                job.metrics.first_token(job.model, time.monotonic() - job.started)
            stopped = choice.parser.stopped
            deltas = choice.take(event)
            if choice.parser.stopped and not stopped and not choice.ended:
                job.run.cancel(index)
            yield choice, event, deltas

    def _note(self, scope: Scope, finish: str) -> None:
        """Numbers for the request's log line; never text."""
        job = self._job
        job.metrics.finished(job.model, time.monotonic() - job.started)
        prompt = sum(choice.usage.prompt_tokens for choice in job.choices)
        completion = sum(choice.usage.completion_tokens or choice.parser.kept_tokens for choice in job.choices)
        scope["state"]["log"] = (
            f" prompt_tokens={prompt} completion_tokens={completion} choices={len(job.choices)} finish={finish}"
        )
