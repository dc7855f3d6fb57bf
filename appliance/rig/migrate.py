"""Owns the way from an older schema of rig.toml to the present one, in memory and in the file's own text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import tomlkit

from appliance.rig.schema import SCHEMA

# Step from schema n to n + 1, in place; a step may move keys but not lose one. On a file's document it keeps comments.
MIGRATIONS: dict[int, Callable[[MutableMapping[str, Any]], None]] = {}


def older_schema(tree: Mapping[str, Any]) -> int | None:
    """The schema of a rig that has to be migrated and can be; None for any other."""
    version = tree.get("schema", SCHEMA)
    if isinstance(version, bool) or not isinstance(version, int) or version >= SCHEMA:
        return None
    return int(version) if all(step in MIGRATIONS for step in range(version, SCHEMA)) else None


def migrate(tree: MutableMapping[str, Any], version: int) -> None:
    """Brings a rig of an older schema to the present one."""
    for step in range(version, SCHEMA):
        MIGRATIONS[step](tree)
    tree["schema"] = SCHEMA


def migrated(text: str) -> str:
    """A rig's text in the present schema, comments kept; the text itself where it is."""
    document = tomlkit.parse(text)
    older = older_schema(document)
    if older is None:
        return text
    migrate(document, older)
    return tomlkit.dumps(document)
