"""Small checks on decoded JSON: each returns the value with its type, or refuses it with the path at fault."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn, cast

from appliance.errors import RequestError
from appliance.text.chat import JsonValue

# Deeper values would meet the recursion limits of JSON writers and of the template engine.
MAX_DEPTH: Final = 64
# Python refuses to write integers of thousands of digits.
MAX_INTEGER_BITS: Final = 1024


def refuse(path: str, problem: str, *, code: str = "invalid_value") -> NoReturn:
    """Raises RequestError "path problem" with param = path."""
    raise RequestError(f"{path} {problem}", code=code, param=path)


def kind_of(value: object) -> str:
    """The JSON name of a value's type, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an object" if isinstance(value, Mapping) else "a list"


def as_object(value: object, path: str) -> Mapping[str, object]:
    """A JSON object."""
    if not isinstance(value, Mapping):
        refuse(path, f"is {kind_of(value)}; it must be an object")
    return cast("Mapping[str, object]", value)


def as_list(value: object, path: str) -> Sequence[object]:
    """A JSON list."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        refuse(path, f"is {kind_of(value)}; it must be a list")
    return value


def as_text(value: object, path: str) -> str:
    """A JSON string."""
    if not isinstance(value, str):
        refuse(path, f"is {kind_of(value)}; it must be a string")
    return value


def as_json(value: object, path: str, *, depth: int = 0) -> JsonValue:
    """A copy made of plain JSON values, at most MAX_DEPTH deep."""
    if depth > MAX_DEPTH:
        refuse(path, f"is nested deeper than {MAX_DEPTH} levels; flatten it")
    if isinstance(value, float) and not math.isfinite(value):
        refuse(path, "holds a number that JSON cannot write")
    if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        refuse(path, f"holds an integer of more than {MAX_INTEGER_BITS} bits; send it as a string")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): as_json(item, path, depth=depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [as_json(item, path, depth=depth + 1) for item in value]
    return refuse(path, "is not a JSON value")


def decode_object(text: str, path: str) -> dict[str, JsonValue]:
    """The JSON object a string spells; "" is {}."""
    if not text.strip():
        return {}
    try:
        value = as_json(json.loads(text, parse_constant=_no_constant), path)
    except (ValueError, RecursionError):
        refuse(path, f"is {text!r:.60}; it must be a JSON object, or a string that spells one")
    if not isinstance(value, dict):
        refuse(path, f"spells {kind_of(value)}; it must spell an object")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
