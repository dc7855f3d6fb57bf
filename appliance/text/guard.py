"""Keeps what clients write apart from what the template writes, through any string work the template does.

Special tokens are looked for in the rendered text, so a client's "<|im_end|>" must not be found there. Before that,
a mark (a random run of digits, which trimming, JSON, slicing at words and changes of case leave alone) is put behind
every character of client text that can begin a special token, and in front of client text that could complete one the
template began. Special tokens are then split off the marked text; the marks are removed from the rest.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from typing import Final

from appliance.text.chat import JsonValue

# Templates compare these; no template wraps a schema's type in tag brackets.
_WORDS: Final = frozenset({"object", "string", "number", "integer", "boolean", "array", "null", "function"})


class Guard:
    """Marks for one prompt. A mark starts with its only 9, so digits around it cannot shift it."""

    def __init__(self, special_texts: Iterable[str]) -> None:
        specials = tuple(special_texts)
        self.mark = "9" + "".join(secrets.choice("012345678") for _ in range(23))
        self._inside = "\n".join(text[1:-1] for text in specials)
        self._endings = tuple({text[start:] for text in specials for start in range(1, len(text))})
        first = "".join(re.escape(character) for character in sorted({text[0] for text in specials}))
        self._first = re.compile(f"[{first}]") if first else None

    def text(self, text: str, *, key: bool = False) -> str:
        """Client text with marks. key=True for names of JSON members, which templates look up by their plain names."""
        if self._first is None:
            return text
        marked = self._first.sub(lambda match: match.group() + self.mark, text)
        core = marked.lstrip()
        completes = core.startswith(self._endings) or (not key and self._is_inside(core.rstrip()))
        return marked[: len(marked) - len(core)] + self.mark + core if completes else marked

    def json(self, value: JsonValue) -> JsonValue:
        """A client's JSON value with marks in every string, member names included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.json(item) for item in value]
        if isinstance(value, dict):
            return {self.text(name, key=True): self.json(item) for name, item in value.items()}
        return value

    def clean(self, text: str) -> str:
        """Text without marks."""
        return text.replace(self.mark, "")

    def _is_inside(self, core: str) -> bool:
        return bool(core) and core not in _WORDS and core in self._inside
