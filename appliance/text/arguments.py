"""Argument values of a tool call: raw text to JSON, as the tool's JSON schema types them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NoReturn

from appliance.text.chat import JsonValue
from appliance.text.tokenizer import without_lone_surrogates

# A schema can refer to itself.
_MAX_SCHEMAS: Final = 64


def type_value(raw: str, schema: JsonValue, root: Mapping[str, JsonValue]) -> JsonValue:
    """One value.

    A schema of strings alone keeps the text as it is. A schema without strings takes JSON (also True, False and None),
    and text that is no JSON stays text: the caller's own validation then says so to the model. With strings and
    others, JSON of one of the others wins. Without a type, JSON wins.

    Args:
        schema: of this argument; None where the tool does not declare it.
        root: the tool's parameters, for local "$ref".
    """
    kinds = _kinds(schema, root)
    if kinds == {"string"}:
        return raw
    try:
        value: JsonValue = json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return {"True": True, "False": False, "None": None}.get(raw.strip(), raw) if "string" not in kinds else raw
    if isinstance(value, str) or ("string" in kinds and not kinds & _kinds_of(value)):
        # Text in quotes: JSON only where the schema has no use for the quotes themselves.
        return value if "string" not in kinds else raw
    return value


def dump_arguments(arguments: Mapping[str, JsonValue]) -> str:
    """The JSON object that clients get."""
    return without_lone_surrogates(json.dumps(arguments, ensure_ascii=False))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _kinds_of(value: JsonValue) -> set[str]:
    if value is None:
        return {"null"}
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int):
        return {"integer", "number"}
    if isinstance(value, float):
        return {"number"}
    if isinstance(value, str):
        return {"string"}
    return {"array"} if isinstance(value, list) else {"object"}


def _kinds(schema: JsonValue, root: Mapping[str, JsonValue]) -> set[str]:
    """Names of the types a schema admits; empty when it does not say."""
    found: set[str] = set()
    open_schemas = [schema]
    for _ in range(_MAX_SCHEMAS):
        if not open_schemas:
            break
        current = open_schemas.pop()
        if not isinstance(current, dict):
            continue
        declared = current.get("type")
        values = [current["const"]] if "const" in current else current.get("enum")
        if isinstance(declared, str):
            found.add(declared)
        elif isinstance(declared, list):
            found.update(kind for kind in declared if isinstance(kind, str))
        elif isinstance(values, list):
            found.update(kind for value in values for kind in _kinds_of(value))
        elif isinstance(current.get("$ref"), str):
            open_schemas.append(_resolve(str(current["$ref"]), root))
        else:
            for word in ("anyOf", "oneOf", "allOf"):
                branches = current.get(word)
                open_schemas += branches if isinstance(branches, list) else []
    return found


def _resolve(reference: str, root: Mapping[str, JsonValue]) -> JsonValue:
    """The schema behind "#/$defs/Name"; None when there is none."""
    value: JsonValue = dict(root)
    for step in reference.removeprefix("#").strip("/").split("/"):
        if not isinstance(value, dict):
            return None
        value = value.get(step.replace("~1", "/").replace("~0", "~"))
    return value
