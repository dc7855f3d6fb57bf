"""POST /v1/chat/completions without the network: history, models, tools, thinking (API, TOOL cases)."""

from __future__ import annotations

import json

import pytest

from tests.builders.fake_engine import say
from tests.builders.live_server import ids, pieces
from tests.server.asking import USER, Chat, calls_of, finish_of, joined

CALL = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def test_answer():
    chat = Chat()
    body = chat.ask().json()
    assert body["object"] == "chat.completion"
    assert body["model"] == "strata-tiny"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi there.", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    count = len(ids("Hi there.")) + 1
    assert body["usage"]["completion_tokens"] == count
    assert body["usage"]["prompt_tokens"] == len(chat.engine.requests[0].prompt_ids)
    assert body["usage"]["total_tokens"] == count + body["usage"]["prompt_tokens"]
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


CALL_TURN = {
    "role": "assistant",
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "42"}


@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": ""}], ids=["null", "absent", "empty"])
def test_api_01_call_without_text_in_the_history(content):
    """API-01"""
    chat = Chat()
    assert chat.ask(USER, CALL_TURN | content, RESULT).status_code == 200
    assert "<function=get_weather>" in chat.prompt()
    assert "<tool_response>\n42\n</tool_response>" in chat.prompt()


def test_api_02_arguments_as_text_or_object_render_the_same():
    """API-02"""
    text, whole = Chat(), Chat()
    call = CALL_TURN["tool_calls"][0]
    as_object = {
        "role": "assistant",
        "tool_calls": [call | {"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}],
    }
    assert text.ask(USER, CALL_TURN, RESULT).status_code == 200
    assert whole.ask(USER, as_object, RESULT).status_code == 200
    assert text.prompt() == whole.prompt()
    assert "<parameter=city>\nParis\n</parameter>" in text.prompt()


@pytest.mark.parametrize(
    "extra", [{"content": ""}, {"content": "", "tool_calls": []}, {"content": None, "tool_calls": []}]
)
def test_api_04_empty_turns_are_left_out(extra):
    """API-04"""
    chat, plain = Chat(), Chat()
    assert chat.ask(USER, {"role": "assistant", **extra}, USER).status_code == 200
    plain.ask(USER, USER)
    assert chat.prompt() == plain.prompt()


def test_api_05_parts_developer_and_name():
    """API-05"""
    chat = Chat()
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    answer = chat.ask(
        {"role": "developer", "content": "be kind"},
        {"role": "user", "name": "anna", "content": parts},
        {"role": "assistant", "content": parts},
        {"role": "developer", "content": "be brief"},
        USER,
    )
    assert answer.status_code == 200, answer.text
    assert chat.prompt().count("one two") == 2
    assert "be kind" in chat.prompt()
    assert "be brief" in chat.prompt()


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "hologram"}]}],
            "messages[0].content[1]",
        ),
        ([USER, {"role": "robot", "content": "x"}], "messages[1]"),
        ([USER, {"role": "user"}], "messages[1]"),
        ([USER, 5], "messages[1]"),
    ],
    ids=["unknown part", "unknown role", "no content", "no object"],
)
def test_api_05_what_is_wrong_is_named_with_its_index(messages, param):
    """API-05"""
    chat = Chat()
    answer = chat.ask(*messages)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(param)
    assert not chat.engine.requests


@pytest.mark.parametrize("url", ["data:image/png;base64,iVBORw0KGgo=", "https://127.0.0.1:9/never-fetched.png"])
def test_api_06_image(url):
    """API-06: refused every turn with the same code, and the list of models says text only."""
    chat = Chat()
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    answer = chat.ask(image, {"role": "assistant", "content": "a"}, USER)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert "image" in error["code"]
    assert error["param"].startswith("messages[0]")
    with chat.client() as client:
        assert client.get("/v1/models").json()["data"][0]["input_modalities"] == ["text"]


@pytest.mark.parametrize("stream", [False, True])
def test_api_07_prompt_longer_than_the_context(stream):
    """API-07"""
    chat = Chat(max_tokens=64)
    answer = chat.ask({"role": "user", "content": "word " * 100}, stream=stream)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("application/json")
    assert error["code"] == "context_length_exceeded"
    assert "64" in error["message"]
    assert not chat.engine.requests


@pytest.mark.parametrize("stream", [False, True])
def test_api_07_prompt_and_answer_longer_than_the_context(stream):
    """API-07"""
    chat = Chat(max_tokens=64)
    error = chat.ask(max_tokens=63, stream=stream).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "max_tokens")
    assert "63" in error["message"]


LIMITS = [({"max_tokens": 3}, 3), ({"max_completion_tokens": 4}, 4), ({"max_tokens": 3, "max_completion_tokens": 5}, 5)]


@pytest.mark.parametrize(("limits", "wanted"), LIMITS, ids=["older", "newer", "both"])
def test_api_12_either_limit_works_and_the_newer_wins(limits, wanted):
    """API-12"""
    chat = Chat(say(*pieces("one two three four five six seven")))
    body = chat.ask(**limits).json()
    assert chat.engine.requests[0].max_tokens == wanted
    assert (body["choices"][0]["finish_reason"], body["usage"]["completion_tokens"]) == ("length", wanted)


def test_api_12_without_a_limit_the_context_is_it():
    """API-12"""
    chat = Chat()
    chat.ask()
    request = chat.engine.requests[0]
    assert request.max_tokens == 4096 - len(request.prompt_ids)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    ("name", "status"), [("strata-tiny", 200), ("tiny", 200), (None, 200), ("gpt-4o", 404), ("", 404)]
)
def test_api_12_one_rule_for_names(path, name, status):
    """API-12"""
    body = {"prompt": "a"} if path == "/v1/completions" else {"messages": [USER]}
    answer = Chat().post(body | {"model": name}, path)
    assert answer.status_code == status
    if status == 404:
        assert answer.json()["error"]["code"] == "model_not_found"
        assert answer.json()["error"]["param"] == "model"
    else:
        assert answer.json()["model"] == "strata-tiny"


def test_api_12_models():
    """API-12"""
    chat = Chat()
    with chat.client() as client:
        assert [entry["id"] for entry in client.get("/v1/models").json()["data"]] == ["strata-tiny", "tiny"]
        assert client.get("/v1/models/tiny").json()["root"] == "strata-tiny"
        assert client.get("/v1/models/gpt-4o").status_code == 404
        assert client.get("/v1/models/gpt-4o").json()["error"]["code"] == "model_not_found"


THINKING = [
    pytest.param({}, False, id="default of this template"),
    pytest.param({"reasoning_effort": None}, False, id="null"),
    pytest.param({"reasoning_effort": "none"}, False, id="none"),
    *[
        pytest.param({"reasoning_effort": word}, True, id=word)
        for word in ("minimal", "low", "medium", "high", "xhigh")
    ],
    pytest.param({"chat_template_kwargs": {"enable_thinking": False}}, False, id="kwarg off"),
    pytest.param({"chat_template_kwargs": {"enable_thinking": True}}, True, id="kwarg on"),
    pytest.param(
        {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}}, False, id="contradiction"
    ),
    pytest.param(
        {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, True, id="the other one"
    ),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "thinks"), THINKING)
def test_tool_04_tool_11_thinking_switches(fields, thinks, stream):
    """TOOL-04, TOOL-11: the state of the parser comes from the rendered prompt."""
    chat = Chat(say(*pieces("so it is.</think>\n\nYes." if thinks else "Yes.")))
    if stream:
        events = chat.stream(**fields)
        content, reasoning = joined(events, "content"), joined(events, "reasoning_content")
    else:
        message = chat.ask(**fields).json()["choices"][0]["message"]
        content, reasoning = message["content"], message.get("reasoning_content", "")
    assert content == "Yes."
    assert reasoning == ("so it is." if thinks else "")
    assert chat.prompt().endswith("<think>\n" if thinks else "</think>\n\n")


def test_tool_11_unknown_effort_and_the_default_in_the_status():
    """TOOL-11"""
    chat = Chat()
    answer = chat.ask(reasoning_effort="banana")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "reasoning_effort")
    with chat.client() as client:
        assert client.get("/v1/status").json()["sampling"]["thinking"] is False


@pytest.mark.parametrize("stream", [False, True])
def test_tool_12_budget_used_up_by_thinking(stream):
    """TOOL-12"""
    fields = {
        "max_tokens": 4,
        "reasoning_effort": "high",
        "stream_options": {"include_usage": True} if stream else None,
    }
    chat = Chat(say(*pieces("a title is a short line of words that says it")))
    if stream:
        events = chat.stream(**fields)
        content, reasoning, finish = (
            joined(events, "content"),
            joined(events, "reasoning_content"),
            finish_of(events[:-1]),
        )
        usage = events[-1]["usage"]
    else:
        body = chat.ask(**fields).json()
        message, finish, usage = body["choices"][0]["message"], body["choices"][0]["finish_reason"], body["usage"]
        content, reasoning = message["content"], message["reasoning_content"]
    assert (content, finish) == ("", "length")
    assert reasoning
    assert usage["completion_tokens"] == usage["completion_tokens_details"]["reasoning_tokens"] == 4


CHOICES = {
    "auto with a call": ({"tools": [WEATHER], "tool_choice": "auto"}, f"Let me see.\n{CALL}", "tool_calls"),
    "default with a call": ({"tools": [WEATHER]}, CALL, "tool_calls"),
    "auto without a call": ({"tools": [WEATHER], "tool_choice": "auto"}, "It is warm.", "stop"),
    "none with a call": ({"tools": [WEATHER], "tool_choice": "none"}, CALL, "stop"),
    "none without a call": ({"tools": [WEATHER], "tool_choice": "none"}, "It is warm.", "stop"),
    "no tools, a call": ({}, CALL, "stop"),
    "empty tools": ({"tools": []}, CALL, "stop"),
}


@pytest.mark.parametrize(("fields", "text", "finish"), CHOICES.values(), ids=CHOICES.keys())
def test_tool_09_finish_reason_and_tool_choice(fields, text, finish):
    """TOOL-09: both modes equal; tool_calls only with a call; none hides the tools from the prompt."""
    whole, streamed = Chat(say(*pieces(text))), Chat(say(*pieces(text)))
    choice = whole.ask(**fields).json()["choices"][0]
    events = streamed.stream(**fields)
    calls = [call["function"] for call in choice["message"].get("tool_calls", [])]
    assert choice["finish_reason"] == finish_of(events) == finish
    assert [call["arguments"] for call in calls] == [call["arguments"] for call in calls_of(events)]
    assert (choice["message"]["content"] or "") == joined(events, "content")
    if finish == "tool_calls":
        assert [call["name"] for call in calls] == ["get_weather"]
        assert json.loads(calls[0]["arguments"]) == {"city": "Paris"}
        assert "<" not in joined(events, "content")
        assert "get_weather" in whole.prompt()
    else:
        assert "tool_calls" not in choice["message"]
    if fields.get("tool_choice") == "none":
        assert "get_weather" not in whole.prompt()


UNENFORCED = [
    ("tool_choice", "required"),
    ("tool_choice", {"type": "function", "function": {"name": "get_weather"}}),
    ("tool_choice", "always"),
    ("response_format", {"type": "json_object"}),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}),
]


@pytest.mark.parametrize(("name", "value"), UNENFORCED)
def test_tool_09_what_cannot_be_enforced_is_refused(name, value):
    """TOOL-09"""
    chat = Chat()
    answer = chat.ask(tools=[WEATHER], **{name: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
    assert not chat.engine.requests


ORPHANS = {
    "tool first": [RESULT, USER],
    "unknown id": [USER, CALL_TURN, RESULT | {"tool_call_id": "c9"}],
    "two results": [USER, CALL_TURN, RESULT, RESULT],
    "no result": [USER, CALL_TURN, USER],
}


@pytest.mark.parametrize("messages", ORPHANS.values(), ids=ORPHANS.keys())
def test_tool_13_orphan_results_are_never_a_500(messages):
    """TOOL-13"""
    answer = Chat().ask(*messages)
    assert answer.status_code in (200, 400)
    if answer.status_code == 400:
        assert answer.json()["error"]["param"].startswith("messages[")
