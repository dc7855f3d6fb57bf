"""Reading a part's bytes past its mapping: the same bytes, and a sentence where they are not there any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.errors import ModelFileError
from appliance.gguf.part import GgufPart, open_part, part_of_bytes
from tests.builders.gguf import tiny_model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tiny_model().write(tmp_path / "tiny.gguf")


def read(part: GgufPart, *, offset: int, size: int) -> bytes:
    target = bytearray(size)
    part.read_into(memoryview(target), offset)
    return bytes(target)


@pytest.mark.parametrize("size", [0, 1, 4097], ids=str)
@pytest.mark.parametrize("mapped", [True, False], ids=["file", "memory"])
def test_bytes_are_those_of_the_file(path: Path, size: int, mapped: bool) -> None:
    data = path.read_bytes()
    opened = open_part(path) if mapped else part_of_bytes(data, name="tiny")
    assert read(opened.part, offset=len(data) - size, size=size) == data[len(data) - size :]
    opened.part.close()


def test_a_file_that_lost_its_tail_is_named(path: Path) -> None:
    part, size = open_part(path).part, path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - 100)
    with pytest.raises(ModelFileError, match=rf"tiny.gguf: had {size} bytes .* and has {size - 100} now"):
        read(part, offset=size - 200, size=200)
    part.close()


def test_bytes_past_the_end_are_refused(path: Path) -> None:
    part, size = open_part(path).part, path.stat().st_size
    with pytest.raises(ModelFileError, match=f"ends at {size}"):
        read(part, offset=size - 8, size=9)
    part.close()


def test_a_closed_part_is_named(path: Path) -> None:
    part = open_part(path).part
    part.close()
    with pytest.raises(ModelFileError, match="already closed"):
        read(part, offset=0, size=1)
