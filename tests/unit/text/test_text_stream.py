"""Answers: characters over tokens, stop strings, thinking, and that deltas are the whole answer in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.text.deltas import DeltaKind, join
from appliance.text.stream import OutputParser
from tests.builders.text import Numbered, builtin_tokenizer, byte_tokenizer, parse, parse_text, tool

WEATHER = tool("get_weather", city="string", days="integer")
CALL = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nПариж 👍\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>"
)
FAMILY = "👨‍👩‍👧‍👦"


def byte_ids(data: bytes) -> list[int]:
    """One token per byte, whatever the bytes."""
    tokenizer = byte_tokenizer()
    by_byte = {tokenizer.token_bytes(i): i for i in range(256)}
    return [by_byte[bytes([byte])] for byte in data]


CHARACTERS = [("emoji", "a👍b"), ("family", FAMILY), ("hangul", "한국어"), ("accent", "é"), ("four bytes last", "x𝄞")]


@pytest.mark.parametrize("text", [row[1] for row in CHARACTERS], ids=[row[0] for row in CHARACTERS])
@pytest.mark.parametrize("where", ["content", "reasoning", "arguments"])
def test_characters_split_over_tokens(text, where):
    """STR-08: no U+FFFD in any delta, and nothing is lost."""
    if where == "content":
        answer, _, deltas = parse_text(text)
        assert answer.content == text
    elif where == "reasoning":
        answer, _, deltas = parse_text(text + "</think>", thinking_open=True)
        assert answer.reasoning == text
    else:
        answer, _, deltas = parse_text(CALL.replace("Париж", text), tools=[WEATHER])
        assert f'"{text} 👍"' in answer.calls[0].arguments
    assert not any("\ufffd" in delta.text for delta in deltas)


def test_each_character_comes_as_soon_as_it_is_whole():
    """STR-08"""
    parser = OutputParser(byte_tokenizer())
    seen = ["".join(delta.text for delta in parser.feed([i])) for i in byte_tokenizer().encode("a👍b")]
    assert seen == ["a", "", "", "", "👍", "b"]


BYTES = [
    ("cut inside an emoji", "hi 👍".encode()[:-1], "hi \ufffd"),
    ("lone continuation", b"a\x80b", "a\ufffdb"),
    ("two lone continuations", b"a\x80\x80b", "a\ufffd\ufffdb"),
    ("overlong", b"a\xc0\xafb", "a\ufffd\ufffdb"),
    ("surrogate", b"a\xed\xa0\x80b", "a\ufffd\ufffd\ufffdb"),
    ("cut, then text", b"\xf0\x9f\x91ok", "\ufffdok"),
    ("cut, then another", b"\xf0\x9f\xf0\x9f\x91\x8d", "\ufffd👍"),
    ("never valid", b"\xff\xfeok", "\ufffd\ufffdok"),
]


@pytest.mark.parametrize(("data", "text"), [row[1:] for row in BYTES], ids=[row[0] for row in BYTES])
@pytest.mark.parametrize("plain", [False, True], ids=["chat", "completions"])
def test_bytes_that_are_no_text(data, text, plain):
    """STR-09"""
    answer, parser, _ = parse(byte_ids(data), cuts=range(1, len(data)), plain=plain)
    assert answer.content == text
    assert parser.finish_reason("length") == "length"


def test_a_special_token_ends_an_unfinished_character():
    """STR-09"""
    ids = [*byte_ids("👍".encode()[:2]), byte_tokenizer().special_id("<|im_end|>"), *byte_ids(b"ok")]
    assert parse(ids)[0].content == "\ufffdok"


STOPS = [
    ("at a token border", "one STOP two", ["STOP"], "one ", 8),
    ("first token", "STOP", ["S"], "", 1),
    ("whole answer", "STOP", ["STOP"], "", 4),
    ("none", "one two", ["STOP"], "one two", 7),
    ("begun only", "one STO", ["STOP"], "one STO", 7),
    ("begun twice", "one STSTOP two", ["STOP"], "one ST", 10),
    ("two, earlier wins", "a END b STOP", ["STOP", "END"], "a ", 5),
    ("together, longest wins", "a STOP", ["OP", "STOP"], "a ", 6),
    ("inner completes first", "a b c d", ["b c d", "c"], "a b ", 5),
    ("newlines", "a\n\nb", ["\n\n"], "a", 3),
    ("empty stop", "ab", [""], "ab", 2),
    ("character over tokens", "a👍b", ["👍"], "a", 5),
]


@pytest.mark.parametrize(("text", "stops", "kept", "tokens"), [r[1:] for r in STOPS], ids=[r[0] for r in STOPS])
@pytest.mark.parametrize("mode", ["chat", "tools", "completions", "after thinking"])
@pytest.mark.parametrize("size", [1, 6, 100])
def test_stop_strings(text, stops, kept, tokens, mode, size):
    """SAMP-03: the text ends before the stop, later tokens do not count, whatever lands in one step."""
    prefix = "hm</think>" if mode == "after thinking" else ""
    ids = byte_tokenizer().encode(prefix, special=True) + byte_tokenizer().encode(text)
    answer, parser, deltas = parse(
        ids,
        cuts=range(size, len(ids), size),
        stops=stops,
        thinking_open=bool(prefix),
        tools=[WEATHER] if mode == "tools" else (),
        plain=mode == "completions",
    )
    assert answer.content == kept
    assert parser.kept_tokens == tokens + (3 if prefix else 0)
    assert parser.stopped is (kept != text)
    assert parser.finish_reason("length") == ("stop" if parser.stopped else "length")
    assert sorted(set(answer.content_tokens)) == list(answer.content_tokens)
    assert all(position < parser.kept_tokens for delta in deltas for position in delta.tokens)


def test_partial_stops_are_held_and_released():
    """SAMP-03"""
    parser = OutputParser(byte_tokenizer(), stops=["STOP"])
    seen = ["".join(delta.text for delta in parser.feed([i])) for i in byte_tokenizer().encode("a STOx")]
    assert seen == ["a", " ", "", "", "", "STOx"]


def test_stops_do_not_apply_to_thinking_and_calls():
    """SAMP-03"""
    answer, parser, _ = parse_text("a city</think>\nok\n" + CALL, stops=["city"], thinking_open=True, tools=[WEATHER])
    assert (answer.reasoning, answer.content, len(answer.calls)) == ("a city", "ok", 1)
    assert not parser.stopped


THOUGHTS = [
    ("TOOL-05 no opening tag", "because\n</think>\n\nyes", True, "because", "yes"),
    ("TOOL-05 opened again", "<think>\nbecause\n</think>\n\nyes", True, "because", "yes"),
    ("opened by the model", "<think>\nbecause\n</think>\n\nyes", False, "because", "yes"),
    ("opened after a newline", "\n<think>\nbecause\n</think>\n\nyes", False, "because", "yes"),
    ("empty", "\n\n</think>\n\nyes", True, "", "yes"),
    ("empty by the model", "<think>\n\n</think>\n\nyes", False, "", "yes"),
    ("TOOL-04 thinking off", "yes", False, "", "yes"),
    ("TOOL-04 thinking off, newline first", "\n yes\n", False, "", "\n yes\n"),
    ("indented answer", "x\n</think>\n\n    code", True, "x", "    code"),
    ("TOOL-12 cut while thinking", "because of", True, "because of", ""),
    ("TOOL-03 stops before the tag", "the tag is\n", True, "the tag is", ""),
    (
        "TOOL-03 quoted in backticks",
        "the tag `</think>` ends it\n</think>\n\nok",
        True,
        "the tag `</think>` ends it",
        "ok",
    ),
    ("TOOL-03 quoted in quotes", 'a "</think>" here\n</think>ok', True, 'a "</think>" here', "ok"),
    ("TOOL-03 after a closed quote", 'say "hi"</think>ok', True, 'say "hi"', "ok"),
    (
        "TOOL-03 fence in the answer",
        "x</think>\n```\n<think>\na\n</think>\n```\n",
        True,
        "x",
        "```\n<think>\na\n</think>\n```\n",
    ),
    ("TOOL-03 tags in the answer, thinking off", "so <think>a</think> b", False, "", "so <think>a</think> b"),
    ("TOOL-03 closing tag first, thinking off", "</think> b", False, "", "</think> b"),
    ("tag begun", "a </thi", True, "a </thi", ""),
    ("tag of another kind", "a </thinking> b</think>c", True, "a </thinking> b", "c"),
]


@pytest.mark.parametrize(
    ("text", "is_open", "reasoning", "content"), [row[1:] for row in THOUGHTS], ids=[row[0] for row in THOUGHTS]
)
@pytest.mark.parametrize("special", [True, False], ids=["tags are tokens", "tags are spelled"])
@pytest.mark.parametrize("tools", [(), (WEATHER,)], ids=["no tools", "tools"])
def test_thinking(text, is_open, reasoning, content, special, tools):
    """TOOL-03, TOOL-04, TOOL-05: no tag text in either field, literal tags of the answer kept."""
    answer, _, deltas = parse_text(text, special=special, thinking_open=is_open, tools=tools)
    assert (answer.reasoning, answer.content) == (reasoning, content)
    kinds = [delta.kind for delta in deltas if delta.text]
    assert kinds == sorted(kinds, key=lambda kind: kind is DeltaKind.CONTENT)


def test_a_spelled_tag_in_a_fence_of_the_thinking_is_text():
    """TOOL-03: as a token it ends the thinking all the same, for a fence may never be closed."""
    text = "```\n</think>\n```\nok"
    assert parse_text(text, special=False, thinking_open=True)[0].reasoning == text
    assert parse_text(text, special=True, thinking_open=True)[0].content == "```\nok"


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_closing_tag_split_over_three_tokens(cut):
    """TOOL-05"""
    text = "because</think>yes"
    edges = sorted({7 + cut - 1, 7 + cut, 7 + min(8, cut + 3)})
    answer, _, deltas = parse(byte_tokenizer().encode(text), cuts=edges, thinking_open=True)
    assert (answer.reasoning, answer.content) == ("because", "yes")
    assert deltas[0].kind is DeltaKind.REASONING


USAGE = [
    ("closed", "ab</think>c", True, 3),
    ("cut", "abc", True, 3),
    ("off", "abc", False, 0),
    ("opened by the model", "<think>ab</think>c", False, 4),
    ("call in the thinking", "ab\n" + CALL, True, 3),
]


@pytest.mark.parametrize(("text", "is_open", "tokens"), [row[1:] for row in USAGE], ids=[row[0] for row in USAGE])
def test_reasoning_tokens(text, is_open, tokens):
    """TOOL-12: usage tells thinking from answer."""
    assert parse_text(text, thinking_open=is_open, tools=[WEATHER])[1].reasoning_tokens == tokens


def test_control_tokens_are_no_text_but_count():
    answer, parser, _ = parse_text("a<|im_end|>b<|image_pad|>")
    assert (answer.content, parser.kept_tokens) == ("ab", 4)


def test_completions_keep_every_tag():
    text = "<think>a</think>" + CALL
    answer, _, _ = parse_text(text, plain=True, thinking_open=True, tools=[WEATHER])
    assert (answer.content, answer.reasoning, answer.calls) == (text, "", ())


def test_positions_of_log_probabilities():
    """Every token with content text is told once, with the delta that shows it; held and byte tokens included."""
    ids = byte_tokenizer().encode("h</think>a👍b STOP", special=True)
    answer, parser, deltas = parse(ids, cuts=range(1, len(ids)), thinking_open=True, stops=["STOP"])
    assert [(delta.text, delta.tokens) for delta in deltas] == [
        ("h", (0,)),
        ("a", (2,)),
        ("👍", (3, 4, 5, 6)),
        ("b", (7,)),
        (" ", (8,)),
    ]
    assert answer.content_tokens == tuple(range(2, 9))
    assert parser.kept_tokens == 13


def test_a_token_with_text_on_both_sides_of_a_hold_is_told_once():
    tokenizer = builtin_tokenizer()
    ids = [tokenizer.encode(" the")[0], *tokenizer.encode("x")]
    answer, _, deltas = parse(ids, tokenizer=tokenizer, cuts=[1], stops=["hey"])
    assert [(delta.text, delta.tokens) for delta in deltas] == [(" t", (0,)), ("hex", (1,))]
    assert answer.content == " thex"


FRAGMENTS = [
    *("a", " ", "\n", "`", "```\n", "é", "👍", "STOP", "ST", "<", ">", "</", "<think>", "</think>", "</thi"),
    *("<tool_call>", "</tool_call>", "<function=get_weather>", "<function=", "</function>", "get_weather", CALL),
    *("<parameter=city>", "<parameter=days>", "</parameter>", "<parameter", "<|im_end|>", "\n1\n"),
]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    text=st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join),
    special=st.booleans(),
    thinking_open=st.booleans(),
    tools=st.booleans(),
    cuts=st.lists(st.integers(1, 200), max_size=6),
)
def test_pieces_do_not_change_the_answer(text, special, thinking_open, tools, cuts):
    """TOOL-06, STR-08: token by token, in any steps and at once give the same answer, usage and positions."""
    ids = byte_tokenizer().encode(text, special=special)
    options = {"stops": ["STOP"], "thinking_open": thinking_open, "tools": [WEATHER] if tools else ()}
    whole, parser, deltas = parse(ids, **options)
    for edges in (range(1, len(ids)), sorted({cut for cut in cuts if cut < len(ids)})):
        pieces, other, _ = parse(ids, cuts=edges, **options)
        assert pieces == whole
        assert (other.kept_tokens, other.reasoning_tokens) == (parser.kept_tokens, parser.reasoning_tokens)
    positions = [position for delta in deltas for position in delta.tokens]
    assert positions == sorted(set(positions))
    assert len(whole.content) + len(whole.reasoning) <= len(text)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(text=st.text(max_size=60), plain=st.booleans())
def test_plain_text_is_unchanged(text, plain):
    answer, _, _ = parse_text(text, special=False, plain=plain)
    assert answer.content == byte_tokenizer().decode(byte_tokenizer().encode(text))


def test_an_answer_of_nothing():
    parser = OutputParser(byte_tokenizer(), new_id=Numbered())
    assert join((*parser.feed([]), *parser.finish())).content == ""
    assert parser.finish_reason("stop") == "stop"
