"""Reads what stands beside the messages of a chat request: tools, template variables, thinking switches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from appliance.text.chat import JsonValue, Thinking, Tool
from appliance.text.fields import as_json, as_list, as_object, as_text, refuse

# API word -> the template's word; "none" turns the thinking off instead.
EFFORTS: Final[Mapping[str, str | None]] = {
    "none": None,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "xhigh",
    "xhigh": "xhigh",
    "max": "xhigh",
}
# The prompt itself: a client that could set these could write the template's part of the prompt.
RESERVED_KWARGS: Final = ("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token")
# A name stands raw between "<function=" and ">".
_NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


def read_tools(raw: object) -> tuple[Tool, ...]:
    """`tools`; null and [] give ()."""
    if raw is None:
        return ()
    tools: dict[str, Tool] = {}
    for index, entry in enumerate(as_list(raw, "tools")):
        path = f"tools[{index}]"
        tool = _tool(as_object(entry, path), path)
        if tool.name in tools:
            refuse(f"{path}.function.name", f"is {tool.name!r} again; names must differ")
        tools[tool.name] = tool
    return tuple(tools.values())


def _tool(entry: Mapping[str, object], path: str) -> Tool:
    if entry.get("type") != "function":
        refuse(f"{path}.type", f"is {entry.get('type')!r:.40}; only 'function' tools are supported")
    function = as_object(entry.get("function"), f"{path}.function")
    name = as_text(function.get("name"), f"{path}.function.name")
    if not _NAME.fullmatch(name):
        refuse(f"{path}.function.name", f"is {name!r:.60}; use 1 to 128 letters, digits and _ - . : /")
    if function.get("description") is not None:
        as_text(function["description"], f"{path}.function.description")
    where = f"{path}.function.parameters"
    raw = function.get("parameters")
    parameters = as_json(as_object({} if raw is None else raw, where), where)
    definition = as_json({"type": "function", "function": function}, path)
    assert isinstance(parameters, dict)
    assert isinstance(definition, dict)
    return Tool(name=name, parameters=parameters, definition=definition)


def read_kwargs(raw: object) -> Mapping[str, JsonValue]:
    """`chat_template_kwargs`: extra variables for the template; null values equal absent ones."""
    if raw is None:
        return {}
    path = "chat_template_kwargs"
    kwargs = as_json(as_object(raw, path), path)
    assert isinstance(kwargs, dict)
    for name in kwargs:
        if name in RESERVED_KWARGS or not name.isidentifier() or name.startswith("_"):
            refuse(f"{path}.{name}", "cannot be set; it is the server's own or not a variable name")
    return {name: value for name, value in kwargs.items() if value is not None}


def read_thinking(
    *, reasoning_effort: object, enable_thinking: object, kwargs: Mapping[str, JsonValue]
) -> tuple[Thinking, Mapping[str, JsonValue]]:
    """The thinking switches, and the template variables without them.

    Precedence, strongest first: chat_template_kwargs.enable_thinking; the request's enable_thinking; reasoning_effort
    (within it chat_template_kwargs.reasoning_effort before the request's): "none" is off, every other word is on;
    else the template's own default. With the thinking off no effort reaches the template.
    """
    rest = {name: value for name, value in kwargs.items() if name not in ("enable_thinking", "reasoning_effort")}
    nested = "chat_template_kwargs."
    enabled = _switch(kwargs.get("enable_thinking"), nested + "enable_thinking")
    outer_enabled = _switch(enable_thinking, "enable_thinking")
    effort = _effort(kwargs.get("reasoning_effort"), nested + "reasoning_effort")
    outer_effort = _effort(reasoning_effort, "reasoning_effort")
    effort = outer_effort if effort is None else effort
    if enabled is None:
        enabled = outer_enabled
    if enabled is None and effort is not None:
        enabled = effort != "none"
    word = EFFORTS[effort] if effort is not None and enabled else None
    return Thinking(enabled=enabled, effort=word), rest


def _switch(value: object, path: str) -> bool | None:
    if value is not None and not isinstance(value, bool):
        refuse(path, f"is {value!r:.40}; it must be true or false")
    return value


def _effort(value: object, path: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or value not in EFFORTS:
        refuse(path, f"is {value!r:.40}; it must be one of {', '.join(EFFORTS)}")
    return value
