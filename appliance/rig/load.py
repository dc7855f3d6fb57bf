"""Owns loading: sources merged, every problem found at once, every value with its origin."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from appliance.rig.fields import Table, facts
from appliance.rig.machine_schema import BenchTable, CardTable
from appliance.rig.migrate import migrate, older_schema
from appliance.rig.paths import read_rig_text
from appliance.rig.problem import Problem, found_text, nearest, quoted_hint, refuse
from appliance.rig.rules import name_problems, security_problems
from appliance.rig.schema import SCHEMA, TABLES, Rig
from appliance.rig.sources import Origin, Values, add_environment, add_flags, parse_file

Flags = Sequence[tuple[str, str, str]]

# Words that other programs use, for the "did you mean" of unknown names.
SYNONYMS: dict[str, str] = {
    "gpu": "cards",
    "gpus": "cards",
    "devices": "cards",
    "api_key": "keys_file",
    "api_keys": "keys_file",
    "keys": "keys_file",
    "listen": "host",
    "address": "host",
    "bind": "host",
    "ctx": "max_tokens",
    "context_length": "max_tokens",
    "tensor_split": "layer_split",
    "slots": "parallel",
    "n_parallel": "parallel",
    "model_path": "path",
    "cors": "cors_origins",
    "hosts": "allowed_hosts",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRig:
    """A rig and where each value came from.

    Attributes:
        rig: the values.
        path: the file; None when there was none.
        origins: origin of every dotted key that is not a default.
        migrated_from: the file's older schema, None when it is of this version.
    """

    rig: Rig
    path: Path | None
    origins: Mapping[str, Origin]
    migrated_from: int | None = None

    def origin(self, dotted: str) -> Origin:
        """Where the value of a key came from."""
        return self.origins.get(dotted, Origin("default", "default"))

    def where(self, dotted: str) -> str:
        """The place to name when the key is at fault."""
        origin = self.origins.get(dotted)
        return origin.where if origin else (self.path.name if self.path else "rig")

    def resolve(self, path: str) -> Path:
        """A path of the rig; a relative one starts at the rig's folder."""
        base = self.path.parent if self.path else Path.cwd()
        return base / Path(path).expanduser()


def load_rig(path: Path | None, *, environment: Mapping[str, str] = os.environ, flags: Flags = ()) -> LoadedRig:
    """Reads, merges and validates.

    Args:
        path: the file; None for defaults, environment and flags alone.
        environment: where STRATA_* names are looked for.
        flags: (flag as typed, dotted key, text) each.

    Raises:
        RigError: the file cannot be read.
        RigProblems: everything that is wrong, at once.
    """
    text = None if path is None else read_rig_text(path)
    return load_text(text, path=path, environment=environment, flags=flags)


def load_text(
    text: str | None, *, path: Path | None = None, environment: Mapping[str, str] | None = None, flags: Flags = ()
) -> LoadedRig:
    """As `load_rig`, from the text of a file."""
    name = path.name if path is not None else "rig.toml"
    values = Values()
    migrated_from = None
    if text is not None:
        parse_file(text, name, values)
        if not values.problems:
            migrated_from = _migrate(values, name)
    readable = not values.problems
    add_environment(environment or {}, values)
    add_flags(flags, values)
    rig = _validate(values, name) if readable else None
    refuse(sorted(values.problems, key=_reading_order))
    if rig is None:
        raise AssertionError("a rig without problems did not validate")
    loaded = LoadedRig(rig=rig, path=path, origins=_leaves(values), migrated_from=migrated_from)
    refuse(security_problems(rig, loaded.where) + name_problems(rig, loaded.where))
    return loaded


def _reading_order(problem: Problem) -> tuple[bool, int]:
    """The file's from top to bottom, then the rest as it was found."""
    line = problem.where.rpartition(":")[2]
    return (not line.isdigit(), int(line) if line.isdigit() else 0)


def _migrate(values: Values, name: str) -> int | None:
    version = values.tree.get("schema", SCHEMA)
    where = values.where("schema", name)
    if isinstance(version, bool) or not isinstance(version, int):
        return None  # the schema itself refuses it, with the others
    if version > SCHEMA:
        values.problems.append(
            Problem(
                where=where,
                key="schema",
                says=f"found {version}, written by a newer version",
                allowed=f"up to {SCHEMA}",
                hint="update the appliance, or write a new rig with strata-setup --auto --reset",
            )
        )
        return None
    older = older_schema(values.tree)
    if older is not None:
        migrate(values.tree, older)
    return older


def _validate(values: Values, name: str) -> Rig | None:
    try:
        return Rig.model_validate(_tuples(values.tree))
    except ValidationError as error:
        seen: dict[str, Problem] = {}
        for entry in error.errors():
            problem = _problem(entry["loc"], entry["type"], entry["msg"], values, name)
            known = seen.get(problem.key)
            # A union reports each of its branches; a sentence of our own says more than "should be".
            if known is None or (problem.hint and not known.hint):
                seen[problem.key] = problem
        values.problems.extend(p for p in seen.values() if p not in values.problems)
        return None


def _problem(loc: tuple[int | str, ...], kind: str, message: str, values: Values, name: str) -> Problem:
    table, dotted, table_type = _place(loc)
    where = values.where(dotted, name)
    if kind == "extra_forbidden":
        return _unknown(table, dotted, where)
    found = _found(values.tree, loc, dotted.rpartition(".")[2])
    key_name = dotted.rpartition(".")[2]
    if dotted == "schema":
        allowed = str(SCHEMA)
    elif table_type is None or key_name not in table_type.model_fields:
        return Problem(where=where, key=dotted, says=f"found {found_text(found)}", allowed=f"a [{dotted}] table")
    else:
        allowed = facts(table_type.model_fields[key_name]).allowed
    own = kind in {"size", "list", "text", "host", "origin"}
    return Problem(
        where=where,
        key=dotted,
        says=f"found {found_text(found)}",
        allowed=allowed,
        hint=message if own else quoted_hint(kind, found),
    )


def _found(tree: Any, loc: tuple[int | str, ...], key_name: str) -> Any:
    """The raw value of the key that an error is about."""
    value = tree
    for part in loc:
        if isinstance(value, dict):
            value = value.get(part, value)
        elif isinstance(value, list) and isinstance(part, int):
            value = value[part]
        if part == key_name:
            break
    return value


def _place(loc: tuple[int | str, ...]) -> tuple[str, str, type[Table] | None]:
    """(table, dotted key, the model of the table) of a validation error; deeper parts of `loc` are union branches."""
    top = str(loc[0])
    if len(loc) == 1:
        return "", top, None
    model = TABLES.get(top)
    if top == "machine" and len(loc) > 2 and str(loc[1]) in ("card", "bench"):
        key_name = str(loc[3] if loc[1] == "card" and len(loc) > 3 else loc[2])
        return f"machine.{loc[1]}", f"machine.{loc[1]}.{key_name}", CardTable if loc[1] == "card" else BenchTable
    return top, f"{top}.{loc[1]}", model


def _unknown(table: str, dotted: str, where: str) -> Problem:
    """An unknown table or key. The value is not repeated: a misspelt key may hold a secret."""
    key_name = dotted.rpartition(".")[2]
    if not table:
        homes = [home for home, model in TABLES.items() if key_name in model.model_fields]
        if homes:
            says = "this key stands above the first [table] header"
            return Problem(where=where, key=dotted, says=says, hint=f"move it below [{homes[0]}]")
        known = [*TABLES]
        return Problem(where=where, key=dotted, says="no such table or key", **_guess(key_name, known))
    model = TABLES.get(table)
    known = [*model.model_fields] if model else []
    homes = [home for home, other in TABLES.items() if home != table and key_name in other.model_fields]
    if homes and key_name not in known:
        return Problem(where=where, key=dotted, says="no such key here", hint=f"it belongs below [{homes[0]}]")
    return Problem(where=where, key=dotted, says="no such key", **_guess(key_name, known))


def _guess(name: str, known: list[str]) -> dict[str, str]:
    words = {word: word for word in known} | {word: meant for word, meant in SYNONYMS.items() if meant in known}
    close = nearest(name, words)
    return {"allowed": ", ".join(known), "hint": f"did you mean {words[close]}?" if close else ""}


def _tuples(value: Any) -> Any:
    """Lists as tuples: the models are frozen and strict."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    return value


def _leaves(values: Values) -> dict[str, Origin]:
    return {dotted: origin for dotted, origin in values.origins.items() if dotted not in TABLES}
