"""Asks a server around a scripted engine through Litestar's test client."""

from __future__ import annotations

import json

from litestar.testing import TestClient

from appliance.server.app import create_app
from appliance.server.backend import ServerConfig
from tests.builders.fake_engine import FakeEngine, say
from tests.builders.live_server import FakeBackend, ids, text_stack

USER = {"role": "user", "content": "hello"}


class Chat:
    """Keeps what the engine was asked."""

    def __init__(self, script=None, *, engine=None, backend=None, config=None, **fields):
        self.engine = engine or FakeEngine(script or say(ids("Hi there.")), **fields)
        self.backend = backend or FakeBackend(self.engine)
        self.config = config or ServerConfig()

    def client(self):
        app = create_app(self.backend, self.config)
        return TestClient(app, raise_server_exceptions=False, base_url="http://127.0.0.1")

    def post(self, body, path="/v1/chat/completions"):
        with self.client() as client:
            return client.post(path, json=body)

    def ask(self, *messages, **fields):
        return self.post({"messages": list(messages) or [USER], **fields})

    def complete(self, prompt, **fields):
        return self.post({"prompt": prompt, **fields}, "/v1/completions")

    def prompt(self):
        """The last prompt as text, tags included."""
        return text_of(self.engine.requests[-1].prompt_ids)

    def stream(self, *messages, **fields):
        """Events of a stream."""
        return events_of(self.ask(*messages, stream=True, **fields))


def events_of(answer):
    """A stream's events, parsed; the last is the end mark, which comes once."""
    assert answer.status_code == 200, answer.text
    lines = [line[6:] for line in answer.text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    assert lines.count("[DONE]") == 1
    return [json.loads(line) for line in lines[:-1]]


def text_of(token_ids):
    tokenizer = text_stack().tokenizer
    return b"".join(tokenizer.token_bytes(token_id) for token_id in token_ids).decode()


def joined(events, field):
    """All pieces of a delta's field."""
    return "".join(event["choices"][0]["delta"].get(field) or "" for event in events if event["choices"])


def calls_of(events):
    """Streamed calls put together as clients do."""
    calls = []
    for event in events:
        for part in event["choices"][0]["delta"].get("tool_calls", []) if event["choices"] else []:
            if part["index"] == len(calls):
                calls.append({"id": part["id"], "name": part["function"]["name"], "arguments": ""})
            calls[part["index"]]["arguments"] += part["function"]["arguments"]
    return calls


def finish_of(events):
    """The finish reason, which comes once and last."""
    found = [event["choices"][0]["finish_reason"] for event in events if event["choices"]]
    assert [reason for reason in found if reason is not None] == [found[-1]]
    return found[-1]
