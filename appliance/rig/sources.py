"""Owns the three places a value can come from: file, environment, flag; later wins."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from appliance.rig.lines import key_lines
from appliance.rig.paths import RIG_VARIABLE
from appliance.rig.problem import Problem, nearest
from appliance.rig.schema import TABLES

PREFIX = "STRATA_"
# No key of a rig goes deeper than [[machine.card]] with a list in it.
DEEPEST = 16


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: kind "default", "file", "environment" or "flag", and the place within it."""

    kind: str
    where: str


@dataclass(slots=True)
class Values:
    """Raw values by table, with the origin of each dotted key, and what was wrong on the way."""

    tree: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def where(self, dotted: str, fallback: str) -> str:
        """The place of the key or of the closest table above it."""
        name = dotted
        while name:
            if name in self.origins:
                return self.origins[name].where
            name = name.rpartition(".")[0]
        return fallback


def parse_file(text: str, name: str, values: Values) -> None:
    """Adds the values of a rig's text; a syntax error becomes a problem with the parser's position."""
    try:
        tree = _toml(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        says, _, position = str(error).partition(" (at ")
        line = position.removeprefix("line ").split(",")[0].rstrip(")")
        where = f"{name}:{line}" if line.isdigit() else f"{name}:{len(text.splitlines())}"
        column = position.rpartition("column ")[2].rstrip(")") if line.isdigit() else ""
        says = f"not TOML: {says[:1].lower()}{says[1:]}" + (f" at column {column}" if column else " at the end")
        values.problems.append(
            Problem(where=where, key="", says=says, hint="each table once, each key once, text in quotes")
        )
        return
    values.tree.update(tree)
    for dotted, line_number in key_lines(text).items():
        values.origins[dotted] = Origin("file", f"{name}:{line_number}")


def _toml(text: str) -> dict[str, Any]:
    """The text as TOML; what Python cannot hold is an error like any other.

    Raises:
        tomllib.TOMLDecodeError: not TOML, a number of thousands of digits, or nested without end.
    """
    try:
        tree = tomllib.loads(text)
        if _deeper(tree, DEEPEST):
            raise tomllib.TOMLDecodeError("nested too deep")
    except RecursionError:
        raise tomllib.TOMLDecodeError("nested too deep") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # Python refuses to read integers of thousands of digits
        raise tomllib.TOMLDecodeError("a number is too long") from None
    return tree


def _deeper(value: object, levels: int) -> bool:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_deeper(item, levels - 1) for item in items)


def add_environment(environment: Mapping[str, str], values: Values) -> None:
    """Adds STRATA_<TABLE>__<KEY>; any other STRATA_* name is a problem."""
    known = {f"{PREFIX}{table}__{key}".upper(): (table, key) for table, key in settable_keys()}
    for name in sorted(environment):
        if not name.upper().startswith(PREFIX) or name == RIG_VARIABLE:
            continue
        if name in known:
            _set(values, *known[name], environment[name], Origin("environment", name))
            continue
        close = _nearest_name(name, known)
        values.problems.append(
            Problem(
                where=f"environment {name}",
                key="",
                says="no such setting",
                allowed=f"{RIG_VARIABLE} and {PREFIX}<TABLE>__<KEY>",
                hint=f"did you mean {close}?" if close else "unset it",
            )
        )


def add_flags(flags: Sequence[tuple[str, str, str]], values: Values) -> None:
    """Adds flags.

    Args:
        flags: (flag as typed, dotted key, text) each.
        values: receives them.
    """
    known = {f"{table}.{key}": (table, key) for table, key in settable_keys()}
    for flag, dotted, text in flags:
        if dotted in known:
            _set(values, *known[dotted], text, Origin("flag", flag))
            continue
        close = nearest(dotted, known)
        values.problems.append(
            Problem(
                where=flag,
                key=dotted,
                says="no such key",
                allowed="TABLE.KEY=VALUE",
                hint=f"did you mean {close}?" if close else "",
            )
        )


def settable_keys() -> list[tuple[str, str]]:
    """(table, key) of everything that environment and flags may set: what an operator decides."""
    return [(table, key) for table, model in TABLES.items() if table != "machine" for key in model.model_fields]


def _nearest_name(name: str, known: Mapping[str, tuple[str, str]]) -> str | None:
    """The known name meant, also when the table was left out (STRATA_PORT)."""
    rest = name.upper().removeprefix(PREFIX)
    for full, (_, key) in known.items():
        if rest == key.upper() or full.replace("__", "_") == name.upper():
            return full
    return nearest(name, [*known, RIG_VARIABLE])


def _parse(table: str, key: str, text: str) -> Any:
    """The text as TOML where that gives a value other than text, else the text itself."""
    if _is_text(table, key):
        return text
    try:
        tree = _toml(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return tree["value"] if [*tree] == ["value"] else text  # more lines would be more keys, and be lost


def _is_text(table: str, key: str) -> bool:
    """Whether the key takes nothing but text, so that 8080 or true are text there too."""
    field_schema = TABLES[table].model_json_schema()["properties"][key]
    branches = field_schema.get("anyOf", [field_schema])
    return all(branch.get("type") in ("string", "null") and "enum" not in branch for branch in branches) and any(
        branch.get("type") == "string" and "const" not in branch for branch in branches
    )


def _set(values: Values, table: str, key: str, text: str, origin: Origin) -> None:
    if any("\ud800" <= letter <= "\udfff" for letter in text):  # how Python keeps bytes that are not UTF-8
        values.problems.append(Problem(where=origin.where, key=f"{table}.{key}", says="the value is not UTF-8"))
        return
    place = values.tree.setdefault(table, {})
    if isinstance(place, dict):
        place[key] = _parse(table, key, text)
        values.origins[f"{table}.{key}"] = origin
