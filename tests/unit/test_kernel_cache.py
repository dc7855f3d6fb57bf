"""CTR-07: the kernel cache ends up in a folder that works, and says so when it had to move."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.engine import kernel_cache


@pytest.fixture(params=kernel_cache.FOLDERS)
def variable(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_named_folder_is_kept_and_created(tmp_path: Path, variable: str) -> None:
    environment = {variable: str(tmp_path / "a" / "b")}
    assert kernel_cache.settle(environment, variable) is None
    assert environment == {variable: str(tmp_path / "a" / "b")}
    assert (tmp_path / "a" / "b").is_dir()


def test_without_a_name_it_is_in_the_home_folder(tmp_path: Path, variable: str) -> None:
    environment = {"HOME": str(tmp_path)}
    assert kernel_cache.settle(environment, variable) is None
    assert environment[variable] == str(tmp_path / kernel_cache.FOLDERS[variable])


@pytest.mark.parametrize("below", ["file", "file/deeper"], ids=["is-a-file", "below-a-file"])
def test_ctr_07_a_folder_that_cannot_be_made_moves_to_tmp_with_a_warning(
    tmp_path: Path, below: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    environment = {variable: str(tmp_path / below)}
    warning = kernel_cache.settle(environment, variable)
    assert warning is not None
    assert "cannot be written" in warning
    assert "compiled again at every start" in warning
    assert environment[variable] == str(tmp_path / "tmp" / f"strata-kernels-{os.getuid()}")


def test_ctr_07_a_noexec_mount_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Flags:
        f_flag = os.ST_NOEXEC

    monkeypatch.setattr(os, "statvfs", lambda folder: Flags())
    assert "noexec" in str(kernel_cache.unusable(tmp_path))
