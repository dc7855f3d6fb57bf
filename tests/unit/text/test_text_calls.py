"""Tool calls in answers: several, cut anywhere, malformed, inside the thinking, and how arguments are typed."""

from __future__ import annotations

import json
import time

import pytest

from appliance.text.arguments import type_value
from appliance.text.deltas import DeltaKind
from tests.builders.text import byte_tokenizer, parse, parse_text, tool

WEATHER = tool("get_weather", city="string", days="integer")
WRITE = tool("write", path="string", text="string")


def markup(*parameters, name="get_weather"):
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


PARIS = markup(("city", "Paris"), ("days", "3"))
OSLO = markup(("city", "Oslo"))
TWO = f"Let me look.\n\n{PARIS}\nAnd one more.\n{OSLO}"


@pytest.mark.parametrize("cut", range(len(TWO)))
def test_two_calls_cut_at_every_byte(cut):
    """TOOL-06"""
    answer, parser, deltas = parse(byte_tokenizer().encode(TWO), cuts=[cut] if cut else [], tools=[WEATHER])
    check_two(answer, parser, deltas)


@pytest.mark.parametrize("special", [True, False], ids=["tags are tokens", "tags are spelled"])
def test_two_calls_token_by_token(special):
    """TOOL-06"""
    check_two(*parse_text(TWO, special=special, tools=[WEATHER]))


def check_two(answer, parser, deltas):
    """Indexes 0 and 1, distinct ids, name first, whole arguments, no markup in content."""
    assert answer.content == "Let me look.\n\n\nAnd one more."
    assert [(call.id, call.name) for call in answer.calls] == [("call_0", "get_weather"), ("call_1", "get_weather")]
    assert [json.loads(call.arguments) for call in answer.calls] == [{"city": "Paris", "days": 3}, {"city": "Oslo"}]
    calls = [(delta.kind, delta.call_index) for delta in deltas if delta.call_index is not None]
    start, arguments = DeltaKind.TOOL_CALL, DeltaKind.TOOL_ARGUMENTS
    assert calls == [(start, 0), (arguments, 0), (start, 1), (arguments, 1)]
    assert parser.finish_reason("stop") == "tool_calls"
    assert parser.finish_reason("length") == "length"


def test_a_call_is_given_as_soon_as_it_is_complete():
    """TOOL-06"""
    ids = byte_tokenizer().encode(PARIS + "\n" + OSLO, special=True)
    _, _, deltas = parse(ids, cuts=[len(byte_tokenizer().encode(PARIS, special=True))], tools=[WEATHER])
    assert [delta.call_index for delta in deltas] == [0, 0, 1, 1]


@pytest.mark.parametrize("end", ["", "</think>", "\n</think>\n\n"], ids=["unclosed", "closed", "closed with blanks"])
@pytest.mark.parametrize("calls", [PARIS, PARIS + "\n" + OSLO], ids=["one", "two"])
def test_complete_calls_at_the_end_of_the_thinking(end, calls):
    """TOOL-01"""
    answer, parser, _ = parse_text("I should look.\n\n" + calls + end, thinking_open=True, tools=[WEATHER])
    assert (answer.reasoning, answer.content) == ("I should look.", "")
    assert len(answer.calls) == calls.count("<tool_call>")
    assert parser.finish_reason("stop") == "tool_calls"


STILL_THOUGHTS = [
    ("goes on", f"Try\n{PARIS}\nor not?", f"Try\n{PARIS}\nor not?", "", 0),
    ("answers", f"Try\n{PARIS}\n</think>\n\nNo.", f"Try\n{PARIS}", "No.", 0),
    ("calls behind it", f"Try\n{PARIS}\n</think>\n\n{OSLO}", f"Try\n{PARIS}", "", 1),
    ("incomplete", "Try\n" + PARIS[:60], "Try\n" + PARIS[:60], "", 0),
    ("abandoned", "Try\n" + PARIS[:60] + "</think>\nNo.", "Try\n" + PARIS[:60], "No.", 0),
    ("unknown tool", "Try\n" + markup(name="rm"), "Try\n" + markup(name="rm"), "", 0),
    ("talks of the tag", "The <tool_call> tag.\n</think>ok", "The <tool_call> tag.", "ok", 0),
]


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls"),
    [row[1:] for row in STILL_THOUGHTS],
    ids=[row[0] for row in STILL_THOUGHTS],
)
@pytest.mark.parametrize("special", [True, False], ids=["tags are tokens", "tags are spelled"])
def test_calls_that_are_only_thoughts(text, reasoning, content, calls, special):
    """TOOL-01"""
    answer, _, _ = parse_text(text, special=special, thinking_open=True, tools=[WEATHER])
    assert (answer.reasoning, answer.content, len(answer.calls)) == (reasoning, content, calls)


REPAIRED = [
    ("missing > of the function", PARIS.replace("weather>", "weather")),
    ("missing > of a parameter", PARIS.replace("=city>", "=city")),
    ("stray = in a name", PARIS.replace("=city", "==city").replace("days>", "days=>")),
    ("quoted name", PARIS.replace("=city", '="city"')),
    ("newline before a name", PARIS.replace("<parameter=city>", "<parameter=\ncity>")),
    ("missing closing parameter", PARIS.replace("Paris\n</parameter>", "Paris")),
    ("missing last closing parameter", PARIS.replace("3\n</parameter>", "3")),
    ("missing closing function", PARIS.replace("</function>\n", "")),
    ("missing closing call", PARIS.replace("\n</tool_call>", "")),
    ("missing opening call", PARIS.replace("<tool_call>\n", "")),
    ("closing parameter twice", PARIS.replace("3\n</parameter>", "3\n</parameter>\n</parameter>")),
    ("blanks", PARIS.replace(">\n<", ">  \n\n <")),
    ("one line", PARIS.replace("\n", "")),
]  # fmt: skip


@pytest.mark.parametrize("text", [row[1] for row in REPAIRED], ids=[row[0] for row in REPAIRED])
def test_slightly_malformed_calls_are_understood(text):
    """TOOL-07: and the well-formed call behind each is found."""
    answer, parser, _ = parse_text("Look:\n" + text + "\n" + OSLO, tools=[WEATHER])
    assert [json.loads(call.arguments) for call in answer.calls] == [{"city": "Paris", "days": 3}, {"city": "Oslo"}]
    assert answer.content == "Look:"
    assert parser.finish_reason("stop") == "tool_calls"


BROKEN = [
    ("newline for a name", PARIS.replace("=city>", "=\n>")),
    ("empty name", PARIS.replace("=city>", "=>")),
    ("no name", PARIS.replace("<parameter=city>", "<parameter>")),
    ("end of turn in a value", PARIS[: PARIS.index("ris")]),
    ("end of turn in a tag", PARIS[: PARIS.index("ity>")]),
    ("end of turn between parameters", PARIS[: PARIS.index("<parameter=days")]),
    ("text before parameters", PARIS.replace("<parameter=city", "and <parameter=city")),
    ("tool not declared", PARIS.replace("get_weather", "get_stocks")),
    ("no function", "<tool_call>\nget_weather\n</tool_call>"),
    ("json form", '<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool_call>'),
    ("tag alone", "<tool_call>"),
    ("endless name", "<function=" + "get_weather" * 100),
]


@pytest.mark.parametrize("text", [row[1] for row in BROKEN], ids=[row[0] for row in BROKEN])
@pytest.mark.parametrize("special", [True, False], ids=["tags are tokens", "tags are spelled"])
def test_what_is_no_call_is_text(text, special):
    """TOOL-07: all of it, with no half of a call, and the finish reason agrees."""
    answer, parser, _ = parse_text("Look:\n" + text, special=special, tools=[WEATHER])
    assert (answer.content, answer.calls) == ("Look:\n" + text, ())
    assert parser.finish_reason("stop") == "stop"


@pytest.mark.parametrize("end", range(len(TWO) + 1))
def test_the_end_of_the_turn_anywhere(end):
    """TOOL-07: arguments are a whole object wherever the answer ends, and text is not lost."""
    answer, parser, _ = parse_text(TWO[:end], special=False, tools=[WEATHER])
    arguments = [json.loads(call.arguments) for call in answer.calls]
    assert arguments == [{"city": "Paris", "days": 3}, {"city": "Oslo"}][: len(arguments)]
    assert parser.finish_reason("stop") == ("tool_calls" if arguments else "stop")
    if not arguments:
        assert answer.content == TWO[:end]


def test_without_tools_markup_is_text():
    """TOOL-09: tool_choice none."""
    answer, parser, _ = parse_text(TWO)
    assert (answer.content, answer.calls, parser.finish_reason("stop")) == (TWO, (), "stop")


@pytest.mark.parametrize(
    "value",
    ["line one\nline two", "  indented\n", "</parameter> in the text", "a < b > c", "x</tool_call>y", "", "<think>"],
    ids=["lines", "blanks", "closing tag", "brackets", "closing call", "nothing", "other tag"],
)
def test_text_values_are_kept_as_they_are(value):
    """TOOL-07"""
    answer, _, _ = parse_text(markup(("path", "a.txt"), ("text", value), name="write"), special=False, tools=[WRITE])
    assert json.loads(answer.calls[0].arguments) == {"path": "a.txt", "text": value}


def test_a_long_value_is_not_slow():
    """A whole file as an argument, token by token."""
    text = markup(("path", "a.html"), ("text", "<p>word word</p>\n" * 6000), name="write")
    ids = byte_tokenizer().encode(text)
    start = time.process_time()
    answer, _, _ = parse(ids, cuts=range(4, len(ids), 4), tools=[WRITE])
    assert len(json.loads(answer.calls[0].arguments)["text"]) == 6000 * 17
    assert time.process_time() - start < 10


NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
TYPES = [
    ("string stays", "3", {"type": "string"}, "3"),
    ("string of JSON", '{"a": 1}', {"type": "string"}, '{"a": 1}'),
    ("integer", "3", {"type": "integer"}, 3),
    ("number", "3.5", {"type": "number"}, 3.5),
    ("boolean", "true", {"type": "boolean"}, True),
    ("Python's boolean", "False", {"type": "boolean"}, False),
    ("array", '["a", 1]', {"type": "array"}, ["a", 1]),
    ("object", '{"a": null}', {"type": "object"}, {"a": None}),
    ("integer that is none", "three", {"type": "integer"}, "three"),
    ("broken object", '{"a": ', {"type": "object"}, '{"a": '),
    ("not a number", "NaN", {"type": "number"}, "NaN"),
    ("string or null: null", "null", {"type": ["string", "null"]}, None),
    ("string or null: text", "nil", {"type": ["string", "null"]}, "nil"),
    ("string or null: digits", "12", {"type": ["string", "null"]}, "12"),
    ("string or null: quoted", '"x"', {"type": ["string", "null"]}, '"x"'),
    ("string or integer", "12", {"anyOf": [{"type": "string"}, {"type": "integer"}]}, 12),
    ("enum of strings", "1", {"enum": ["1", "2"]}, "1"),
    ("enum of numbers", "1", {"enum": [1, 2]}, 1),
    ("const", "1", {"const": "1"}, "1"),
    ("reference", "3", {"$ref": "#/$defs/Text"}, "3"),
    ("reference to nothing", "3", {"$ref": "#/$defs/Nothing"}, 3),
    ("reference to itself", "3", {"$ref": "#/$defs/Loop"}, 3),
    ("untyped number", "3", {}, 3),
    ("undeclared text", "hello", None, "hello"),
    ("undeclared object", '{"a": 1}', None, {"a": 1}),
    ("schema is no object", "hello", True, "hello"),
    ("deep", "[" * 100_000, {"type": "array"}, "[" * 100_000),
    ("many digits", "9" * 5000, {"type": "integer"}, "9" * 5000),
]
ROOT = {"$defs": {"Text": {"type": "string"}, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}] * 9}, "Node": NODE}}


@pytest.mark.parametrize(("raw", "schema", "value"), [row[1:] for row in TYPES], ids=[row[0] for row in TYPES])
def test_argument_types(raw, schema, value):
    """TOOL-07: strings raw, others JSON, as the schema says."""
    typed = type_value(raw, schema, ROOT)
    assert (typed, type(typed)) == (value, type(value))


def test_arguments_are_always_json_that_clients_can_read():
    """STR-09: an escaped half character in a JSON value."""
    answer, _, _ = parse_text(markup(("days", '["\\ud83d"]')), tools=[WEATHER])
    assert json.loads(answer.calls[0].arguments.encode("utf-8")) == {"days": ["\ufffd"]}
