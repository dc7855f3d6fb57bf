"""Owns docs/rig.md and docs/rig.schema.json, both generated: `python -m appliance.rig.document`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from appliance.rig.describe import value_text
from appliance.rig.fields import Table, facts
from appliance.rig.machine_schema import BenchTable, CardTable
from appliance.rig.schema import SCHEMA, TABLES, Rig

INTRODUCTION = f"""# rig.toml

<!-- Generated from the schema by `python -m appliance.rig.document`. Edit appliance/rig/schema.py instead. -->

One file says what runs where. `strata-setup --auto --rig FILE` writes it, `strata check --rig FILE` checks it without
starting anything, and `strata serve --rig FILE` reads it at every start. `strata plan --explain` shows every value and
where it came from.

**Where.** `--rig FILE`, else `$STRATA_RIG`, else `/config/rig.toml` in the image and `~/.config/strata/rig.toml`
elsewhere. A path that was given must exist. If only the default path is absent, `strata serve` writes a rig there and
says so.

**Sources.** The file, then the environment (`STRATA_SERVER__PORT=8081`: table, two underscores, key), then flags
(`--set server.port=8081`); the later wins. Any other `STRATA_*` name is refused, and so is every unknown table or key.

**Values.** Sizes are text with a unit: `"14.5 GiB"`, `"700 MiB"`. Relative paths start at the rig's folder.
`schema = {SCHEMA}` stands above the first table; an older file is migrated in memory, a newer one is refused.

**In this version.** A key whose capability is not built yet accepts the values of its last column and refuses others
with "not available in this version".
"""


def markdown() -> str:
    """The reference of every key."""
    parts = [INTRODUCTION]
    for name, table in TABLES.items():
        parts.append(_section(f"[{name}]", table))
        if name == "machine":
            parts.append(_section("[[machine.card]]", CardTable))
            parts.append(_section("[machine.bench]", BenchTable))
    return "\n".join(parts)


def _section(title: str, table: type[Table]) -> str:
    lines = [
        f"## {title}",
        "",
        (table.__doc__ or "").strip(),
        "",
        "| key | meaning | allowed | default | example | in this version |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for key, field in table.model_fields.items():
        told = facts(field)
        default = value_text(table, key, field.default)
        only = _only(table, key, told.only)
        if told.on_card is not None:
            only += f"; on a card {_only(table, key, told.on_card or None) or 'all of them'}"
        cells = (
            f"`{key}`",
            told.says,
            told.allowed,
            _code(default),
            _code(told.example),
            only,
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def _only(table: type[Table], key: str, values: tuple[object, ...] | None) -> str:
    return "" if values is None else "only " + " or ".join(value_text(table, key, value) for value in values)


def _code(text: str) -> str:
    return text if text == "none" else f"`{text}`"


def json_schema() -> str:
    """JSON schema of rig.toml, for editors that complete TOML."""
    return json.dumps(Rig.model_json_schema(), indent=2, sort_keys=True) + "\n"


def main(folder: Path) -> None:
    """Writes both files."""
    (folder / "rig.md").write_text(markdown(), encoding="utf-8")
    (folder / "rig.schema.json").write_text(json_schema(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
