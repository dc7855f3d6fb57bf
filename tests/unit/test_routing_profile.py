"""What is remembered of the routing: written whole, read back, and said when it is not of this model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from appliance.model.routing_profile import read_profile, write_profile

SHAPE = (3, 8)
HEAT = np.arange(24, dtype=np.float32).reshape(SHAPE)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "routing.npy"
    write_profile(str(path), HEAT * 2)
    write_profile(str(path), HEAT)
    found = read_profile(str(path), SHAPE)
    assert found is not None
    assert np.array_equal(found, HEAT)
    assert [one.name for one in path.parent.iterdir()] == ["routing.npy"]


def test_nothing_yet_is_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_profile(str(tmp_path / "routing.npy"), SHAPE) is None
    assert not caplog.records


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (HEAT[:2], "not float32 [3, 8]"),
        (HEAT.astype(np.int64), "not float32 [3, 8]"),
        (-HEAT, "no routing gives"),
        (HEAT * np.float32("nan"), "no routing gives"),
        (b"", ""),
        (b"\x93NUMPY\x01\x00", ""),
        (b"PK\x03\x04 no archive", ""),
    ],
    ids=["other-model", "other-type", "negative", "nan", "empty", "cut", "archive"],
)
def test_an_odd_file_is_named_and_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: np.ndarray | bytes, reason: str
) -> None:
    path = tmp_path / "routing.npy"
    if isinstance(data, bytes):
        path.write_bytes(data)
    else:
        np.save(path, data)
    assert read_profile(str(path), SHAPE) is None
    (record,) = caplog.records
    assert record.message == "routing profile ignored"
    assert reason in record.fields["reason"]  # type: ignore[attr-defined]


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    write_profile(str(tmp_path / "file" / "routing.npy"), HEAT)
    assert [record.message for record in caplog.records] == ["routing profile not saved"]
