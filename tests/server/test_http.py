"""Bodies, methods and routes through the real stack (API-10, API-11, SEC-08); the gates before ready (CTR-09)."""

from __future__ import annotations

import contextlib
import json
import logging
import socket

import pytest

from appliance.server.backend import Readiness
from appliance.server.body import body_limit_bytes
from tests.builders.fake_engine import FakeEngine, say
from tests.builders.live_server import FakeBackend, ids, live, raw_request

LIMIT = 100_000
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def server():
    with live(FakeEngine(say(ids("Hello there."))), body_limit_bytes=LIMIT, body_idle_s=0.2) as running:
        yield running


def answers(raw: bytes) -> list[tuple[int, dict]]:
    """Every response in the bytes."""
    found = []
    while raw:
        head, _, rest = raw.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in lines[1:])
        size = int(fields[b"content-length"])
        found.append((int(lines[0].split()[1]), json.loads(rest[:size])))
        raw = rest[size:]
    return found


def talk(server, *parts: bytes, half_close: bool = False) -> list[tuple[int, dict]]:
    """Sends, then reads until the server closes or has nothing more to say."""
    with server.connect() as connection:
        for part in parts:
            connection.sendall(part)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        got = read_one(connection)
        connection.settimeout(0.1)  # a second answer would follow at once
        with contextlib.suppress(TimeoutError):
            while data := connection.recv(65536):
                got += data
        return answers(got)


def read_one(connection: socket.socket) -> bytes:
    """One whole response."""
    got = b""
    while b"\r\n\r\n" not in got:
        got += connection.recv(65536)
    size = int(got.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(got.partition(b"\r\n\r\n")[2]) < size:
        got += connection.recv(65536)
    return got


def padded(size: int) -> bytes:
    """A chat body of that many bytes."""
    empty = json.dumps({"messages": [{"role": "user", "content": ""}]}).encode()
    return empty.replace(b'"content": ""', b'"content": "%s"' % (b"a" * (size - len(empty))))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


BODY = json.dumps(HELLO).encode()
BODIES = {
    "chunked body": ([CHUNKED, chunk(BODY[:9]), chunk(BODY[9:]), b"0\r\n\r\n"], 200, None),
    "bad chunk size": ([CHUNKED, b"xyz\r\n"], 400, "invalid_http"),
    "content-length one too long, then silence": (
        [HEAD + b"Content-Length: %d\r\n\r\n" % (len(BODY) + 1), BODY], 400, "incomplete_body"),
    "two content-lengths": ([HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\naaaaaa"], 400, "invalid_http"),
    "not http": ([b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n"], 400, "invalid_http"),
    "one byte over the limit, announced": (
        [HEAD + b"Content-Length: %d\r\n\r\n" % (LIMIT + 1), padded(LIMIT + 1)], 413, "body_too_large"),
    "one byte over the limit, chunked": ([CHUNKED, chunk(padded(LIMIT + 1)), b"0\r\n\r\n"], 413, "body_too_large"),
    "announced 4 GiB": ([HEAD + b"Content-Length: 4294967296\r\n\r\n"], 413, "body_too_large"),
    "announced 4 GiB chunk": ([CHUNKED, b"100000000\r\n" + b"a" * (LIMIT + 1)], 413, "body_too_large"),
}  # fmt: skip
CUT = {
    "chunked, cut before the last chunk": [CHUNKED, chunk(BODY)],
    "content-length one too long": [HEAD + b"Content-Length: %d\r\n\r\n" % (len(BODY) + 1), BODY],
}


@pytest.mark.parametrize(("parts", "status", "code"), BODIES.values(), ids=BODIES.keys())
def test_api_11_bodies(server, parts, status, code):
    """API-11: one answer each, in the API's shape."""
    found = talk(server, *parts)
    assert [answer[0] for answer in found] == [status]
    if code:
        assert found[0][1]["error"]["code"] == code


def test_api_11_nonsense_after_a_body_that_was_too_large(server):
    """API-11: one answer, the 413."""
    with server.connect() as connection:
        connection.sendall(CHUNKED + chunk(padded(LIMIT + 1)))
        found = answers(read_one(connection))
        assert [(status, body["error"]["code"]) for status, body in found] == [(413, "body_too_large")]
        connection.settimeout(0.1)
        with contextlib.suppress(TimeoutError, ConnectionError):
            connection.sendall(b"nonsense\r\n")
            assert connection.recv(65536) == b""


@pytest.mark.parametrize("parts", CUT.values(), ids=CUT.keys())
def test_api_11_a_body_that_is_cut_short_is_400(server, parts):
    """API-11"""
    found = talk(server, *parts, half_close=True)
    assert [answer[0] for answer in found] == [400]
    assert found[0][1]["error"]["code"] == "invalid_http"


def test_api_11_exactly_the_limit_is_read(server):
    """API-11: then it is the context that is too short."""
    found = talk(server, HEAD + b"Content-Length: %d\r\n\r\n" % LIMIT, padded(LIMIT))
    assert [(status, body["error"]["code"]) for status, body in found] == [(400, "context_length_exceeded")]


@pytest.mark.parametrize("context", [4096, 262_144])
def test_api_11_the_default_limit_is_above_a_full_prompt(context):
    """API-11: every token as six escaped characters."""
    assert body_limit_bytes(context) > context * len("\\u00e4" * 6)


@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1"])
@pytest.mark.parametrize("announced", [True, False])
def test_api_11_a_proxy_that_closes_after_each_request_reads_the_413(server, version, announced):
    """API-11: the whole body is taken before the answer, so that the close does not reset it."""
    size = 3_000_000
    head = HEAD.replace(b"HTTP/1.1", version) + b"Connection: close\r\n"
    if version == b"HTTP/1.0" or announced:
        request = head + b"Content-Length: %d\r\n\r\n" % size + padded(size)
    else:
        request = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(padded(size)) + b"0\r\n\r\n"
    assert [status for status, _ in talk(server, request)] == [413]


@pytest.mark.parametrize(("path", "status"), [(b"/health", 200), (b"/ready", 200), (b"/v1/models", 200), (b"/x", 404)])
def test_head_is_get_without_a_body(server, path, status):
    with server.connect() as connection:
        connection.sendall(b"HEAD %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path)
        got = b""
        while data := connection.recv(65536):
            got += data
    head, _, body = got.partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    assert body == b""


def test_connection_lives_on_after_a_refused_body(server):
    with server.connect() as connection:
        connection.sendall(CHUNKED + chunk(padded(LIMIT + 1)) + b"0\r\n\r\n")
        first = read_one(connection)
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        second = read_one(connection)
    assert b" 413 " in first.split(b"\r\n")[0]
    assert b" 200 " in second.split(b"\r\n")[0]


WRONG = {
    "not json": (b"not json", "invalid_json", None),
    "empty": (b"", "invalid_json", None),
    "array": (b"[]", "invalid_json", None),
    "nan": (b'{"messages": [], "temperature": NaN}', "invalid_json", None),
    "not utf-8": (b'{"messages": "\xff"}', "invalid_json", None),
    "deep arrays": (b'{"messages": ' + b"[" * 100_000, "body_too_large", None),
    "deep": (b'{"messages": [' + b"[" * 40_000 + b"]" * 40_000 + b"]}", "invalid_json", None),
    "deep metadata": (b'{"metadata": ' + b'{"a":' * 15_000, "invalid_json", None),
    "bare deep": (b"[" * 50_000, "invalid_json", None),
    "messages text": (b'{"messages": "hi"}', "invalid_value", "messages"),
    "messages empty": (b'{"messages": []}', "invalid_value", "messages"),
    "messages missing": (b"{}", "missing_required_parameter", "messages"),
    "messages null": (b'{"messages": null}', "missing_required_parameter", "messages"),
}


@pytest.mark.parametrize(("body", "code", "param"), WRONG.values(), ids=WRONG.keys())
def test_api_10_sec_08_bodies_that_are_no_request(server, body, code, param):
    """API-10, SEC-08"""
    [(status, answer)] = talk(server, HEAD + b"Content-Length: %d\r\n\r\n" % len(body), body)
    assert status == (413 if code == "body_too_large" else 400)
    assert set(answer) == {"error"}
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert (answer["error"]["code"], answer["error"]["param"]) == (code, param)


ROUTES = {
    "get on a post route": (b"GET /v1/chat/completions", 405, "method_not_allowed"),
    "delete on a get route": (b"DELETE /v1/models", 405, "method_not_allowed"),
    "unknown route": (b"GET /v1/embeddings", 404, "not_found"),
    "root": (b"GET /", 404, "not_found"),
    "schema": (b"GET /schema", 404, "not_found"),
}


@pytest.mark.parametrize(("line", "status", "code"), ROUTES.values(), ids=ROUTES.keys())
def test_api_10_routes_and_methods(server, line, status, code):
    """API-10"""
    [(found, answer)] = talk(server, line + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (found, answer["error"]["code"]) == (status, code)
    assert {404: "address with /v1 at its end", 405: "; allowed: "}[status] in answer["error"]["message"]


def test_sec_08_no_prompt_text_in_the_log(server, caplog):
    """SEC-08: whether the request is answered, refused or breaks something inside."""
    word = "MARKERWORD"
    bodies = [
        HELLO | {"messages": [{"role": "user", "content": word}]},
        {"messages": [{"role": word, "content": word}]},
        {"messages": [{"role": "user", "content": word}], word: word},
        {"messages": [{"role": "user", "content": [{"type": word}]}]},
        {"messages": word},
        HELLO | {"model": word},
        HELLO | {"stop": word},
    ]
    with caplog.at_level(logging.INFO):
        for body in bodies:
            talk(server, raw_request(body))
        talk(server, HEAD + b"Content-Length: 20\r\n\r\n", b'{"MARKERWORD": bad  ')
    assert word not in caplog.text
    assert caplog.text.count("event=request") >= len(bodies)


def test_sec_08_an_unexpected_problem_tells_nothing(caplog):
    """SEC-08, API-10: the type and place are logged, the text is not."""

    class Broken(FakeBackend):
        def sampling_defaults(self):
            raise ValueError("MARKERWORD secret")

    engine = FakeEngine(say([5]))
    with live(engine, backend=Broken(engine)) as server, caplog.at_level(logging.DEBUG):
        [(status, answer)] = talk(server, raw_request(HELLO))
    assert (status, answer["error"]["code"], answer["error"]["type"]) == (500, "internal_error", "server_error")
    assert "MARKERWORD" not in caplog.text + json.dumps(answer)
    assert "error=ValueError" in caplog.text


def test_sec_08_a_body_of_one_50_mb_string_is_refused_and_the_server_lives(server):
    """SEC-08"""
    size = 50_000_000
    with server.connect() as connection:
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % size)
        connection.sendall(b'{"messages": "' + b"a" * (size - 14))
        [(status, _)] = answers(read_one(connection))
    assert status == 413
    assert talk(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") == [(200, {"status": "ok"})]


STATES = {
    "loading": Readiness(stage="loading the model", percent=40, ready=False, device="cpu"),
    "draining": Readiness(stage="draining", percent=100, ready=False, device="cpu"),
    "fault": Readiness(stage="ready", percent=100, ready=False, device="cpu", fault="the card fell off the bus"),
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES.keys())
def test_ctr_09_alive_but_not_ready(state):
    """CTR-09: liveness answers at once, everything else says 503 in the API's shape and when to come back."""
    backend = FakeBackend(FakeEngine(say([5])), state=state, loaded=state.stage != "loading the model")
    with live(backend.fake, backend=backend) as server:
        get = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"
        assert talk(server, get % b"/health")[0][0] == 200
        status, ready = talk(server, get % b"/ready")[0]
        assert (status, ready["ready"], ready["percent"]) == (503, False, state.percent)
        assert "fell off" not in json.dumps(ready)
        requests = [get % b"/v1/models", get % b"/v1/models/strata-tiny", raw_request(HELLO),
                    raw_request({"prompt": "a"}, path="/v1/completions")]  # fmt: skip
        for request in requests:
            with server.connect() as connection:
                connection.sendall(request)
                answer = read_one(connection)
            assert b" 503 " in answer.split(b"\r\n")[0]
            assert b"retry-after: " in answer.lower()
            assert answers(answer)[0][1]["error"]["code"] == "not_ready"
        status, body = talk(server, get % b"/v1/status")[0]
        assert status == (503 if state.stage == "loading the model" else 200)
        if state.fault:
            assert body["last_fault"] == state.fault


def test_api_10_a_packed_body_is_415(server):
    """API-10: not read as if it were plain, nor called broken JSON."""
    with server.connect() as connection:
        connection.sendall(raw_request(HELLO, headers="Content-Encoding: gzip\r\nConnection: close\r\n"))
        got = b""
        while data := connection.recv(65536):
            got += data
    assert got.startswith(b"HTTP/1.1 415 ")
    assert b"without content-encoding" in got


def test_an_offer_of_http_2_is_answered_and_not_logged(server, caplog):
    """Java and `curl --http2` send it with every request."""
    offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    with server.connect() as connection, caplog.at_level(logging.WARNING):
        connection.sendall(f"GET /health HTTP/1.1\r\nHost: localhost\r\n{offer}\r\n".encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert not caplog.records
