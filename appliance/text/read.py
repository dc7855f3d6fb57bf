"""Turns the JSON of a chat request (messages, tools, thinking switches) into checked values, or says what is wrong.

Rules where the API leaves room:
- "developer" is "system". System turns at the start are joined by a blank line; a later one stays in its place where
  the model's template can show it, else the template module moves it to the first system turn.
- Text parts are joined with nothing between, as the model's own template does.
- Finished assistant turns with neither text nor calls are left out: kept, they teach the model to answer nothing.
- A tool result must follow the assistant turn that called it and name one of its calls, once. Without a tool_call_id it
  takes the first call still open. Missing results are tolerated (an agent was interrupted). Results are put in
  the order of the calls, because the prompt shows no ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from appliance.errors import RequestError
from appliance.text.chat import ChatPrompt, JsonValue, Message, Role, ToolCall
from appliance.text.fields import as_json, as_list, as_object, as_text, decode_object, kind_of, refuse
from appliance.text.read_options import read_kwargs, read_thinking, read_tools

_ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
}
_MEDIA = {"image_url", "input_image", "image", "input_audio", "audio", "video", "video_url", "file", "input_file"}


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
    kwargs = read_kwargs(chat_template_kwargs)
    thinking, rest = read_thinking(reasoning_effort=reasoning_effort, enable_thinking=enable_thinking, kwargs=kwargs)
    return ChatPrompt(messages=read_messages(messages), tools=read_tools(tools), thinking=thinking, kwargs=rest)


def read_messages(raw: object) -> tuple[Message, ...]:
    """`messages`, in the order the template shall see them; at least one."""
    entries = as_list(raw, "messages")
    if not entries:
        refuse("messages", "is empty; send at least one user message")
    read = [_message(as_object(entry, f"messages[{i}]"), f"messages[{i}]") for i, entry in enumerate(entries)]
    ordered = _place_results(read)
    kept = [m for m in ordered if m.role is not Role.ASSISTANT or m.content or m.tool_calls]
    if not kept:
        refuse("messages", "has only empty assistant turns; send at least one user message")
    return _join_leading_system(kept)


def _message(entry: Mapping[str, object], path: str) -> Message:
    role = _ROLES.get(as_text(entry.get("role"), f"{path}.role"))
    if role is None:
        refuse(f"{path}.role", f"is {entry['role']!r:.40}; it must be one of {', '.join(_ROLES)}")
    for field in ("function_call", "audio"):
        if entry.get(field) is not None:
            refuse(f"{path}.{field}", "is not supported; leave it out", code="unsupported_parameter")
    content = _content(entry.get("content"), f"{path}.content")
    if role is Role.ASSISTANT:
        return Message(
            role=role,
            content=content,
            reasoning=_reasoning(entry, path),
            tool_calls=_calls(entry.get("tool_calls"), f"{path}.tool_calls"),
            name=_optional(entry, "name", path),
        )
    if entry.get("tool_calls"):
        refuse(f"{path}.tool_calls", f"is not allowed in a {role} message")
    if entry.get("content") is None:
        refuse(f"{path}.content", f"is absent or null; a {role} message needs text")
    call_id = _optional(entry, "tool_call_id", path) if role is Role.TOOL else None
    return Message(role=role, content=content, tool_call_id=call_id, name=_optional(entry, "name", path))


def _optional(entry: Mapping[str, object], key: str, path: str) -> str | None:
    value = entry.get(key)
    return None if value is None else as_text(value, f"{path}.{key}")


def _reasoning(entry: Mapping[str, object], path: str) -> str | None:
    """reasoning_content, or "reasoning" as some clients replay it; the newlines around it are the template's."""
    for key in ("reasoning_content", "reasoning"):
        text = _optional(entry, key, path)
        if text is not None:
            return text.strip("\n") or None
    return None


def _content(value: object, path: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, Sequence):
        refuse(path, f"is {kind_of(value)}; it must be a string or a list of text parts")
    return "".join(_part(part, f"{path}[{i}]") for i, part in enumerate(value))


def _part(part: object, path: str) -> str:
    if isinstance(part, str):
        return part
    entry = as_object(part, path)
    kind = as_text(entry.get("type"), f"{path}.type")
    if kind in ("text", "input_text", "output_text"):
        return as_text(entry.get("text"), f"{path}.text")
    if kind == "refusal":
        return as_text(entry.get("refusal"), f"{path}.refusal")
    if kind in _MEDIA:
        raise RequestError(
            f"{path} has type {kind!r}, but this model reads text only: remove it, also from earlier turns",
            code="image_not_supported" if "image" in kind else "media_not_supported",
            param=path,
        )
    return refuse(path, f"has type {kind!r:.40}; the known part type is 'text'")


def _calls(value: object, path: str) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    return tuple(_call(as_object(e, f"{path}[{i}]"), f"{path}[{i}]") for i, e in enumerate(as_list(value, path)))


def _call(entry: Mapping[str, object], path: str) -> ToolCall:
    if entry.get("type", "function") not in ("function", None):
        refuse(f"{path}.type", f"is {entry['type']!r:.40}; only function calls are supported")
    function = as_object(entry.get("function"), f"{path}.function")
    name = as_text(function.get("name"), f"{path}.function.name")
    if not name:
        refuse(f"{path}.function.name", "is empty")
    arguments = function.get("arguments")
    where = f"{path}.function.arguments"
    decoded: JsonValue
    if arguments is None:
        decoded = {}
    elif isinstance(arguments, str):
        decoded = decode_object(arguments, where)
    else:
        decoded = as_json(as_object(arguments, where), where)
    assert isinstance(decoded, dict)
    return ToolCall(id=_optional(entry, "id", path), name=name, arguments=decoded)


def _place_results(messages: Sequence[Message]) -> list[Message]:
    """Checks that every tool result answers a call, and orders each run of results as the calls."""
    ordered: list[Message] = []
    calls: list[ToolCall | None] = []
    results: dict[int, Message] = {}
    for index, message in enumerate(messages):
        if message.role is Role.TOOL:
            place = _answered(message, calls, f"messages[{index}]")
            results[place], calls[place] = message, None
            continue
        ordered += (results[place] for place in sorted(results))
        results = {}
        # An empty assistant turn is dropped later, so it must not come between a call and its result.
        if message.role is not Role.ASSISTANT or message.content or message.tool_calls:
            calls = list(message.tool_calls)
        ordered.append(message)
    return ordered + [results[place] for place in sorted(results)]


def _answered(message: Message, calls: Sequence[ToolCall | None], path: str) -> int:
    """Which of the open calls a result answers."""
    still_open = [place for place, call in enumerate(calls) if call is not None]
    if not calls:
        refuse(path, "is a tool result without an assistant message with tool_calls before it; send both or neither")
    if message.tool_call_id is None:
        if not still_open:
            refuse(path, "is a tool result, but every call before it has its result already")
        return still_open[0]
    for place in still_open:
        call = calls[place]
        if call is not None and call.id == message.tool_call_id:
            return place
    return refuse(
        f"{path}.tool_call_id",
        f"is {message.tool_call_id!r:.60}; the calls without a result before it are "
        + (", ".join(repr(call.id) for call in calls if call is not None) or "none"),
    )


def _join_leading_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    count = next((i for i, m in enumerate(messages) if m.role is not Role.SYSTEM), len(messages))
    if count < 2:
        return tuple(messages)
    joined = "\n\n".join(m.content for m in messages[:count] if m.content)
    return (replace(messages[0], content=joined), *messages[count:])
