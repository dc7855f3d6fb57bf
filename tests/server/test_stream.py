"""What a stream consists of, how it stays alive, and how it ends (STR-07, STR-10, STR-11, SPEC-12, SPEC-13)."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from appliance.engine.handle import FinishReason
from appliance.errors import EngineFault, RequestError
from tests.builders.fake_engine import FakeEngine, endless, hold, say
from tests.builders.live_server import ids, live, pieces
from tests.server.asking import USER, Chat, events_of, finish_of, joined

CALL = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
HELLO = {"messages": [USER], "stream": True}

ENDINGS = {
    "normal": (say(*pieces("Hi there.")), {}, "stop", "Hi there."),
    "length": (say(*pieces("Hi there.")), {"max_tokens": 1}, "length", None),
    "stop string": (say(ids("Hi there.")), {"stop": " there"}, "stop", "Hi"),
    "tool call": (say(*pieces(CALL)), {"tools": [TOOL]}, "tool_calls", ""),
    "nothing at all": (say(), {}, "stop", ""),
    "cut by the server": (say(ids("Hi"), reason=FinishReason.CANCELLED), {}, "length", "Hi"),
}


@pytest.mark.parametrize("include", [True, False, None])
@pytest.mark.parametrize(("script", "fields", "finish", "text"), ENDINGS.values(), ids=ENDINGS.keys())
def test_str_10_final_chunk_contract(script, fields, finish, text, include):
    """STR-10"""
    options = {} if include is None else {"stream_options": {"include_usage": include}}
    events = Chat(script).stream(**fields, **options)
    assert len({(event["id"], event["model"], event["created"], event["object"]) for event in events}) == 1
    assert events[0]["object"] == "chat.completion.chunk"
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert ["role" in event["choices"][0]["delta"] for event in events if event["choices"]].count(True) == 1
    assert finish_of([event for event in events if event["choices"]]) == finish
    if text is not None:
        assert joined(events, "content") == text
    if include:
        assert events[-1]["choices"] == []
        assert events[-1]["usage"] == Chat(script).ask(**fields).json()["usage"]
        assert all(event["usage"] is None for event in events[:-1])
    else:
        assert all(event["choices"] and "usage" not in event for event in events)


def test_headers_keep_proxies_from_buffering():
    answer = Chat().ask(stream=True)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["cache-control"] == "no-cache"


class Quiet:
    """Lines of a stream until enough keep-alive comments came."""

    def __init__(self, server, body, comments=3):
        self.before: list[str] = []
        with (
            httpx.Client(base_url=server.url, timeout=10) as client,
            client.stream("POST", "/v1/chat/completions", json=body) as answer,
        ):
            assert answer.status_code == 200
            for line in answer.iter_lines():
                self.before.append(line)
                if self.before.count(": keep-alive") == comments:
                    server.call(server.engine.release)
                    comments = -1
            self.events = [json.loads(line[6:]) for line in self.before if line.startswith("data: {")]


async def in_a_call(stream):
    """A call that takes its time: tokens come, but nothing that can be shown yet."""
    stream.tokens(*ids("<tool_call>\n<function=f>\n<parameter=a>\n"))
    waiting = asyncio.ensure_future(stream.engine.released())
    while not waiting.done():
        stream.tokens(*ids("1"))
        await asyncio.wait((waiting,), timeout=0.01)
    stream.tokens(*ids("\n</parameter>\n</function>\n</tool_call>"))
    stream.finish()


SILENCES = {"reading": hold(), "between tokens": hold(ids("Hi")), "inside a tool call": in_a_call}


@pytest.mark.parametrize("script", SILENCES.values(), ids=SILENCES.keys())
def test_str_07_silence_is_filled_with_comments(script):
    """STR-07: at most `keep_alive_s` (10 s as shipped) between two signs of life."""
    with live(FakeEngine(script), keep_alive_s=0.03) as server:
        quiet = Quiet(server, HELLO | {"tools": [TOOL]})
    assert quiet.before.count(": keep-alive") >= 3
    assert finish_of(quiet.events) in ("stop", "tool_calls")


def test_str_07_spec_12_waiting_in_the_queue_is_filled_too():
    """STR-07, SPEC-12"""
    with live(FakeEngine(hold(), slots=1), keep_alive_s=0.03) as server, httpx.Client(base_url=server.url) as client:
        with client.stream("POST", "/v1/chat/completions", json=HELLO):
            server.engine.wait_until(lambda engine: engine.running)
            quiet = Quiet(server, HELLO)
        assert quiet.before.count(": keep-alive") >= 3


def test_str_07_the_shipped_interval_is_below_15_seconds():
    """STR-07"""
    from appliance.server.backend import ServerConfig

    assert ServerConfig().keep_alive_s <= 15


def test_spec_12_more_users_than_slots():
    """SPEC-12: served in order; beyond the queue 429 with Retry-After at once; the status shows the queue."""
    with live(FakeEngine(hold(ids("Hi")), slots=2, queue_limit=3)) as server:

        async def main():
            async with httpx.AsyncClient(base_url=server.url, timeout=10) as client:
                tasks = []
                for number in range(5):
                    tasks.append(asyncio.create_task(client.post("/v1/chat/completions", json=HELLO)))
                    await asyncio.to_thread(
                        server.engine.wait_until, lambda engine, wanted=number + 1: len(engine.requests) == wanted
                    )
                refused = [
                    await client.post("/v1/chat/completions", json=HELLO | {"stream": stream})
                    for stream in (True, False)
                ]
                status = (await client.get("/v1/status")).json()
                server.call(server.engine.release)
                return refused, status, await asyncio.gather(*tasks)

        refused, status, served = asyncio.run(main())
    for answer in refused:
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) > 0
        assert answer.json()["error"]["code"] == "queue_full"
        assert answer.json()["error"]["type"] == "rate_limit_error"
    assert (status["queue"]["waiting"], status["queue"]["limit"]) == (3, 3)
    assert [slot["state"] for slot in status["slots"]] == ["decoding", "decoding"]
    assert [finish_of(events_of(answer)) for answer in served] == ["stop"] * 5


def test_spec_13_one_bad_request_blocks_nobody():
    """SPEC-13: 1 fails with its reason, 2 starts, 3 goes on; nothing is cancelled; a fault is told from a refusal."""

    async def script(stream):
        if stream.request.max_tokens == 7:
            stream.finish(
                FinishReason.ERROR, error="token id 9000 is outside the vocabulary", error_code="invalid_request"
            )
        else:
            await hold(ids("Hi"))(stream)

    with (
        live(FakeEngine(script, slots=2)) as server,
        httpx.Client(base_url=server.url, timeout=10) as client,
        client.stream("POST", "/v1/chat/completions", json=HELLO) as third,
    ):
        server.engine.wait_until(lambda engine: engine.running)
        bad = client.post("/v1/chat/completions", json=HELLO | {"stream": False, "max_tokens": 7})
        streamed = client.post("/v1/chat/completions", json=HELLO | {"max_tokens": 7})
        with client.stream("POST", "/v1/chat/completions", json=HELLO) as second:
            server.engine.wait_until(lambda engine: len(engine.running) == 2)
            server.call(server.engine.release)
            assert "[DONE]" in "".join(second.iter_text())
        assert "[DONE]" in "".join(third.iter_text())
    assert bad.status_code == 400
    assert "outside the vocabulary" in bad.json()["error"]["message"]
    assert "outside the vocabulary" in streamed.text
    assert "engine_fault" not in streamed.text
    assert not server.engine.cancels


def test_spec_13_a_refusal_at_submit_is_a_status():
    """SPEC-13"""
    chat = Chat(refusal=RequestError("token id 9000 is outside the vocabulary", param="prompt"))
    for stream in (True, False):
        answer = chat.ask(stream=stream)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


async def dies(stream):
    stream.tokens(*ids("Hi"))
    stream.engine.last_fault = "CUDA error 700 at 0xdeadbeef"
    stream.finish(FinishReason.ERROR, error="CUDA error 700 at 0xdeadbeef", fatal=True)


async def breaks_off(stream):
    stream.tokens(*ids("Hi"))
    stream.ended = True
    stream.emit(None)


async def falls_silent(stream):
    stream.tokens(*ids("Hi"))


FAULTS = {"exits in mid-answer": dies, "answers garbage": breaks_off, "falls silent": falls_silent}


@pytest.mark.parametrize("script", FAULTS.values(), ids=FAULTS.keys())
def test_str_11_the_engine_dies_in_mid_answer(script):
    """STR-11: an error event and the end for the stream, 503 for who waits, nothing internal told."""
    with (
        live(FakeEngine(script), watchdog_s=0.1, watchdog_token_s=0.0, keep_alive_s=0.02) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        answer = client.post("/v1/chat/completions", json=HELLO)
        whole = client.post("/v1/chat/completions", json=HELLO | {"stream": False})
        status = client.get("/v1/status").json()
    events = events_of(answer)
    assert joined(events[:-1], "content") == "Hi"
    assert events[-1]["error"]["code"] == "engine_fault"
    assert finish_of(events) == "error"
    assert whole.status_code == 503
    assert int(whole.headers["retry-after"]) > 0
    assert "0xdeadbeef" not in answer.text + whole.text
    if script is dies:
        assert "700" in status["last_fault"]
    if script is falls_silent:
        assert server.backend.silences
        assert "silent" in server.backend.silences[0]


def test_str_11_silence_while_others_are_served_is_no_fault():
    """STR-11: a long queue is not a dead engine."""

    def script(stream):
        return endless(ids(" a")[0])(stream) if len(stream.engine.requests) == 1 else hold()(stream)

    with (
        live(FakeEngine(script), watchdog_s=0.1, watchdog_token_s=0.0, keep_alive_s=0.02) as server,
        httpx.Client(base_url=server.url) as client,
        client.stream("POST", "/v1/chat/completions", json=HELLO) as busy,
    ):
        lines = busy.iter_lines()
        next(lines)
        quiet = Quiet(server, HELLO, comments=15)
        assert next(lines) is not None
    assert finish_of(quiet.events) == "stop"
    assert not server.backend.silences


def test_str_11_a_stop_that_is_never_acknowledged_ends_the_answer_all_the_same(monkeypatch):
    """STR-11"""
    monkeypatch.setattr("appliance.server.run.CANCEL_ACK_S", 0.05)
    events = Chat(hold(ids("Hi there.")), deaf=True).stream(stop="there")
    assert (joined(events, "content"), finish_of(events)) == ("Hi ", "stop")


def test_str_11_waiters_get_503_once_the_engine_is_lost():
    """STR-11"""
    answer = Chat(refusal=EngineFault("the engine is lost")).ask(stream=True)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_fault")
    assert "retry-after" in answer.headers
