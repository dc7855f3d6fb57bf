"""Owns where the wizard's tests have their rig."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def rig(tmp_path: Path) -> Path:
    return tmp_path / "rig.toml"
