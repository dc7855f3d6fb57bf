"""Fields of a request: honoured, without effect, or 400 that names them (API-09, API-10, SAMP-06, SAMP-08)."""

from __future__ import annotations

import json

import pytest

from appliance.engine.handle import SamplingParams
from appliance.server.prepare import SMALLEST_TOP_P
from tests.builders.fake_engine import FakeEngine, say
from tests.builders.live_server import FakeBackend, ids
from tests.server.asking import Chat

BIG = 10**9
REFUSED = [
    ("max_tokens", "10"),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 10**12),
    ("max_tokens", 1.5),
    ("max_tokens", True),
    ("max_completion_tokens", 0),
    ("max_completion_tokens", "x"),
    ("temperature", "hot"),
    ("temperature", -1),
    ("temperature", BIG),
    ("temperature", 2.1),
    ("temperature", True),
    ("top_p", 1.1),
    ("top_p", -1),
    ("top_p", "1"),
    ("top_k", -2),
    ("top_k", 1.5),
    ("top_k", True),
    ("min_p", 1.1),
    ("min_p", -0.1),
    ("seed", 2**80),
    ("seed", -(2**80)),
    ("seed", "x"),
    ("seed", 1.5),
    ("seed", False),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("repetition_penalty", 0),
    ("repetition_penalty", 3),
    ("logit_bias", {"1": 101}),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"8192": 1}),
    ("logit_bias", {"9" * 5000: 1}),
    ("logit_bias", {"01": 1}),
    ("logit_bias", {"\u0663": 1}),
    ("logit_bias", []),
    ("stop", ""),
    ("stop", ["a", "b", "c", "d", "e"]),
    ("stop", [1]),
    ("stop", ["a", ""]),
    ("stop", 5),
    ("n", 0),
    ("n", "2"),
    ("n", BIG),
    ("stream", "true"),
    ("stream", 1),
    ("stream_options", {"include_usage": True}),
    ("top_logprobs", 5),
    ("logprobs", 3),
    ("min_tokens", -1),
    ("min_tokens", 5000),
    ("ignore_eos", "yes"),
    ("store", True),
    ("service_tier", "flex"),
    ("metadata", "x"),
    ("user", 5),
    ("modalities", ["audio"]),
    ("verbosity", "high"),
    ("chat_template_kwargs", []),
    ("chat_template_kwargs", {"messages": []}),
    ("reasoning_effort", 3),
    ("tools", {}),
    ("model", 5),
]


@pytest.mark.parametrize(
    ("name", "value"), REFUSED, ids=[f"{name}={json.dumps(value)[:24]}" for name, value in REFUSED]
)
def test_api_10_samp_06_wrong_types_and_ranges_name_the_field(name, value):
    """API-10, SAMP-06"""
    chat = Chat()
    answer = chat.ask(**{name: value})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["param"].partition(".")[0].partition("[")[0] == name
    assert name in error["message"]
    assert error["type"] == "invalid_request_error"
    assert not chat.engine.requests


def test_api_10_range_within_logprobs():
    """API-10"""
    answer = Chat().ask(logprobs=True, top_logprobs=21)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "top_logprobs")


UNKNOWN = {
    "invented": ({"temprature": 1}, "temprature", "did you mean temperature?"),
    "template (SEC-01)": ({"chat_template": "{{ 1 }}"}, "chat_template", ""),
    "nested": ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", ""),
    "old functions": ({"functions": [{"name": "f"}]}, "functions", ""),
    "search": ({"web_search_options": {}}, "web_search_options", ""),
}


@pytest.mark.parametrize(("fields", "param", "hint"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_api_09_unknown_fields_are_named(fields, param, hint):
    """API-09, SEC-01"""
    answer = Chat().ask(**fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, "unknown_parameter")
    assert hint in error["message"]


WITHOUT_EFFECT = [
    ("user", "anna"),
    ("metadata", {"chat_id": "1"}),
    ("store", False),
    ("service_tier", "auto"),
    ("service_tier", "default"),
    ("parallel_tool_calls", True),
    ("prompt_cache_key", "k"),
    ("prompt_cache_retention", "24h"),
    ("safety_identifier", "s"),
    ("modalities", ["text"]),
    ("prediction", {"type": "content", "content": "x"}),
    ("response_format", {"type": "text"}),
    ("verbosity", "medium"),
    ("stream", False),
    ("n", 1),
]


@pytest.mark.parametrize(
    ("name", "value"), WITHOUT_EFFECT, ids=[f"{name}={json.dumps(value)[:24]}" for name, value in WITHOUT_EFFECT]
)
def test_api_09_fields_without_effect_are_accepted(name, value):
    """API-09"""
    plain, chat = Chat(), Chat()
    plain.ask(seed=1)
    assert chat.ask(seed=1, **{name: value}).status_code == 200
    assert chat.engine.requests[0].sampling == plain.engine.requests[0].sampling
    assert chat.engine.requests[0].prompt_ids == plain.engine.requests[0].prompt_ids


def test_api_09_null_equals_absent_for_every_field_and_for_unknown_ones():
    """API-09"""
    names = [name for name, _ in [*REFUSED, *WITHOUT_EFFECT]]
    chat = Chat()
    assert chat.ask(**dict.fromkeys([*names, "functions", "function_call", "audio", "invented"])).status_code == 200
    assert chat.engine.requests[0].top_logprobs is None


def test_api_09_what_is_honoured_reaches_the_engine():
    """API-09"""
    chat = Chat()
    fields = {
        "temperature": 0.5,
        "top_p": 0.4,
        "top_k": 3,
        "min_p": 0.1,
        "presence_penalty": 1.5,
        "frequency_penalty": -1,
        "repetition_penalty": 1.1,
        "seed": 9,
        "logit_bias": {"1": -100, "20": 2.5},
        "min_tokens": 2,
        "ignore_eos": True,
        "logprobs": True,
        "max_tokens": 8,
        "n": 2,
    }
    assert chat.ask(**fields).status_code == 200
    request = chat.engine.requests[0]
    assert request.sampling == SamplingParams(
        temperature=0.5,
        top_p=0.4,
        top_k=3,
        min_p=0.1,
        presence_penalty=1.5,
        frequency_penalty=-1.0,
        repetition_penalty=1.1,
        seed=9,
        logit_bias=((1, -100.0), (20, 2.5)),
    )
    assert (request.min_tokens, request.stop_token_ids, request.top_logprobs, request.max_tokens) == (
        2,
        frozenset(),
        0,
        8,
    )
    assert [request.sampling.seed for request in chat.engine.requests] == [9, 10]


CLAMPS = [
    ("top_p", 0, "top_p", SMALLEST_TOP_P),
    ("top_p", 1, "top_p", 1.0),
    ("top_k", 0, "top_k", 0),
    ("top_k", -1, "top_k", 0),
    ("top_k", BIG, "top_k", 0),
    ("top_k", 8191, "top_k", 8191),
    ("seed", -1, "seed", 2**63 - 1),
    ("temperature", 0, "temperature", 0.0),
    ("min_p", 0, "min_p", 0.0),
    ("seed", 2**63 - 1, "seed", 2**63 - 1),
]


@pytest.mark.parametrize(("name", "value", "field", "wanted"), CLAMPS)
def test_samp_06_documented_clamps(name, value, field, wanted):
    """SAMP-06"""
    chat = Chat()
    assert chat.ask(**{name: value}).status_code == 200
    assert getattr(chat.engine.requests[0].sampling, field) == wanted


def test_samp_08_a_bare_request_gets_the_defaults_of_the_rig():
    """SAMP-08: they are visible in the status; request values win, also an explicit 0; without a seed each is new."""
    engine = FakeEngine(say(ids("Hi.")))
    chat = Chat(
        engine=engine,
        backend=FakeBackend(engine, defaults=SamplingParams(temperature=0.7, top_p=0.8, top_k=20, min_p=0.05)),
    )
    chat.ask()
    chat.ask()
    chat.ask(temperature=0, top_k=0, min_p=0, top_p=1)
    bare, again, zero = (request.sampling for request in chat.engine.requests)
    assert (bare.temperature, bare.top_p, bare.top_k, bare.min_p) == (0.7, 0.8, 20, 0.05)
    assert (zero.temperature, zero.top_p, zero.top_k, zero.min_p) == (0.0, 1.0, 0, 0.0)
    assert bare.seed != again.seed
    with chat.client() as client:
        shown = client.get("/v1/status").json()["sampling"]
    assert shown == {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.05, "thinking": False}


def test_stop_tokens_are_the_models():
    chat = Chat()
    chat.ask()
    assert chat.engine.requests[0].stop_token_ids == {8176, 8178}
