"""The official client, unmodified: chat, stream, stop, logprobs, usage, errors, wrong key, 429, leaving."""

from __future__ import annotations

import json

import openai
import pytest

from appliance.engine.handle import FinishReason
from appliance.server import auth
from tests.builders.fake_engine import FakeEngine, endless, hold, say
from tests.builders.live_server import ids, live, pieces

MODEL = "strata-tiny"
USER = [{"role": "user", "content": "hello"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
    for name in ("get_weather", "get_time")
]
CALLS = "".join(
    f"\n<tool_call>\n<function={name}>\n<parameter=city>\nParis 👍\n</parameter>\n</function>\n</tool_call>"
    for name in ("get_weather", "get_time")
)


def script(stream):
    """What is answered depends on the last word of the prompt."""
    wanted = stream.engine.answer
    return wanted(stream)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    key = auth.add_key(path, "anna")
    engine = FakeEngine(script, slots=2, queue_limit=0, max_tokens=512)
    with live(engine, keys_file=path) as server:
        yield server, key


@pytest.fixture
def client(keyed):
    server, key = keyed
    server.engine.answer = say(*pieces("Hi there."))
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=10) as made:
        yield made


@pytest.fixture
def engine(keyed):
    return keyed[0].engine


def test_models(client):
    assert [model.id for model in client.models.list()] == [MODEL, "tiny"]
    assert client.models.retrieve(MODEL).owned_by == "strata"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")


def test_chat_and_usage(client):
    answer = client.chat.completions.create(model=MODEL, messages=USER)
    assert answer.choices[0].message.content == "Hi there."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 2


def test_stream_with_usage(client):
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=USER, stream=True, stream_options={"include_usage": True})
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hi there."
    assert chunks[-1].usage.completion_tokens == len(ids("Hi there.")) + 1
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_stream_through_the_keep_alives(tmp_path):
    """STR-07: the client parses comments unchanged."""
    with live(FakeEngine(hold(ids("Hi"))), keep_alive_s=0.02) as server:
        made = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        stream = made.chat.completions.create(model=MODEL, messages=USER, stream=True)
        next(iter(stream))
        server.call(lambda: server.loop.call_later(0.1, server.engine.release))
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "stop"
        made.close()


def test_stop(client):
    answer = client.chat.completions.create(model=MODEL, messages=USER, stop=[" there"])
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Hi", "stop")


def test_length(client):
    answer = client.chat.completions.create(model=MODEL, messages=USER, max_completion_tokens=1)
    assert answer.choices[0].finish_reason == "length"


def test_logprobs(client):
    answer = client.chat.completions.create(model=MODEL, messages=USER, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert "".join(entry.token for entry in content) == "Hi there."
    assert len(content[0].top_logprobs) == 2


def test_n(client):
    answer = client.chat.completions.create(model=MODEL, messages=USER, n=2, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1]


def test_completions(client):
    answer = client.completions.create(model=MODEL, prompt="once upon", echo=True, logprobs=1, max_tokens=4)
    assert answer.choices[0].text == "once uponHi there."
    assert answer.choices[0].logprobs.token_logprobs[0] is None
    chunks = client.completions.create(model=MODEL, prompt=[5, 6], stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hi there."


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("thinking", [False, True])
def test_tool_06_several_calls(client, engine, stream, thinking):
    """TOOL-06, TOOL-01: one token at a time; indexes, ids, names first, arguments that join to JSON, no markup."""
    engine.answer = say(*pieces(("thinking it over</think>\n\n" if thinking else "") + "Let me look." + CALLS))
    more = {"reasoning_effort": "high"} if thinking else {}
    made = client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS, stream=stream, **more)
    if stream:
        calls, content, reason = {}, "", None
        for chunk in made:
            delta = chunk.choices[0].delta
            content += delta.content or ""
            reason = chunk.choices[0].finish_reason or reason
            for part in delta.tool_calls or []:
                if part.index not in calls:
                    assert part.id
                    assert part.function.name
                    calls[part.index] = [part.id, part.function.name, ""]
                calls[part.index][2] += part.function.arguments
        found = [calls[index] for index in sorted(calls)]
    else:
        message, reason = made.choices[0].message, made.choices[0].finish_reason
        content = message.content
        found = [[call.id, call.function.name, call.function.arguments] for call in message.tool_calls]
    assert reason == "tool_calls"
    assert content == "Let me look."
    assert [call[1] for call in found] == ["get_weather", "get_time"]
    assert [json.loads(call[2]) for call in found] == [{"city": "Paris 👍"}] * 2
    assert found[0][0] != found[1][0]


def test_api_02_the_clients_own_answer_can_be_sent_back(client, engine):
    """API-01, API-02: the message object of the answer, as the client dumps it."""
    engine.answer = say(*pieces(CALLS))
    message = client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS).choices[0].message
    engine.answer = say(ids("Warm."))
    results = [{"role": "tool", "tool_call_id": call.id, "content": "42"} for call in message.tool_calls]
    history = [*USER, message.model_dump(), *results]
    assert (
        client.chat.completions.create(model=MODEL, messages=history, tools=TOOLS).choices[0].message.content == "Warm."
    )
    history = [*USER, message, *results]
    assert (
        client.chat.completions.create(model=MODEL, messages=history, tools=TOOLS).choices[0].message.content == "Warm."
    )


ERRORS = {
    "unknown field": ({"extra_body": {"temprature": 1}}, openai.BadRequestError, "temprature"),
    "range": ({"temperature": 3}, openai.BadRequestError, "temperature"),
    "model": ({"model": "gpt-4o"}, openai.NotFoundError, "model"),
    "context": ({"max_tokens": 512}, openai.BadRequestError, "max_tokens"),
}


@pytest.mark.parametrize(("fields", "kind", "param"), ERRORS.values(), ids=ERRORS.keys())
def test_api_10_errors(client, fields, kind, param):
    """API-10"""
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**{"model": MODEL, "messages": USER, **fields})
    assert caught.value.param == param
    assert caught.value.body["message"]
    assert caught.value.code


def test_wrong_key(keyed):
    made = openai.OpenAI(base_url=f"{keyed[0].url}/v1", api_key="sk-wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as caught:
        made.models.list()
    assert caught.value.code == "invalid_api_key"
    made.close()


def test_429(client, engine):
    engine.answer = endless(ids(" a")[0])
    busy = [client.chat.completions.create(model=MODEL, messages=USER, stream=True) for _ in range(2)]
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(model=MODEL, messages=USER)
    assert caught.value.response.headers["retry-after"]
    for stream in busy:
        stream.close()
    engine.wait_until(lambda engine: not engine.running, within_s=1.0)


def test_leaving(client, engine):
    """STR-01"""
    engine.answer = endless(ids(" a")[0])
    stream = client.chat.completions.create(model=MODEL, messages=USER, stream=True)
    next(iter(stream))
    stream.close()
    engine.wait_until(lambda engine: not engine.running, within_s=1.0)


def test_str_11_error_in_mid_stream(client, engine):
    """STR-11"""

    async def dies(stream):
        stream.tokens(*ids("Hi"))
        stream.finish(FinishReason.ERROR, error="x", fatal=True)

    engine.answer = dies
    stream = client.chat.completions.create(model=MODEL, messages=USER, stream=True)
    with pytest.raises(openai.APIError, match="restarts"):
        list(stream)
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model=MODEL, messages=USER)
    assert caught.value.status_code == 503
