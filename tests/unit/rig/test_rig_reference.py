"""The reference of rig.toml is generated, whole and true."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from appliance.rig.document import json_schema, markdown
from appliance.rig.fields import facts
from appliance.rig.lines import key_lines
from appliance.rig.load import load_text
from appliance.rig.paths import IMAGE_RIG, find_rig, in_image
from appliance.rig.schema import TABLES
from appliance.rig.size import GIB, KIB, MIB, format_size, parse_size

DOCS = Path(__file__).parents[3] / "docs"
KEYS = [(table, key) for table, model in TABLES.items() for key in model.model_fields]


def test_the_documents_equal_the_schema() -> None:
    assert (DOCS / "rig.md").read_text() == markdown(), "run: python -m appliance.rig.document"
    assert (DOCS / "rig.schema.json").read_text() == json_schema(), "run: python -m appliance.rig.document"


@pytest.mark.parametrize(("table", "key"), KEYS, ids=[f"{table}.{key}" for table, key in KEYS])
def test_every_key_has_a_sentence_and_an_example_that_loads(table: str, key: str) -> None:
    told = facts(TABLES[table].model_fields[key])
    assert told.says.endswith(".")
    assert told.allowed
    more = 'keys_file = "k"\n' if (table, key) == ("server", "host") else ""
    assert load_text(f"[{table}]\n{key} = {told.example}\n{more}").origin(f"{table}.{key}").where == "rig.toml:2"


@pytest.mark.parametrize(
    ("text", "size"),
    [("14.5 GiB", int(14.5 * GIB)), ("700 MiB", 700 * MIB), ("1KiB", KIB), ("2 GB", 2 * 10**9), ("0 B", 0)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["14.5 GiB", "700 MiB", "1 KiB", "12 B", "1.25 TiB"])
def test_sizes_are_written_as_they_are_read(text: str) -> None:
    assert format_size(parse_size(text)) == text


def test_lines_of_keys() -> None:
    text = '# [no]\nschema = 1\n[a] # x\nb = [\n  1,\n  # c = 2\n]\nd = """\ne = 1\n"""\n[[m.card]]\n"n" = 1\ns.t = 1\n'
    tomllib.loads(text)
    assert key_lines(text) == {
        "schema": 2,
        "a": 3,
        "a.b": 4,
        "a.d": 8,
        "m.card": 11,
        "m.card.n": 12,
        "m.card.s.t": 13,
        "m.card.s": 13,
    }


def test_where_the_rig_is(tmp_path: Path) -> None:
    home = {"HOME": "/home/x"}
    assert find_rig("/a.toml", home | {"STRATA_RIG": "/b.toml"}, root=tmp_path).path == Path("/a.toml")
    assert find_rig(None, home | {"STRATA_RIG": "/b.toml"}, root=tmp_path).given
    default = find_rig(None, home, root=tmp_path)
    assert (default.path, default.given) == (Path("/home/x/.config/strata/rig.toml"), False)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "strata-image").touch()
    assert in_image(tmp_path)
    assert find_rig(None, home, root=tmp_path).path == IMAGE_RIG
