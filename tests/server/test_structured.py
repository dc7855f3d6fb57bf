"""Structured output is not offered: whatever asks for it is told so at once, and nobody else waits (JSON-*)."""

from __future__ import annotations

import time

import pytest

from tests.server.asking import Chat


def named(schema, **more):
    """As clients send a schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


def nested(depth):
    """Objects in objects."""
    schema = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ITSELF = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
ASKED = [
    pytest.param(named(CITY), {}, id="JSON-01 with thinking"),
    pytest.param(named(CITY, strict=True), {"reasoning_effort": "high"}, id="JSON-01 strict"),
    pytest.param(named(CITY), {"reasoning_effort": "none"}, id="JSON-02 without thinking"),
    pytest.param({"type": "json_object"}, {"chat_template_kwargs": {"enable_thinking": False}}, id="JSON-02 object"),
    pytest.param({"type": "json_object"}, {}, id="JSON-03 white space"),
    pytest.param(named(CITY), {"max_tokens": 20}, id="JSON-04 cut off"),
    pytest.param(named(ITSELF), {}, id="JSON-05 refers to itself"),
    pytest.param(named(nested(200)), {}, id="JSON-05 nested"),
    pytest.param(named({"type": "string", "pattern": "*" + "(" * 10000}), {}, id="JSON-05 pattern"),
    pytest.param(named({"type": "array", "maxItems": 10**9}), {}, id="JSON-05 huge count"),
    pytest.param(named({"enum": ["x" * 1000] * 2000}), {}, id="JSON-05 two megabytes"),
    pytest.param(named({"$ref": "http://127.0.0.1:9/schema"}), {}, id="JSON-05 a schema elsewhere"),
    pytest.param(named({"$ref": "file:///etc/passwd"}), {}, id="JSON-05 a file"),
    pytest.param(named({"type": "array"}), {"tools": []}, id="JSON-06 root is no object"),
    pytest.param({"type": "grammar"}, {}, id="an unknown type"),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("asked", "fields"), ASKED)
def test_a_schema_is_refused_at_once(asked, fields, stream):
    """400 that names the field, before any header of a stream, within a second, and nothing was asked of the engine."""
    chat = Chat()
    began_s = time.monotonic()
    answer = chat.ask(response_format=asked, stream=stream, **fields)
    assert time.monotonic() - began_s < 1.0
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_format")
    assert not chat.engine.requests


def test_nesting_beyond_what_a_body_may_have_is_refused_too():
    """JSON-05: 5,000 nested objects."""
    body = '{"messages":[{"role":"user","content":"hi"}],"response_format":{"type":"json_schema","json_schema":'
    body += '{"name":"a","schema":' + '{"a":' * 5000 + "1" + "}" * 5000 + "}}}"
    chat = Chat()
    with chat.client() as client:
        began_s = time.monotonic()
        answer = client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
        assert time.monotonic() - began_s < 1.0
        assert answer.status_code in (400, 413)
        assert client.get("/health").status_code == 200
    assert not chat.engine.requests


def test_plain_text_may_be_asked_for():
    """The one format that is always kept; JSON null is as good as absent."""
    for value in ({"type": "text"}, None):
        assert Chat().ask(response_format=value).status_code == 200
