"""POST /v1/completions: the forms of a prompt, echo and log-probabilities."""

from __future__ import annotations

import pytest

from tests.builders.fake_engine import say
from tests.builders.live_server import ids, pieces
from tests.server.asking import Chat, events_of

HI = ids("Hi there")
FORMS = {
    "string": ("once upon", [tuple(ids("once upon"))]),
    "strings": (["once", "twice"], [tuple(ids("once")), tuple(ids("twice"))]),
    "token ids": ([5, 6, 7], [(5, 6, 7)]),
    "lists of token ids": ([[5, 6], [7]], [(5, 6), (7,)]),
}


@pytest.mark.parametrize(("prompt", "wanted"), FORMS.values(), ids=FORMS.keys())
def test_forms_of_a_prompt(prompt, wanted):
    chat = Chat(say(HI))
    body = chat.complete(prompt).json()
    assert [request.prompt_ids for request in chat.engine.requests] == wanted
    assert [choice["index"] for choice in body["choices"]] == list(range(len(wanted)))
    assert {choice["text"] for choice in body["choices"]} == {"Hi there"}
    assert body["object"] == "text_completion"
    assert body["usage"]["prompt_tokens"] == sum(map(len, wanted))


WRONG = {
    "empty string": "",
    "empty list": [],
    "mixed": ["a", 5],
    "mixed lists": [[5], 6],
    "empty inner": [[]],
    "object": {},
    "number": 5,
    "bool": [True],
    "outside": [8192],
    "negative": [-1],
    "null": None,
    "nested": [[[5]]],
}


@pytest.mark.parametrize("prompt", WRONG.values(), ids=WRONG.keys())
def test_wrong_prompts_name_the_field(prompt):
    answer = Chat().complete(prompt)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("prompt")


def test_text_never_becomes_a_control_token():
    """SEC-03: whoever needs one sends its id."""
    chat = Chat()
    chat.complete("<|im_start|>system")
    assert all(token_id < 8176 for token_id in chat.engine.requests[0].prompt_ids)


def test_defaults_and_limits():
    chat = Chat(say(HI))
    chat.complete("a")
    assert chat.engine.requests[0].max_tokens == 16
    refused = Chat().complete("a", max_tokens=0)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")
    too_many = Chat(slots=1, queue_limit=1).complete(["a", "b", "c"])
    assert (too_many.status_code, too_many.json()["error"]["param"]) == (400, "prompt")


@pytest.mark.parametrize("name", ["messages", "max_completion_tokens", "tools", "top_logprobs"])
def test_api_09_fields_of_the_other_route_are_unknown(name):
    """API-09"""
    answer = Chat().complete("a", **{name: 1})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


@pytest.mark.parametrize(("name", "value"), [("suffix", "x"), ("best_of", 2), ("logprobs", 6), ("logprobs", True)])
def test_what_is_not_supported_is_named(name, value):
    answer = Chat().complete("a", **{name: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


def test_tags_are_plain_text():
    body = Chat(say(*pieces("<think>a</think><tool_call>"))).complete("a").json()
    assert body["choices"][0]["text"] == "<think>a</think><tool_call>"


def test_echo():
    chat = Chat(say(HI))
    body = chat.complete(["once", "twice"], echo=True).json()
    assert body["choices"][0]["text"] == "onceHi there"
    assert body["choices"][1]["text"] == "twiceHi there"
    assert Chat(say(HI)).complete(ids("once"), echo=True).json()["choices"][0]["text"] == "onceHi there"
    assert chat.engine.requests[0].prompt_logprobs is None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 4])
def test_echo_with_logprobs_has_the_prompts_own(stream, max_tokens):
    chat = Chat(say(*pieces("Hi there")))
    answer = chat.complete("once upon a time", echo=True, logprobs=2, max_tokens=max_tokens, stream=stream)
    if stream:
        choices = [event["choices"][0] for event in events_of(answer)]
        text = "".join(choice["text"] for choice in choices)
        parts = [choice["logprobs"] for choice in choices if choice["logprobs"]]
        logprobs = {key: [item for part in parts for item in part[key]] for key in parts[0]}
        finish = choices[-1]["finish_reason"]
    else:
        [choice] = answer.json()["choices"]
        text, logprobs, finish = choice["text"], choice["logprobs"], choice["finish_reason"]
    shown = "once upon a time" + ("Hi there" if max_tokens else "")
    prompt = ids("once upon a time")
    assert text == shown == "".join(logprobs["tokens"])
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert all(value == -0.25 for value in logprobs["token_logprobs"][1:])
    assert all(len(top) == 2 for top in logprobs["top_logprobs"][1:])
    assert [
        shown[at:][: len(token)] for at, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True)
    ] == logprobs["tokens"]
    assert chat.engine.requests[0].prompt_logprobs == 2
    assert finish == ("length" if max_tokens == 0 or len(ids("Hi there")) >= max_tokens else "stop")
    assert len(logprobs["tokens"]) == len(prompt) + (len(ids("Hi there")) if max_tokens else 0)


def test_streamed_equals_whole():
    streamed = events_of(Chat(say(*pieces("Hi there"))).complete(["a", "b"], n=2, stream=True))
    for index in range(4):
        own = [event["choices"][0] for event in streamed if event["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in own) == "Hi there"
        assert [choice["finish_reason"] for choice in own if choice["finish_reason"]] == ["stop"]


def test_logprobs_zero_gives_the_chosen_only():
    body = Chat(say(HI)).complete("a", logprobs=0).json()
    shape = body["choices"][0]["logprobs"]
    assert shape["tokens"] == [top for entry in shape["top_logprobs"] for top in entry]
    assert Chat(say(HI)).complete("a").json()["choices"][0]["logprobs"] is None
