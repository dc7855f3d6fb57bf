"""Sets below a folder: complete ones with what their header says, incomplete ones with what is missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from appliance.errors import ModelFileError
from appliance.examine import BUILTIN_MODEL
from appliance.models.find import find_models, require_complete
from tests.builders.gguf import split_names, tiny_model


def touch(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"GGUF")


@pytest.mark.parametrize(
    ("names", "missing", "partial"),
    [
        pytest.param(
            ("m-00001-of-00003.gguf", "m-00003-of-00003.gguf", "m-00002-of-00003.gguf.part"),
            (),
            ("m-00002-of-00003.gguf",),
            id="CFG-20 shards 1 and 3 of 3 and a .part",
        ),
        pytest.param(
            ("m-00001-of-00003.gguf", "m-00003-of-00003.gguf"), ("m-00002-of-00003.gguf",), (), id="CFG-20 one missing"
        ),
        pytest.param(("m-00002-of-00002.gguf",), ("m-00001-of-00002.gguf",), (), id="CFG-20 the first is missing"),
        pytest.param(("m.gguf.crdownload",), (), ("m.gguf",), id="CFG-20 a browser's unfinished download"),
    ],
)
def test_incomplete_sets(
    tmp_path: Path, names: tuple[str, ...], missing: tuple[str, ...], partial: tuple[str, ...]
) -> None:
    touch(tmp_path / "sub", *names, "notes.txt", "other.part")
    (found,) = find_models(tmp_path)
    assert (found.missing, found.partial, found.complete) == (missing, partial, False)
    assert found.facts is None
    for name in (*missing, *partial):
        assert name in found.sentence()
    with pytest.raises(ModelFileError, match="incomplete"):
        require_complete(found)


def test_a_complete_set_with_its_header(tmp_path: Path) -> None:
    (tmp_path / "owner" / "repo").mkdir(parents=True)
    tiny_model().write_split(tmp_path / "owner" / "repo", parts=3)
    lines: list[str] = []
    (found,) = find_models(tmp_path, progress=lines.append)
    assert found.complete
    assert [path.name for path in found.present] == list(split_names(found.present[0].name[:-20], 3))
    assert found.size_bytes == sum(path.stat().st_size for path in found.present)
    require_complete(found)
    assert len(lines) == 1


def test_the_built_in_model(tmp_path: Path) -> None:
    shutil.copy(BUILTIN_MODEL, tmp_path / "m.gguf")
    (found,) = find_models(tmp_path)
    facts = found.facts
    assert facts is not None
    assert (facts.layers, facts.context_tokens, facts.has_draft, facts.draft_note) == (8, 4096, True, None)
    assert facts.dense_bytes > 0
    assert facts.experts_bytes > 0
    assert 0 < facts.table_bytes < found.size_bytes


def test_roles_and_order(tmp_path: Path) -> None:
    touch(tmp_path, "mmproj-a.gguf", "mtp-a.gguf", "bad.gguf", "half-00001-of-00002.gguf")
    found = find_models(tmp_path)
    assert [(one.path.name, one.role, one.complete) for one in found] == [
        ("mmproj-a.gguf", "vision", True),
        ("mtp-a.gguf", "draft", True),
        ("bad.gguf", "model", True),
        ("half-00001-of-00002.gguf", "model", False),
    ]
    assert found[2].problem
    with pytest.raises(ModelFileError, match=r"bad\.gguf"):
        require_complete(found[2])


def test_a_copy_that_was_cut_short(tmp_path: Path) -> None:
    """CFG-20: the name is that of a finished file, the header knows better."""
    data = BUILTIN_MODEL.read_bytes()
    (tmp_path / "m.gguf").write_bytes(data[: len(data) // 2])
    (found,) = find_models(tmp_path)
    assert (found.complete, found.partial) == (False, ("m.gguf",))
    with pytest.raises(ModelFileError):
        require_complete(found)


def test_nothing_there(tmp_path: Path) -> None:
    assert find_models(tmp_path) == ()
    assert find_models(tmp_path / "absent") == ()
