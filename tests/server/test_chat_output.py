"""What a chat answer is made of: choices, characters, stop strings, log-probabilities (STR-08, STR-09, SAMP-03)."""

from __future__ import annotations

import pytest

from tests.builders.fake_engine import hold, say
from tests.builders.live_server import ids, pieces, text_stack
from tests.server.asking import Chat, finish_of, joined


def test_n_choices_have_their_own_seed_and_index():
    chat = Chat()
    body = chat.ask(n=3, seed=2**63 - 2).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [request.sampling.seed for request in chat.engine.requests] == [2**63 - 2, 2**63 - 1, 0]
    prompt = len(chat.engine.requests[0].prompt_ids)
    assert body["usage"]["prompt_tokens"] == prompt
    assert body["usage"]["completion_tokens"] == 3 * (len(ids("Hi there.")) + 1)


def test_n_choices_streamed():
    chat = Chat(say(*pieces("Hi there.")))
    events = chat.stream(n=2)
    for index in (0, 1):
        own = [event for event in events if event["choices"][0]["index"] == index]
        assert own[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert joined(own, "content") == "Hi there."
        assert finish_of(own) == "stop"


def test_n_above_the_slots_is_refused():
    answer = Chat(slots=2).ask(n=3)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")


@pytest.mark.parametrize("text", ["👍", "👨‍👩‍👧‍👦", "안녕하세요", "naïve café — “yes”"])
def test_str_08_characters_split_over_tokens(text):
    """STR-08: also in the thinking."""
    plain, thinking = Chat(say(*pieces(text))), Chat(say(*pieces(f"{text}</think>\n\n{text}")))
    assert joined(plain.stream(), "content") == text
    events = thinking.stream(reasoning_effort="high")
    assert (joined(events, "reasoning_content"), joined(events, "content")) == (text, text)


@pytest.mark.parametrize(
    "raw", [b"a\xf0\x9f\x98", b"\x80b", b"\xc0\xafb", b"\xed\xa0\x80b"], ids=["cut", "lone", "overlong", "surrogate"]
)
@pytest.mark.parametrize("stream", [False, True])
def test_str_09_bytes_that_are_no_text(raw, stream):
    """STR-09"""
    by_byte = byte_ids()
    chat = Chat(say(*[[by_byte[byte]] for byte in raw], ids(" end"), reason="length"))
    content = joined(chat.stream(), "content") if stream else chat.ask().json()["choices"][0]["message"]["content"]
    assert content.endswith(" end")
    assert "�" in content
    assert content == (raw + b" end").decode("utf-8", errors="replace")


def byte_ids():
    """The tokens of single bytes."""
    tokenizer = text_stack().tokenizer
    singles = ((tokenizer.token_bytes(i), i) for i in range(8176))
    return {raw[0]: token_id for raw, token_id in singles if len(raw) == 1}


@pytest.mark.parametrize("stop", ["there", ["x", "there"], ["Hi"], "i th"])
@pytest.mark.parametrize("stream", [False, True])
def test_samp_03_stop_strings(stop, stream):
    """SAMP-03: text ends before the stop, the engine's request is cancelled, usage counts what was kept."""
    text = "Hi there, how are you?"
    chat = Chat(hold(ids(text)))
    wanted = min((text.partition(word)[0] for word in ([stop] if isinstance(stop, str) else stop)), key=len)
    if stream:
        events = chat.stream(stop=stop, stream_options={"include_usage": True})
        content, finish, usage = joined(events, "content"), finish_of(events[:-1]), events[-1]["usage"]
    else:
        body = chat.ask(stop=stop).json()
        content, finish, usage = (
            body["choices"][0]["message"]["content"],
            body["choices"][0]["finish_reason"],
            body["usage"],
        )
    assert (content, finish) == (wanted, "stop")
    assert 0 < usage["completion_tokens"] < len(ids(text))
    assert chat.engine.cancels == [chat.engine.requests[0].id]
    assert not chat.engine.running


def test_logprobs():
    chat = Chat(say(*pieces("Hi there.")))
    body = chat.ask(logprobs=True, top_logprobs=3).json()
    content = body["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == "Hi there."
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "Hi there."
    assert [len(entry["top_logprobs"]) for entry in content] == [3] * len(content)
    assert content[0]["top_logprobs"][2]["logprob"] == -9999.0
    assert chat.engine.requests[0].top_logprobs == 3
    events = Chat(say(*pieces("Hi there."))).stream(logprobs=True, top_logprobs=3)
    streamed = [entry for event in events for entry in (event["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == content
