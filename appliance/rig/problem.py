"""Owns how a problem in a rig is told: where, key, found, allowed, what to try."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import tomlkit

from appliance.errors import RigError

FOUND_CHARACTERS = 80
_BARE = re.compile(r"true|false|-?\d{1,20}(\.\d{1,20})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One reason why a rig is refused.

    Attributes:
        where: "rig.toml:7", an environment name or a flag.
        key: dotted key, "" for the file itself.
        says: what is wrong.
        allowed: what would be accepted, "" when `says` holds it.
        hint: what to try, "" for none.
    """

    where: str
    key: str
    says: str
    allowed: str = ""
    hint: str = ""

    def sentence(self) -> str:
        """One line."""
        text = f"{self.where}: {self.key}: {self.says}" if self.key else f"{self.where}: {self.says}"
        if self.allowed:
            text += f"; allowed: {self.allowed}"
        return f"{text} ({self.hint})" if self.hint else text


class RigProblems(RigError):
    """Everything that is wrong with a rig, one sentence a line."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(problem.sentence() for problem in problems))
        self.problems = tuple(problems)


def refuse(problems: Iterable[Problem]) -> None:
    """Does nothing without problems.

    Raises:
        RigProblems: with all of them.
    """
    found = tuple(problems)
    if found:
        raise RigProblems(found)


def found_text(value: object) -> str:
    """The value as TOML writes it, shortened."""
    try:
        text = tomlkit.item(list(value) if isinstance(value, tuple) else value).as_string()
    except (TypeError, ValueError):
        text = repr(value)
    text = " ".join(text.split())
    return text if len(text) <= FOUND_CHARACTERS else text[: FOUND_CHARACTERS - 3] + "..."


def quoted_hint(kind: str, value: object) -> str:
    """What to try for a number, true or false that stands in quotes, the commonest slip in a first TOML; else "".

    Args:
        kind: pydantic's name of the error, such as "int_type".
        value: what was found.
    """
    if not kind.startswith(("int_", "float_", "bool_")) or not isinstance(value, str):
        return ""
    bare = value.strip()
    return f"without quotes: {bare}" if _BARE.fullmatch(bare) else ""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known spelling closest to the name, or None when nothing resembles it."""
    lowered = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.55)
    return lowered[matches[0]] if matches else None


def first_line(error: Exception) -> str:
    """A foreign error in one line, or its kind when it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
