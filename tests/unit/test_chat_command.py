"""`strata chat` and `strata health` in front of a server that is played by a table of answers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from appliance.chat import DIM, Chat, run, wait_until_ready
from appliance.client import Client, Message, base_url
from appliance.errors import (
    AddressError,
    ApplianceError,
    EngineFault,
    ExitCode,
    NotReadyError,
    RequestError,
    UsageError,
)

Handler = Callable[[httpx.Request], httpx.Response]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def event(**delta: object) -> str:
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}\n\n"


def streaming(*events: str) -> Handler:
    return lambda request: httpx.Response(200, text="".join(events) + "data: [DONE]\n\n")


def client(handler: Handler, key: str | None = None) -> Client:
    return Client("http://127.0.0.1:1/v1", key=key, transport=httpx.MockTransport(handler))


def chat(handler: Handler, out: io.StringIO | None = None) -> Chat:
    return Chat(client(handler), "m", out=out or io.StringIO())


def test_an_answer_comes_as_it_is_said_and_is_remembered() -> None:
    bodies: list[dict[str, object]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return streaming(": keep-alive\n\n", event(role="assistant"), event(content="Hel"), event(content="lo"))(
            request
        )

    talk = chat(answer)
    talk.answer("hi")
    talk.answer("again")
    assert talk.out.getvalue() == "Hello\nHello\n"  # type: ignore[attr-defined]
    assert [message["content"] for message in bodies[1]["messages"]] == ["hi", "Hello", "again"]  # type: ignore[attr-defined]
    assert "chat_template_kwargs" not in bodies[0]


@pytest.mark.parametrize(("out", "dimmed"), [(Terminal(), True), (io.StringIO(), False)], ids=["terminal", "pipe"])
def test_reasoning_is_apart_and_dim_on_a_terminal_alone(out: io.StringIO, dimmed: bool) -> None:
    chat(streaming(event(reasoning_content="hm"), event(content="yes")), out).answer("?")
    assert (DIM in out.getvalue()) is dimmed
    assert "hm" in out.getvalue()
    assert out.getvalue().endswith("yes\n")


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = chat(streaming())
    pieces = talk.client.chat

    def interrupted(*arguments: object, **more: object) -> Iterator[object]:
        yield from pieces([], model="m")
        from appliance.client import Piece

        yield Piece("content", "half")
        raise KeyboardInterrupt

    monkeypatch.setattr(talk.client, "chat", interrupted)
    talk.answer("hi")
    assert talk.out.getvalue() == "half [stopped]\n"  # type: ignore[attr-defined]
    assert talk.messages[-1].content == "half"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, UsageError), (403, UsageError), (400, RequestError), (503, NotReadyError), (429, NotReadyError)],
)
def test_refusals_keep_the_servers_sentence(status: int, kind: type[ApplianceError]) -> None:
    talk = chat(lambda request: httpx.Response(status, json={"error": {"message": "because"}}))
    with pytest.raises(kind, match="because") as caught:
        talk.answer("hi")
    assert talk.messages == []
    assert (caught.value.exit_code == ExitCode.USAGE) == (status < 429)


def test_an_error_in_the_stream_is_not_an_answer() -> None:
    with pytest.raises(EngineFault, match="broke"):
        chat(streaming('data: {"error": {"message": "broke"}}\n\n')).answer("hi")


def test_the_key_goes_in_the_header() -> None:
    seen: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("authorization"))
        return httpx.Response(200, json={"data": [{"id": "a"}, {"id": "b"}]})

    assert client(answer, "k").models() == ["a", "b"]
    client(answer).models()
    assert seen == ["Bearer k", None]


def test_waits_while_the_server_loads() -> None:
    """CTR-09"""
    answers = iter(
        [
            (503, {"stage": "loading", "percent": 5}),
            (503, {"stage": "loading", "percent": 5}),
            (200, {"stage": "ready"}),
        ]
    )

    def answer(request: httpx.Request) -> httpx.Response:
        status, body = next(answers)
        return httpx.Response(status, json=body)

    told = io.StringIO()
    wait_until_ready(client(answer), tell=told, sleep=lambda seconds: None)
    assert told.getvalue() == "not ready: loading (5 %)\n"


def test_a_pipe_is_one_question() -> None:
    bodies: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(request.content)
        return streaming(event(content="ok"))(request)

    run(chat(answer), source=io.StringIO("line one\nline two\n"), first=None)
    run(chat(answer), source=io.StringIO("  \n"), first=None)
    run(chat(answer), source=io.StringIO(""), first="from the command line")
    assert [json.loads(body)["messages"][0]["content"] for body in bodies] == [
        "line one\nline two",
        "from the command line",
    ]


def test_a_terminal_is_a_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter(["hi", "", "/new", "hi", "/exit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    talk = chat(streaming(event(content="ok")))
    run(talk, source=Terminal(), first=None)
    assert [message.content for message in talk.messages] == ["hi", "ok"]


def test_addresses() -> None:
    assert base_url("0.0.0.0", 1) == "http://127.0.0.1:1"
    assert base_url("::", 1) == "http://[::1]:1"
    assert base_url("office", 1) == "http://office:1"

    def refused(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(AddressError, match="nothing answers"):
        client(refused).readiness()


KEYS = [
    ("line break", "sk-a\n", True),
    ("Windows", "sk-a\r\n", True),
    ("umlaut", "schlüssel", False),
    ("two", "a b", False),
]


@pytest.mark.parametrize(("key", "fits"), [row[1:] for row in KEYS], ids=[row[0] for row in KEYS])
def test_a_key_as_it_comes_out_of_a_file(key, fits):
    seen = []

    def answer(request):
        seen.append(request.headers["Authorization"])
        return httpx.Response(200, json={"stage": "ready"})

    transport = httpx.MockTransport(answer)
    if not fits:
        with pytest.raises(UsageError, match="API key holds letters") as caught:
            Client("http://127.0.0.1:1", key=key, transport=transport)
        assert key not in str(caught.value)
        return
    with Client("http://127.0.0.1:1", key=key, transport=transport) as client:
        assert client.readiness()[0]
    assert seen == ["Bearer sk-a"]


def test_a_message_that_is_not_utf_8_is_refused():
    transport = httpx.MockTransport(lambda _: httpx.Response(200))
    with Client("http://127.0.0.1:1", transport=transport) as client, pytest.raises(UsageError, match="not UTF-8"):
        list(client.chat([Message("user", "\udcff")], model="m"))
