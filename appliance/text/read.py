"""Turns the JSON of a chat request (messages, tools, thinking switches) into checked values, or says what is wrong."""

from __future__ import annotations

from collections.abc import Mapping

from appliance.text.chat import ChatPrompt, Message, Thinking, Tool


def read_prompt(
    messages: object,
    *,
    tools: object = None,
    reasoning_effort: object = None,
    enable_thinking: object = None,
    chat_template_kwargs: object = None,
) -> ChatPrompt:
    """Reads the decoded JSON values of one request; None equals absent. Pass tools=None for tool_choice "none".

    Raises:
        RequestError: 400; `param` is the path at fault, e.g. "messages[3].content[1]".
    """
    raise NotImplementedError


def read_messages(raw: object) -> tuple[Message, ...]:
    """`messages`; see docs of read_prompt."""
    raise NotImplementedError


def read_tools(raw: object) -> tuple[Tool, ...]:
    """`tools`; None and [] give ()."""
    raise NotImplementedError


def read_thinking(*, reasoning_effort: object, enable_thinking: object, kwargs: Mapping[str, object]) -> Thinking:
    """The thinking switches."""
    raise NotImplementedError
