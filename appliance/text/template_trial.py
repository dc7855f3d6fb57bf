"""The small conversations every chat template renders once at load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from appliance.text.chat import ChatPrompt, JsonValue, Message, Role, Thinking, Tool, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """shows: texts the rendering must hold. required: without them the file is refused, else an ability is missing."""

    name: str
    prompt: ChatPrompt
    shows: tuple[str, ...]
    required: bool = False


def _tool() -> Tool:
    parameters: dict[str, JsonValue] = {"type": "object", "properties": {"trialkey": {"type": "string"}}}
    function: dict[str, JsonValue] = {"name": "trialtool", "description": "trialdescription", "parameters": parameters}
    return Tool(name="trialtool", parameters=parameters, definition={"type": "function", "function": function})


_USER: Final = Message(role=Role.USER, content="trialquestion")
_ANSWER: Final = Message(role=Role.ASSISTANT, content="trialanswer", reasoning="trialthought")
_CALL: Final = Message(
    role=Role.ASSISTANT, tool_calls=(ToolCall(id="call_1", name="trialtool", arguments={"trialkey": "trialvalue"}),)
)
_RESULT: Final = Message(role=Role.TOOL, content="trialresult", tool_call_id="call_1")

TRIALS: Final = (
    Trial(name="plain", prompt=ChatPrompt(messages=(_USER,)), shows=("trialquestion",), required=True),
    Trial(
        name="thinking off",
        prompt=ChatPrompt(messages=(_USER, _ANSWER, _USER), thinking=Thinking(enabled=False)),
        shows=("trialquestion",),
        required=True,
    ),
    Trial(
        name="thinking on",
        prompt=ChatPrompt(messages=(_USER,), thinking=Thinking(enabled=True)),
        shows=("trialquestion",),
        required=True,
    ),
    Trial(
        name="effort",
        prompt=ChatPrompt(messages=(_USER,), thinking=Thinking(enabled=True, effort="low")),
        shows=("trialquestion",),
    ),
    Trial(
        name="tools",
        prompt=ChatPrompt(messages=(_USER, _CALL, _RESULT, _ANSWER, _USER), tools=(_tool(),)),
        shows=("trialdescription", "trialvalue", "trialresult"),
    ),
    Trial(
        name="late system",
        prompt=ChatPrompt(messages=(_USER, _ANSWER, Message(role=Role.SYSTEM, content="trialrule"), _USER)),
        shows=("trialrule",),
    ),
)
