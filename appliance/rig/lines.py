"""Owns where a key stands in the text of a rig, which TOML parsers do not keep."""

from __future__ import annotations

import re

_HEADER = re.compile(r"\s*\[{1,2}\s*([^\[\]]+?)\s*\]{1,2}\s*(?:#.*)?$")
_KEY = re.compile(
    r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=(.*)$"""
)
_STRING = re.compile(r'"(?:\\.|[^"\\])*"|\'[^\']*\'')
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")


def key_lines(text: str) -> dict[str, int]:
    """Line number, from 1, of the first appearance of every table ("server") and key ("server.port")."""
    lines: dict[str, int] = {}
    table = ""
    closes: str | None = None
    depth = 0
    for number, line in enumerate(text.splitlines(), 1):
        if closes is not None:
            if closes in line:
                closes = None
            continue
        if depth > 0:
            depth += _depth(line)
            continue
        header = _HEADER.match(line)
        if header is not None:
            table = _dotted(header[1])
            lines.setdefault(table, number)
            continue
        match = _KEY.match(line)
        if match is None:
            continue
        name = _dotted(match[1])
        whole = f"{table}.{name}" if table else name
        lines.setdefault(whole, number)
        lines.setdefault(whole.rpartition(".")[0] or whole, number)
        value = match[2].strip()
        for quotes in ('"""', "'''"):
            if value.startswith(quotes) and quotes not in value[3:]:
                closes = quotes
        depth = max(0, _depth(value)) if closes is None else 0
    return lines


def _dotted(text: str) -> str:
    return ".".join(part.strip("\"'") for part in _PART.findall(text))


def _depth(line: str) -> int:
    """Brackets left open by a line, those in texts and comments not counted."""
    bare = _STRING.sub("", line).split("#", 1)[0]
    return bare.count("[") - bare.count("]")
