"""Reading the JSON of a chat request: shapes that are legal, and what the others are told."""

from __future__ import annotations

import pytest

from appliance.errors import RequestError
from appliance.text.chat import Role, Thinking
from appliance.text.read import read_messages, read_prompt
from appliance.text.read_options import read_tools

USER = {"role": "user", "content": "hi"}
ABSENT = object()


def call(call_id="c1", name="add", arguments="{}"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls, content=None):
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(call_id="c1", content="42"):
    return {"role": "tool", "content": content, **({} if call_id is None else {"tool_call_id": call_id})}


@pytest.mark.parametrize("content", [None, "", ABSENT], ids=["null", "empty", "absent"])
def test_calls_without_text(content):
    """API-01"""
    turn = {"role": "assistant", "content": content, "tool_calls": [call()]}
    if content is ABSENT:
        del turn["content"]
    _, assistant, tool = read_messages([USER, turn, result()])
    assert (assistant.content, assistant.tool_calls[0].name) == ("", "add")
    assert (tool.role, tool.content, tool.tool_call_id) == (Role.TOOL, "42", "c1")


@pytest.mark.parametrize(
    ("arguments", "decoded"),
    [
        ('{"city": "Paris", "days": 2}', {"city": "Paris", "days": 2}),
        ({"city": "Paris", "days": 2}, {"city": "Paris", "days": 2}),
        ("", {}),
        (None, {}),
        (" {} ", {}),
    ],
    ids=["string", "object", "empty string", "null", "blanks"],
)
def test_arguments_become_a_mapping(arguments, decoded):
    """API-02"""
    _, turn = read_messages([USER, calling(call(arguments=arguments))])
    assert turn.tool_calls[0].arguments == decoded


BAD_ARGUMENTS = [
    "{",
    '{"a": 1e999}',
    '{"a": ' + "9" * 999 + "}",
    "[1]",
    "3",
    '{"a": NaN}',
    '{"a":' * 100 + "1" + "}" * 100,
    "[" * 100_000,
    ["x"],
    7,
]


@pytest.mark.parametrize("arguments", BAD_ARGUMENTS, ids=[f"{value!r:.12}" for value in BAD_ARGUMENTS])
def test_arguments_that_are_no_object(arguments):
    """API-02"""
    with pytest.raises(RequestError) as caught:
        read_messages([USER, calling(call(), call("c2", arguments=arguments))])
    assert caught.value.param == "messages[1].tool_calls[1].function.arguments"


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": None},
        {"role": "assistant"},
        {"role": "assistant", "content": "", "tool_calls": []},
        {"role": "assistant", "content": [], "tool_calls": None},
        {"role": "assistant", "content": "", "reasoning_content": "cut off while thinking"},
    ],
    ids=["empty", "null", "absent", "no calls", "no parts", "only thoughts"],
)
def test_empty_assistant_turns_are_left_out(turn):
    """API-04"""
    assert [m.content for m in read_messages([USER, turn, USER])] == ["hi", "hi"]


def test_a_call_list_that_is_empty_is_none():
    """API-04"""
    turn = read_messages([USER, {"role": "assistant", "content": "x", "tool_calls": []}])[1]
    assert (turn.content, turn.tool_calls) == ("x", ())


PARTS = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": PARTS},
        {"role": "system", "content": PARTS},
        {"role": "developer", "content": PARTS},
        {"role": "assistant", "content": [*PARTS[:1], {"type": "refusal", "refusal": "two"}]},
        {"role": "user", "content": PARTS, "name": "ann"},
    ],
    ids=lambda message: message["role"],
)
def test_parts_are_joined(message):
    """API-05"""
    assert read_messages([message])[0].content == "one two"


def test_parts_of_a_tool_result_are_joined():
    """API-05"""
    assert read_messages([USER, calling(call()), result(content=PARTS)])[2].content == "one two"


def test_developer_is_system_and_leading_ones_are_joined():
    """API-05"""
    read = read_messages(
        [
            {"role": "developer", "content": "a"},
            {"role": "system", "content": "b"},
            USER,
            {"role": "developer", "content": "late"},
        ]
    )
    assert [(m.role, m.content) for m in read] == [
        (Role.SYSTEM, "a\n\nb"),
        (Role.USER, "hi"),
        (Role.SYSTEM, "late"),
    ]


IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
BAD_MESSAGES = [
    ("no list", "hi", "messages"),
    ("none", [], "messages"),
    ("null", None, "messages"),
    ("only empty turns", [{"role": "assistant", "content": ""}], "messages"),
    ("no object", [USER, "hi"], "messages[1]"),
    ("no role", [{"content": "x"}], "messages[0].role"),
    ("role number", [{"role": 3, "content": "x"}], "messages[0].role"),
    ("role unknown", [{"role": "narrator", "content": "x"}], "messages[0].role"),
    ("user null", [{"role": "user", "content": None}], "messages[0].content"),
    ("user object", [{"role": "user", "content": {"a": 1}}], "messages[0].content"),
    ("user number", [{"role": "user", "content": 5}], "messages[0].content"),
    ("API-05 unknown part", [{"role": "user", "content": [*PARTS, {"type": "smell"}]}], "messages[0].content[2]"),
    ("API-06 image", [USER, {"role": "user", "content": [PARTS[0], IMAGE]}], "messages[1].content[1]"),
    ("part without text", [{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
    ("name number", [{**USER, "name": 3}], "messages[0].name"),
    ("calls of a user", [{**USER, "tool_calls": [call()]}], "messages[0].tool_calls"),
    ("call without function", [USER, calling({"id": "c"})], "messages[1].tool_calls[0].function"),
    ("call without name", [USER, calling(call(name=""))], "messages[1].tool_calls[0].function.name"),
    ("old call form", [{"role": "assistant", "function_call": {"name": "f"}}], "messages[0].function_call"),
]


@pytest.mark.parametrize(("messages", "param"), [r[1:] for r in BAD_MESSAGES], ids=[r[0] for r in BAD_MESSAGES])
def test_bad_messages_name_the_path(messages, param):
    with pytest.raises(RequestError) as caught:
        read_messages(messages)
    assert caught.value.param == param
    assert caught.value.message.startswith(param)
    assert caught.value.http_status == 400


ORPHANS = [
    ("first", [result()], "messages[0]"),
    ("after user", [USER, calling(call()), USER, result()], "messages[3]"),
    ("unknown id", [USER, calling(call()), result("c9")], "messages[2].tool_call_id"),
    ("two for one", [USER, calling(call()), result(), result()], "messages[3].tool_call_id"),
    ("one too many without ids", [USER, calling(call()), result(None), result(None)], "messages[3]"),
    ("no calls", [USER, {"role": "assistant", "content": "x"}, result()], "messages[2]"),
]


@pytest.mark.parametrize(("messages", "param"), [row[1:] for row in ORPHANS], ids=[row[0] for row in ORPHANS])
def test_orphan_results_are_refused(messages, param):
    """TOOL-13"""
    with pytest.raises(RequestError) as caught:
        read_messages(messages)
    assert caught.value.param == param


TOLERATED = [
    ("missing result", [USER, calling(call(), call("c2")), result("c2")], ["42"]),
    ("no result", [USER, calling(call()), USER], []),
    ("without ids", [USER, calling(call(), call("c2")), result(None, "a"), result(None, "b")], ["a", "b"]),
    ("other order", [USER, calling(call(), call("c2")), result("c2", "b"), result("c1", "a")], ["a", "b"]),
    ("empty turn between", [USER, calling(call()), {"role": "assistant", "content": ""}, result()], ["42"]),
]


@pytest.mark.parametrize(("messages", "results"), [row[1:] for row in TOLERATED], ids=[row[0] for row in TOLERATED])
def test_results_that_are_tolerated_follow_the_calls(messages, results):
    """TOOL-13"""
    assert [m.content for m in read_messages(messages) if m.role is Role.TOOL] == results


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thoughts_are_kept_apart(field):
    turn = read_messages([USER, {"role": "assistant", "content": "x", field: "\nbecause\n"}])[1]
    assert turn.reasoning == "because"


THINKING = [
    ("nothing", {}, Thinking()),
    ("none", {"reasoning_effort": "none"}, Thinking(enabled=False)),
    ("minimal", {"reasoning_effort": "minimal"}, Thinking(enabled=True, effort="low")),
    ("low", {"reasoning_effort": "low"}, Thinking(enabled=True, effort="low")),
    ("medium", {"reasoning_effort": "medium"}, Thinking(enabled=True, effort="medium")),
    ("high", {"reasoning_effort": "high"}, Thinking(enabled=True, effort="xhigh")),
    ("xhigh", {"reasoning_effort": "xhigh"}, Thinking(enabled=True, effort="xhigh")),
    ("max", {"reasoning_effort": "max"}, Thinking(enabled=True, effort="xhigh")),
    ("kwargs off", {"chat_template_kwargs": {"enable_thinking": False}}, Thinking(enabled=False)),
    ("field off", {"enable_thinking": False}, Thinking(enabled=False)),
    (
        "kwargs off beats high",
        {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}},
        Thinking(enabled=False),
    ),
    (
        "kwargs on beats none",
        {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
        Thinking(enabled=True),
    ),
    (
        "kwargs beat the field",
        {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}},
        Thinking(enabled=False),
    ),
    (
        "effort in kwargs",
        {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}},
        Thinking(enabled=True, effort="xhigh"),
    ),
    ("null is absent", {"reasoning_effort": None, "chat_template_kwargs": {"enable_thinking": None}}, Thinking()),
]


@pytest.mark.parametrize(("fields", "expected"), [row[1:] for row in THINKING], ids=[row[0] for row in THINKING])
def test_thinking_switches(fields, expected):
    """TOOL-11: mapping and precedence."""
    assert read_prompt([USER], **fields).thinking == expected


BAD_OPTIONS = [
    ("banana", {"reasoning_effort": "banana"}, "reasoning_effort"),
    ("effort number", {"reasoning_effort": 3}, "reasoning_effort"),
    ("effort HIGH", {"reasoning_effort": "HIGH"}, "reasoning_effort"),
    (
        "banana in kwargs",
        {"chat_template_kwargs": {"reasoning_effort": "banana"}},
        "chat_template_kwargs.reasoning_effort",
    ),
    ("switch text", {"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs.enable_thinking"),
    ("switch number", {"enable_thinking": 1}, "enable_thinking"),
    ("kwargs list", {"chat_template_kwargs": []}, "chat_template_kwargs"),
    ("kwargs messages", {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ("kwargs prompt", {"chat_template_kwargs": {"add_generation_prompt": False}}, None),
    ("tools object", {"tools": {}}, "tools"),
    ("tool type", {"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ("tool name", {"tools": [{"type": "function", "function": {"name": "a>b"}}]}, "tools[0].function.name"),
    ("tool without name", {"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ("tool twice", {"tools": [{"type": "function", "function": {"name": "a"}}] * 2}, "tools[1].function.name"),
    (
        "tool parameters",
        {"tools": [{"type": "function", "function": {"name": "a", "parameters": [1]}}]},
        "tools[0].function.parameters",
    ),
]


@pytest.mark.parametrize(("fields", "param"), [row[1:] for row in BAD_OPTIONS], ids=[row[0] for row in BAD_OPTIONS])
def test_bad_options_name_the_path(fields, param):
    """TOOL-11 for the switches."""
    with pytest.raises(RequestError) as caught:
        read_prompt([USER], **fields)
    assert caught.value.param == (param or "chat_template_kwargs.add_generation_prompt")


def test_other_template_variables_pass_through():
    prompt = read_prompt([USER], chat_template_kwargs={"preserve_thinking": False, "enable_thinking": True, "x": None})
    assert prompt.kwargs == {"preserve_thinking": False}


@pytest.mark.parametrize("tools", [None, []], ids=["null", "empty"])
def test_no_tools(tools):
    """API-04"""
    assert read_tools(tools) == ()
