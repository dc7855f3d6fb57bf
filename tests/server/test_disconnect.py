"""A client that leaves frees its slot within a second in every state (STR-01, STR-02, STR-04, STR-05, STR-12)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import struct

import pytest

from appliance.server.protocol import ApiProtocol
from appliance.server.run import Run, unless_gone
from appliance.server.sse import Answer
from tests.builders.fake_engine import FakeEngine, endless, hold, say
from tests.builders.live_server import ids, live, raw_request

HELLO = {"messages": [{"role": "user", "content": "hello"}]}
WITHIN_S = 1.0
WORD = ids(" the")[0]


def reset(connection: socket.socket) -> None:
    """Closes with RST, as a killed program does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def read_until(connection: socket.socket, mark: bytes, count: int = 1) -> bytes:
    got = b""
    while got.count(mark) < count:
        data = connection.recv(65536)
        assert data, got
        got += data
    return got


LEAVING = {"closed": socket.socket.close, "reset": reset}
BODIES = {
    "chat stream": ("/v1/chat/completions", HELLO | {"stream": True, "max_tokens": 4000}),
    "chat whole": ("/v1/chat/completions", HELLO | {"max_tokens": 4000}),
    "chat n": ("/v1/chat/completions", HELLO | {"max_tokens": 4000, "n": 2}),
    "completion stream": ("/v1/completions", {"prompt": "once", "stream": True, "max_tokens": 4000}),
    "completion whole": ("/v1/completions", {"prompt": ["once", "twice"], "max_tokens": 4000}),
}


@pytest.mark.parametrize("leave", LEAVING.values(), ids=LEAVING.keys())
@pytest.mark.parametrize(("path", "body"), BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("script", [endless(WORD), hold()], ids=["decoding", "reading"])
def test_str_01_02_04_leaving_frees_the_slot_and_the_next_starts(path, body, leave, script):
    """STR-01, STR-02, STR-04: while tokens come and while the prompt is read, streamed and whole."""
    with live(FakeEngine(script, slots=2)) as server:
        connection = server.connect()
        connection.sendall(raw_request(body, path=path))
        server.engine.wait_until(lambda engine: engine.running)
        if body.get("stream"):
            read_until(connection, b"\r\n\r\n")
        leave(connection)
        server.engine.wait_until(lambda engine: not engine.running and engine.cancels, within_s=WITHIN_S)


def test_str_01_the_queued_request_starts_and_a_queued_one_may_leave():
    """STR-01, SPEC-12: first decodes, second leaves the queue, third starts when the first leaves."""
    with live(FakeEngine(endless(WORD), slots=1)) as server:
        connections = []
        for number in range(3):
            connections.append(server.connect())
            connections[-1].sendall(raw_request(HELLO | {"stream": True}))
            server.engine.wait_until(lambda engine, wanted=number + 1: len(engine.requests) == wanted)
        connections[1].close()
        server.engine.wait_until(lambda engine: len(engine.waiting) == 1, within_s=WITHIN_S)
        connections[0].close()
        third = server.engine.requests[2].id
        server.engine.wait_until(lambda engine: [s.request_id for s in engine.running] == [third], within_s=WITHIN_S)
        read_until(connections[2], b"data: ", 5)
        connections[2].close()


def test_str_01_through_a_proxy_that_closes_its_side():
    """STR-01: the proxy closes its connection to us when its client leaves."""
    with live(FakeEngine(endless(WORD))) as server, socket.create_server(("127.0.0.1", 0)) as front:
        client = socket.create_connection(front.getsockname(), timeout=10)
        incoming, _ = front.accept()
        upstream = server.connect()
        client.sendall(raw_request(HELLO | {"stream": True}))
        upstream.sendall(incoming.recv(65536))
        incoming.sendall(read_until(upstream, b"data: ", 5))
        read_until(client, b"data: ", 3)
        client.close()
        upstream.close()
        incoming.close()
        server.engine.wait_until(lambda engine: not engine.running and engine.cancels, within_s=WITHIN_S)


def test_str_05_300_resets_leave_nothing_behind():
    """STR-05"""
    with live(FakeEngine(endless(WORD))) as server:
        request = raw_request(HELLO | {"stream": True})
        for _ in range(300):
            connection = server.connect()
            connection.sendall(request)
            read_until(connection, b"data: ")
            reset(connection)
        server.engine.wait_until(lambda engine: not engine.running and not engine.waiting, within_s=WITHIN_S)
        left: list[int] = []
        done = asyncio.Event()

        async def count() -> None:
            for _ in range(10):
                await asyncio.sleep(0)
            gc.collect()
            left.append(sum("_pump" in repr(task) or "run_asgi" in repr(task) for task in asyncio.all_tasks()))
            left.append(sum(isinstance(thing, Run | Answer) for thing in gc.get_objects()))
            done.set()

        asyncio.run_coroutine_threadsafe(count(), server.loop).result(10)
    assert left[0] == 0
    assert left[1] <= 2


@pytest.mark.parametrize("fails", ["send", "first await", "iterator"])
def test_str_05_failures_inside_still_cancel(fails):
    """STR-05: whatever breaks, the streams are cancelled by the frame that submitted them."""
    cancelled = []

    class Stream:
        request_id = "a-0"

        def __aiter__(self):
            return self

        async def __anext__(self):
            if fails == "iterator":
                raise RuntimeError("broken")
            await asyncio.Event().wait()

        def cancel(self):
            cancelled.append(True)

    async def main():
        from tests.server.asking import Chat

        chat = Chat()
        chat.engine.submit = lambda request: Stream()
        scope_body = json.dumps(HELLO | {"stream": True}).encode()
        received = [{"type": "http.request", "body": scope_body, "more_body": False}]
        sent = []

        async def receive():
            if received:
                return received.pop()
            if fails == "first await":
                return {"type": "http.disconnect"}
            return await asyncio.Event().wait()

        async def send(message):
            sent.append(message)
            if fails == "send" and message["type"] == "http.response.body":
                raise OSError("gone")

        scope = {
            "type": "http", "method": "POST", "path": "/v1/chat/completions", "raw_path": b"/v1/chat/completions",
            "query_string": b"", "headers": [(b"content-type", b"application/json")], "http_version": "1.1",
            "scheme": "http", "server": ("127.0.0.1", 1), "client": ("127.0.0.1", 2), "root_path": "",
        }  # fmt: skip
        async with asyncio.timeout(10):
            await chat.client().app(scope, receive, send)
        return sent

    sent = asyncio.run(main())
    assert cancelled
    if fails == "iterator":
        assert b'"error"' in b"".join(message.get("body", b"") for message in sent)


def test_str_05_work_that_never_started_is_cancelled():
    """STR-05: the client is gone before the first step."""

    async def main():
        started = []

        async def work():
            started.append(True)
            await asyncio.Event().wait()

        async def receive():
            return {"type": "http.disconnect"}

        with contextlib.suppress(Exception):
            await unless_gone(work(), receive)
        return len(asyncio.all_tasks())

    assert asyncio.run(main()) == 1


def test_str_12_no_word_of_a_closed_stream_reaches_the_next():
    """STR-12: 200 times, next to a second stream."""

    def script(stream):
        marker = ids(f" {stream.engine.requests.index(stream.request) % 10}")[-1]
        return endless(marker)(stream)

    with live(FakeEngine(script, slots=2)) as server:
        beside = server.connect()
        beside.sendall(raw_request(HELLO | {"stream": True}))
        read_until(beside, b"data: ", 3)
        for number in range(1, 201):
            connection = server.connect()
            connection.sendall(raw_request(HELLO | {"stream": True}))
            got = read_until(connection, b'"content":"', 4)
            reset(connection)
            words = {part.partition(b'"')[0].strip() for part in got.split(b'"content":"')[1:-1]} - {b""}
            assert words == {b"%d" % (number % 10)}
        own = read_until(beside, b"data: ", 50)
        assert {part.partition(b'"')[0].strip() for part in own.split(b'"content":"')[1:-1]} <= {b"0", b""}
        beside.close()


def test_str_12_an_event_of_another_request_ends_the_stream_with_an_error():
    """STR-12, STR-11: events carry a request id that is checked."""
    from appliance.engine.handle import Tokens

    async def script(stream):
        stream.emit(Tokens(request_id="another", ids=(WORD,)))
        await stream.engine.released()

    with live(FakeEngine(script)) as server:
        connection = server.connect()
        connection.sendall(raw_request(HELLO | {"stream": True}))
        got = read_until(connection, b"[DONE]")
        assert b'"code":"engine_fault"' in got
        server.engine.wait_until(lambda engine: engine.cancels, within_s=WITHIN_S)
        connection.close()


def test_a_finished_answer_is_not_cancelled():
    with live(FakeEngine(say(ids("Hi.")))) as server:
        connection = server.connect()
        connection.sendall(raw_request(HELLO | {"stream": True}))
        read_until(connection, b"[DONE]")
        connection.close()
        server.engine.wait_until(lambda engine: not engine.running)
        assert not server.engine.cancels


@pytest.mark.parametrize("is_early", [True, False], ids=["at once", "while the first is answered"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_str_01_a_client_that_asked_for_more_and_left(stream, is_early):
    """STR-01: a second request that waits behind the first does not hide that its sender is gone."""
    with live(FakeEngine(hold(), slots=1)) as server:
        connection = server.connect()
        second = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        first = raw_request(HELLO | {"stream": stream})
        connection.sendall(first + second if is_early else first)
        server.engine.wait_until(lambda engine: engine.running)
        if not is_early:
            connection.sendall(second)
            assert server.connect().close() is None
        connection.close()
        server.engine.wait_until(lambda engine: not engine.running and engine.cancels, within_s=WITHIN_S)


@pytest.mark.parametrize("said", [b"", b"GET /health HTTP/1.1\r\nHost: loc"], ids=["nothing", "half a header"])
def test_str_12_a_connection_without_a_request_is_closed(said, monkeypatch):
    """STR-12: whoever never asks, or a byte at a time, holds no connection for ever; who asks in time is answered."""
    monkeypatch.setattr(ApiProtocol, "header_s", 0.3)
    with live(FakeEngine(say([WORD]))) as server:
        slow, quick = server.connect(), server.connect()
        slow.sendall(said)
        quick.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_until(quick, b'"ok"')
        assert slow.recv(100) == b""
        slow.close()
        quick.close()
