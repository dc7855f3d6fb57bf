"""What a chat prompt is made of: messages, tool calls, tools and switches, checked and frozen; read.py makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


class Role(StrEnum):
    """Who speaks in a turn. "developer" of the API is SYSTEM here."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call an assistant turn made, its arguments decoded."""

    id: str | None
    name: str
    arguments: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn.

    Attributes:
        content: text, parts already joined; "" where the API had null or nothing.
        reasoning: the assistant's thinking as an earlier answer returned it.
        name: the participant's name, handed to the template.
    """

    role: Role
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function the model may call. parameters is its JSON schema; definition is the entry as the client sent it."""

    name: str
    parameters: Mapping[str, JsonValue]
    definition: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """Switches for the template; None leaves the template's own default."""

    enabled: bool | None = None
    effort: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """Everything a template renders. `kwargs` are extra template variables (chat_template_kwargs)."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    thinking: Thinking = Thinking()
    kwargs: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPrompt:
    """A prompt as the model reads it.

    Attributes:
        thinking_open: the last thinking tag among `ids` is an opening one, so the answer starts inside the thinking.
    """

    ids: tuple[int, ...]
    text: str
    thinking_open: bool
