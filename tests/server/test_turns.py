"""Turns of a chat as clients send them back; what usage and status say of a cache (CACHE-02, CACHE-09, CACHE-10)."""

from __future__ import annotations

import pytest

from tests.builders.fake_engine import say
from tests.builders.live_server import ids
from tests.server.asking import USER, Chat

MARKER = "zebrafish"
SECOND = {"role": "user", "content": "and then?"}


def answered(**more):
    """An assistant's turn in the history."""
    return {"role": "assistant", "content": "Hi there.", **more}


def test_dropped_thinking_is_nowhere_in_the_next_prompt_cache_02():
    """CACHE-02: what the model thought is not kept; a client that drops it and one that never had any ask the same."""
    chat = Chat(say(ids(f"{MARKER} plan</think>Hi there.")))
    first = chat.ask(USER, reasoning_effort="high").json()["choices"][0]["message"]
    assert MARKER in first["reasoning_content"]
    assert MARKER not in first["content"]
    chat.ask(USER, {"role": "assistant", "content": first["content"]}, SECOND)
    dropped = chat.prompt()
    assert MARKER not in dropped
    other = Chat(say(ids("Hi there.")))
    other.ask(USER, {"role": "assistant", "content": first["content"]}, SECOND)
    assert other.prompt() == dropped


@pytest.mark.parametrize("first", ["high", "none"])
def test_a_level_switched_back_asks_the_same_prompt_cache_09(first):
    """CACHE-09: every turn is read anew, so a switch costs nothing more, and switching back leaves no trace."""
    history = (USER, answered(), SECOND)
    chat, prompts = Chat(), []
    for level in (first, "low", first):
        chat.ask(*history, reasoning_effort=level)
        prompts.append(chat.prompt())
    assert prompts[0] == prompts[2]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_usage_says_what_the_engine_says_of_its_cache_cache_10(stream):
    """CACHE-10: the scripted engine says two tokens; the real one says none, see tests/engine/test_turns.py."""
    chat = Chat()
    if stream:
        *_, last = chat.stream(stream_options={"include_usage": True})
    else:
        last = chat.ask().json()
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


def test_status_and_metrics_hold_no_text_of_a_prompt_cache_10():
    """CACHE-10: pages and the state of each slot are there, what people wrote is not."""
    chat = Chat(slots=2)
    with chat.client() as client:
        client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": MARKER}]})
        status, metrics = client.get("/v1/status"), client.get("/metrics")
    assert MARKER not in status.text
    assert MARKER not in metrics.text
    found = status.json()
    assert {"page_tokens", "pages_total", "pages_used"} <= set(found["cache"])
    assert all(slot["state"] in ("free", "reading", "decoding") for slot in found["slots"])
