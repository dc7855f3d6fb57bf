"""The model's XML form of a tool call: where one begins, whether it is complete, what it says.

A call is `<tool_call> <function=NAME> (<parameter=KEY> VALUE </parameter>)* </function> </tool_call>`, with blanks
between. Accepted as well, because models write it: no `<tool_call>` around it (at the start of a line); a missing
`</parameter>` before the next declared parameter or the end; a missing `</function>` or `</tool_call>`; a missing
">" at the end of a line; stray "=", quotes and blanks around a name. Anything else is no call and stays text: a call
is handed on whole or not at all, so nobody runs half of one. A value cannot hold the markup of a whole call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from appliance.text.arguments import type_value
from appliance.text.chat import JsonValue, Tool
from appliance.text.runs import held_suffix

WRAPPER: Final = "<tool_call>"
FUNCTION: Final = "<function="
OPENERS: Final = (WRAPPER, FUNCTION)
_END_WRAPPER: Final = "</tool_call>"
_END_FUNCTION: Final = "</function>"
_PARAMETER: Final = "<parameter"
_END_PARAMETER: Final = "</parameter>"
# What can stand behind a value, and so what decides about a call that is long already.
SIGNS: Final = (_PARAMETER, _END_PARAMETER, _END_FUNCTION, _END_WRAPPER)
_NAME_END: Final = re.compile(r"[>\n<]")
_NEXT_PARAMETER: Final = re.compile(r"\n<parameter=([^<>\n]{1,256})>")
_STRAY: Final = " \t\r=\"'"
_MAX_NAME_CHARS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCall:
    """A complete call; end is behind its last character."""

    name: str
    arguments: Mapping[str, JsonValue]
    end: int


class NotYet(Enum):
    """No call (so far)."""

    MORE = "more text decides"
    NEVER = "this is text"


class _Stop(Exception):
    def __init__(self, outcome: NotYet) -> None:
        super().__init__(outcome.value)
        self.outcome = outcome


def parse_call(text: str, start: int, tools: Mapping[str, Tool], *, final: bool) -> ParsedCall | NotYet:
    """Reads the call whose opener is at start.

    Args:
        tools: declared tools by name; other names are text.
        final: nothing follows text.
    """
    try:
        return _Reader(text, start, tools, final).call()
    except _Stop as stop:
        return stop.outcome


class _Reader:
    """A cursor over the text of one call."""

    def __init__(self, text: str, start: int, tools: Mapping[str, Tool], final: bool) -> None:
        self._text = text
        self._at = start
        self._tools = tools
        self._final = final

    def call(self) -> ParsedCall:
        """The call.

        Raises:
            _Stop: it is none, or not yet.
        """
        self._take(WRAPPER)
        self._blank()
        if not self._take(FUNCTION):
            raise self._short(FUNCTION)
        tool = self._tools.get(self._name())
        if tool is None:
            raise _Stop(NotYet.NEVER)
        raw: dict[str, str] = {}
        while not self._ended():
            self._parameter(raw, tool)
        properties = tool.parameters.get("properties")
        schemas = properties if isinstance(properties, dict) else {}
        arguments = {key: type_value(value, schemas.get(key), tool.parameters) for key, value in raw.items()}
        return ParsedCall(name=tool.name, arguments=arguments, end=self._at)

    def _ended(self) -> bool:
        """Consumes the end of the call, if it stands here."""
        self._blank()
        if self._take(_END_WRAPPER):
            return True
        if not self._take(_END_FUNCTION):
            return False
        behind = self._at
        self._blank()
        if not self._take(_END_WRAPPER):
            if not self._final and _END_WRAPPER.startswith(self._text[self._at :]):
                raise _Stop(NotYet.MORE)
            self._at = behind
        return True

    def _parameter(self, raw: dict[str, str], tool: Tool) -> None:
        if self._take(_END_PARAMETER):
            return
        if not self._take(_PARAMETER):
            raise self._short(_PARAMETER, _END_PARAMETER, _END_FUNCTION, _END_WRAPPER)
        glued = self._at < len(self._text) and self._text[self._at] not in _STRAY + "\n>"
        key = "" if glued else self._name()
        if not key:
            raise _Stop(NotYet.NEVER)
        end, behind = self._value_end({*_properties(tool)} - {*raw, key})
        value = self._text[self._at : end]
        raw[key] = value.removeprefix("\n").removesuffix("\n")
        self._at = behind

    def _value_end(self, others: set[str]) -> tuple[int, int]:
        """Where the value ends and where the text behind its closing tag begins: the earliest sign wins."""
        found: list[tuple[int, int]] = []
        at = self._at
        while (at := self._text.find(_END_PARAMETER, at)) >= 0:
            behind = at + len(_END_PARAMETER)
            rest = self._text[behind : behind + 4096].lstrip()
            if rest.startswith(SIGNS):
                found.append((at, behind))
                break
            if not self._final and any(word.startswith(rest) for word in SIGNS):
                raise _Stop(NotYet.MORE)
            at = behind
        limit = found[0][0] if found else len(self._text)
        for match in _NEXT_PARAMETER.finditer(self._text, self._at, limit):
            if match.group(1).strip(_STRAY) in others:
                found.append((match.start(), match.start()))
                break
        at = self._text.find(_END_FUNCTION, self._at, limit)
        if at >= 0:
            rest = self._text[at + len(_END_FUNCTION) :].lstrip()
            if rest.startswith(_END_WRAPPER) or (self._final and not rest):
                found.append((at, at))
        if not found:
            raise _Stop(NotYet.NEVER if self._final else NotYet.MORE)
        return min(found)

    def _name(self) -> str:
        """A name inside a tag, up to ">", or to the end of its line where the ">" is missing."""
        while self._at < len(self._text) and self._text[self._at] in _STRAY + "\n":
            self._at += 1
        match = _NAME_END.search(self._text, self._at, self._at + _MAX_NAME_CHARS)
        if match is None:
            too_long = len(self._text) - self._at >= _MAX_NAME_CHARS
            raise _Stop(NotYet.NEVER if self._final or too_long else NotYet.MORE)
        name = self._text[self._at : match.start()].strip(_STRAY)
        self._at = match.end() if match.group() == ">" else match.start()
        return name

    def _take(self, word: str) -> bool:
        if not self._text.startswith(word, self._at):
            return False
        self._at += len(word)
        return True

    def _blank(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1

    def _short(self, *words: str) -> _Stop:
        """Neither word stands here: could one still come?"""
        rest = self._text[self._at :]
        possible = not self._final and any(word.startswith(rest) for word in words)
        return _Stop(NotYet.MORE if possible else NotYet.NEVER)


def _properties(tool: Tool) -> Mapping[str, JsonValue]:
    properties = tool.parameters.get("properties")
    return properties if isinstance(properties, dict) else {}


def find_opener(text: str, line: str, start: int) -> int:
    """Where the next call can begin, from start on; -1 if nowhere.

    Args:
        line: what stands before text on its first line; a bare `<function=` counts at the start of a line only.
    """
    wrapped = text.find(WRAPPER, start)
    at = start - 1
    while (at := text.find(FUNCTION, at + 1)) >= 0 and (wrapped < 0 or at < wrapped):
        before = text[text.rfind("\n", 0, at) + 1 : at]
        if not before.strip() and ("\n" in text[:at] or not line.strip()):
            return at
    return wrapped


def held_opener(text: str) -> int:
    """Length of the end of text that can become an opener."""
    return held_suffix(text, OPENERS)
