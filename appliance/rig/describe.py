"""Owns values in words: how a key's value is written in TOML, sizes with their unit."""

from __future__ import annotations

import functools

from appliance.rig.fields import Table
from appliance.rig.problem import found_text
from appliance.rig.size import format_size


@functools.cache
def _is_size(table: type[Table], key: str) -> bool:
    field = table.model_json_schema()["properties"][key]
    branches = field.get("anyOf", [field])
    items = [branch["items"] for branch in branches if "items" in branch]
    kinds = {leaf.get("type") for branch in (*branches, *items) for leaf in branch.get("anyOf", [branch])}
    return "string" in kinds and "integer" not in kinds


def value_text(table: type[Table], key: str, value: object) -> str:
    """The value as rig.toml writes it; None and tables as words."""
    if value is None:
        return "none"
    if isinstance(value, Table):
        return "none"
    if isinstance(value, tuple):
        return "[" + ", ".join(value_text(table, key, item) for item in value) + "]"
    if isinstance(value, int) and not isinstance(value, bool) and _is_size(table, key):
        return f'"{format_size(value)}"'
    return found_text(value)
