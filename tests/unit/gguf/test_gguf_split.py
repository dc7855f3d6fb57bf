"""Split sets (GGUF-10) and short shards (GGUF-08): whichever file is named, the set opens or says what lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.errors import ModelFileError
from appliance.gguf.reader import open_set
from appliance.model.qwen4exp.spec import read_spec
from tests.builders.gguf import TensorSpec, gguf_bytes, split_bytes, split_names, tiny_model

TENSORS = tuple(TensorSpec(f"t{n}", (8, 8)) for n in range(6))


def write(folder: Path, *, parts: int = 3, first_empty: bool = False) -> list[Path]:
    files = split_bytes({"general.name": "set"}, TENSORS, parts=parts, first_empty=first_empty)
    paths = [folder / name for name in split_names("set", parts)]
    for path, data in zip(paths, files, strict=True):
        path.write_bytes(data)
    return paths


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        open_set(path)
    return str(caught.value)


@pytest.mark.parametrize("first_empty", [False, True], ids=["GGUF-10-full-first", "GGUF-10-first-without-tensors"])
@pytest.mark.parametrize("offered", [0, 1, 2, None], ids=["part1", "part2", "part3", "folder"])
def test_any_part_or_the_folder_opens_the_set(tmp_path: Path, offered: int | None, first_empty: bool) -> None:
    paths = write(tmp_path, first_empty=first_empty)
    (tmp_path / "mmproj-F16.gguf").write_bytes(b"a vision file beside the model")
    (tmp_path / "README.md").touch()
    found = open_set(tmp_path if offered is None else paths[offered])
    assert [p.path for p in found.parts] == paths
    assert list(found.tensors) == [t.name for t in TENSORS]
    assert found.metadata.str_("general.name") == "set"
    assert found.tensors["t5"].part is found.parts[2]
    assert bytes(found.tensors["t5"].raw()) == bytes(256)
    found.close()


def test_gguf_10_missing_parts_are_listed(tmp_path: Path) -> None:
    paths = write(tmp_path, parts=4)
    paths[0].unlink()
    paths[2].unlink()
    message = refusal(tmp_path)
    assert "2 of the 4 parts are missing" in message
    assert paths[0].name in message
    assert paths[2].name in message
    assert paths[1].name not in message.split("missing in")[1]


@pytest.mark.parametrize("offered", [0, 1, 2])
def test_gguf_10_part_2_renamed_as_3(tmp_path: Path, offered: int) -> None:
    paths = write(tmp_path)
    paths[2].write_bytes(paths[1].read_bytes())
    message = refusal(paths[offered])
    assert f"{paths[2].name}: the name says part 3 of 3 and the metadata part 2 of 3" in message


def test_gguf_10_a_single_file_named_like_a_part_opens(tmp_path: Path) -> None:
    for name, data in (
        ("one-00001-of-00001.gguf", split_bytes({}, TENSORS, parts=1)[0]),
        ("whole-00002-of-00003.gguf", gguf_bytes({}, TENSORS)),
    ):
        (tmp_path / name).write_bytes(data)
        found = open_set(tmp_path / name)
        assert len(found.tensors) == len(TENSORS)
        found.close()


def test_gguf_10_a_part_under_another_name_says_what_it_should_be_called(tmp_path: Path) -> None:
    renamed = write(tmp_path)[1].rename(tmp_path / "model.gguf")
    assert "part 2 of 3" in refusal(renamed)
    assert "-00002-of-00003.gguf" in refusal(renamed)


def test_gguf_10_counts_and_names_must_agree(tmp_path: Path) -> None:
    paths = write(tmp_path)
    other = split_bytes({}, TENSORS[:5], parts=3)
    paths[1].write_bytes(other[1])
    assert "split.tensors.count is 5 and 6 in the first part" in refusal(paths[0])
    twice = split_bytes({}, (*TENSORS[:4], TENSORS[0], TENSORS[5]), parts=3)
    paths[1].write_bytes(split_bytes({}, TENSORS, parts=3)[1])
    paths[2].write_bytes(twice[2])
    assert f"{paths[2].name}: the tensor t0 is in {paths[0].name} too" in refusal(paths[0])
    short = split_bytes({}, TENSORS, parts=3)[2]
    marks = short[: short.index(b"split.tensors.count") + len("split.tensors.count") + 8]
    paths[2].write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + marks[16:] + bytes(32))
    assert "the 3 parts hold 4 tensors and split.tensors.count is 6" in refusal(paths[0])


@pytest.mark.parametrize("cut", [1, 200], ids=lambda n: f"GGUF-08-part-2-of-3-{n}-bytes-short")
def test_a_short_part_is_named(tmp_path: Path, cut: int) -> None:
    paths = write(tmp_path)
    paths[1].write_bytes(paths[1].read_bytes()[:-cut])
    message = refusal(paths[0])
    assert message.startswith(f"{paths[1].name}: the tensor t3 ")
    assert f"expected 256 bytes of it, found {256 - cut}" in message


def test_gguf_07_unusable_types_of_all_parts_are_in_one_message(tmp_path: Path) -> None:
    bad = [TensorSpec(f"bad{n}", (8, 8), number=200 + n) for n in range(2)]
    files = split_bytes({}, (TENSORS[0], bad[0], TENSORS[1], bad[1]), parts=2)
    for name, data in zip(split_names("set", 2), files, strict=True):
        (tmp_path / name).write_bytes(data)
    message = refusal(tmp_path)
    assert "unknown type 200: bad0; unknown type 201: bad1" in message


def test_a_folder_must_hold_one_model(tmp_path: Path) -> None:
    assert "holds no .gguf file" in refusal(tmp_path)
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(gguf_bytes({}, TENSORS))
    message = refusal(tmp_path)
    assert "holds 2 models: a.gguf, b.gguf" in message


def test_a_split_model_has_the_spec_of_the_whole(tmp_path: Path) -> None:
    model = tiny_model()
    whole = open_set(model.write(tmp_path / "whole.gguf"))
    (tmp_path / "set").mkdir()
    split = open_set(model.write_split(tmp_path / "set", parts=4)[2])
    one, many = read_spec(whole), read_spec(split)
    assert one.tensors.keys() == many.tensors.keys()
    for name, tensor in one.tensors.items():
        assert tensor.shape == many.tensors[name].shape
        assert (tensor.raw() == many.tensors[name].raw()).all()
    whole.close()
    split.close()


def test_gguf_15_the_part_with_the_table_missing(tmp_path: Path) -> None:
    paths = tiny_model().write_split(tmp_path, parts=4, first_empty=False)
    paths[3].unlink()
    assert f"1 of the 4 parts are missing in {tmp_path}: {paths[3].name}" in refusal(paths[0])
