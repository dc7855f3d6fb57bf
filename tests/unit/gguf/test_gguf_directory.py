"""The tensor directory: types, places and the end of the file (GGUF-07, GGUF-08, GGUF-09), and the type table."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import pytest

import kernels.quant
from appliance.errors import ModelFileError
from appliance.gguf.reader import open_bytes, open_set
from appliance.gguf.types import BY_NAME, BY_NUMBER, COMPUTABLE
from tests.builders.gguf import TensorSpec, gguf_bytes, tiny_model


def refusal(data: bytes) -> str:
    with pytest.raises(ModelFileError) as caught:
        open_bytes(data, name="bad.gguf")
    return str(caught.value)


def test_block_sizes_equal_those_of_the_gguf_package() -> None:
    theirs = {t.name: (t.value, *size) for t, size in gguf.GGML_QUANT_SIZES.items()}
    ours = {t.name: (t.number, t.block_weights, t.block_bytes) for t in BY_NUMBER.values()}
    assert theirs.pop("Q8_1") == (9, 32, 40)  # ggml has two half scales and 32 bytes: 36
    assert ours.pop("Q8_1") == (9, 32, 36)
    assert ours.pop("Q2_0") == (42, 64, 18)  # newer than the package
    theirs.pop("Q2_0", None)
    assert ours == theirs


def test_computable_types_are_those_the_kernels_unpack() -> None:
    assert set(COMPUTABLE) == set(kernels.quant.SUPPORTED)
    assert set(COMPUTABLE) <= set(BY_NAME)


def test_gguf_07_all_unusable_tensors_are_listed_in_one_message() -> None:
    tensors = [
        TensorSpec("fine", (2, 32), "Q8_0"),
        TensorSpec("from_the_future", (2, 32), number=255),
        TensorSpec("removed", (2, 32), number=4),
        TensorSpec("ternary", (1, 256), "TQ1_0"),
        TensorSpec("ternary_too", (1, 256), "TQ1_0"),
        TensorSpec("ragged", (2, 250), data=bytes(512), number=BY_NAME["Q4_K"].number),
    ]
    message = refusal(gguf_bytes({}, tensors))
    assert "5 tensor(s) not supported by this engine" in message
    for part in (
        "unknown type 255: from_the_future",
        "Q4_2 (4, removed from ggml): removed",
        "TQ1_0 (34): ternary, ternary_too",
        "Q4_K with rows of 250 weights, not a multiple of 256: ragged",
        "supported types: F32, F16",
    ):
        assert part in message
    assert "fine" not in message


@pytest.mark.parametrize("name", COMPUTABLE)
def test_every_computable_type_opens(name: str) -> None:
    kind = BY_NAME[name]
    found = open_bytes(gguf_bytes({}, [TensorSpec("t", (3, 2 * kind.block_weights), name)]), name="t.gguf")
    assert found.tensors["t"].byte_count == 6 * kind.block_bytes
    assert found.tensors["t"].row_bytes == 2 * kind.block_bytes
    assert found.tensors["t"].elements == 6 * kind.block_weights


@pytest.mark.parametrize("cut", [1, 4, 1000], ids=lambda n: f"GGUF-08-{n}-bytes-short")
def test_a_short_file_names_tensor_expected_and_found(cut: int) -> None:
    data = gguf_bytes({}, [TensorSpec("first", (4, 4)), TensorSpec("last", (64, 64))])
    message = refusal(data[:-cut])
    assert "the tensor last ends at byte" in message
    assert f"expected 16384 bytes of it, found {16384 - cut}" in message
    assert "download" in message


def test_gguf_08_a_reserved_and_unfilled_tail_is_a_warning(tmp_path: Path) -> None:
    path = tiny_model().write(tmp_path / "tiny.gguf")
    size = path.stat().st_size
    os.truncate(path, size // 2)
    os.truncate(path, size)
    with path.open("rb") as file:
        try:
            holes = os.lseek(file.fileno(), 0, os.SEEK_HOLE) < size
        except OSError:
            holes = False
    found = open_set(path)
    assert len(found.warnings) == holes
    assert all("nothing was ever written" in w for w in found.warnings)
    found.close()


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ([TensorSpec("same", (4,)), TensorSpec("same", (4,))], "same appears twice"),
        ([TensorSpec("a", (4,)), TensorSpec("b", (4,), offset=0)], "a and b overlap"),
        ([TensorSpec("a", (16,)), TensorSpec("b", (4,), offset=32)], "a and b overlap"),
        ([TensorSpec("a", (64,)), TensorSpec("b", (4,), offset=33)], "b has offset 33; it must be a multiple of"),
        ([TensorSpec("a", (4,), offset=1 << 62)], "a ends at byte"),
        ([TensorSpec("a", (4,), offset=(1 << 64) - 32)], "a ends at byte"),
    ],
    ids=[
        "GGUF-09-name",
        "GGUF-09-offset",
        "GGUF-09-overlap",
        "GGUF-09-unaligned",
        "GGUF-09-far",
        "GGUF-09-negative",
    ],
)
def test_tensors_do_not_share_places(tensors: list[TensorSpec], says: str) -> None:
    assert says in refusal(gguf_bytes({}, tensors))


def q2_0(name: str, size_bytes: int) -> TensorSpec:
    return TensorSpec(name, (32, 128), data=bytes(size_bytes), number=42)


def test_a_forks_q2_0_is_told_from_ours_by_its_room() -> None:
    ours, fork = 32 * 36, 32 * 34
    for tensors in ([q2_0("t", fork)], [q2_0("t", fork), TensorSpec("next", (8,))]):
        message = refusal(gguf_bytes({}, tensors))
        assert "t has type Q2_0 (42)" in message
        assert "34 bytes per 128 weights" in message
    open_bytes(gguf_bytes({}, [q2_0("t", ours)]), name="ok.gguf")
    open_bytes(gguf_bytes({}, [q2_0("t", ours), TensorSpec("next", (8,))]), name="ok.gguf")
    assert "expected 1152 bytes of it, found 1000" in refusal(gguf_bytes({}, [q2_0("t", 1000)])[:-24])


def test_raw_is_a_read_only_view_and_a_shrunken_file_is_no_crash(tmp_path: Path) -> None:
    values = np.arange(12, dtype="<f4")
    path = tmp_path / "t.gguf"
    path.write_bytes(gguf_bytes({}, [TensorSpec("t", (3, 4), data=values.tobytes())]))
    found = open_set(path)
    tensor = found.tensors["t"]
    raw = tensor.raw()
    assert np.array_equal(raw.view("<f4"), values)
    assert not raw.flags.writeable
    os.truncate(path, 40)
    with pytest.raises(ModelFileError, match=r"t\.gguf: had \d+ bytes when it was opened and has 40 now"):
        tensor.raw()
    del raw
    found.close()
    found.close()
    with pytest.raises(ModelFileError, match="already closed"):
        tensor.raw()


def test_paths_that_cannot_be_a_model(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe.gguf"
    os.mkfifo(fifo)
    empty = tmp_path / "empty.gguf"
    empty.touch()
    for path, says in ((tmp_path / "no.gguf", "cannot be opened"), (fifo, "not a regular file"), (empty, "empty")):
        with pytest.raises(ModelFileError, match=says):
            open_set(path)
