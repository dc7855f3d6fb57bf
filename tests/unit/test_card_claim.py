"""Two rigs that name one card: the second is told who has it, and nothing is kept from a third."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.card_claim import Claim
from appliance.errors import ExitCode, MachineError
from tests.builders.machines import card


def test_a_card_that_another_rig_serves_on_is_refused_by_name(tmp_path: Path) -> None:
    first = Claim([card(0), card(1)], rig=Path("/a/rig.toml"), folder=tmp_path)
    with pytest.raises(MachineError) as caught:
        Claim([card(2), card(1)], rig=Path("/b/rig.toml"), folder=tmp_path)
    assert caught.value.exit_code is ExitCode.MACHINE
    assert f"card 1 (NVIDIA Test 32G) is in use by another rig: process {os.getpid()} serves /a/rig.toml" in str(
        caught.value
    )
    Claim([card(2)], rig=None, folder=tmp_path).release()  # what the refused one had claimed is free again
    first.release()
    Claim([card(0), card(1)], rig=Path("/b/rig.toml"), folder=tmp_path).release()


def test_no_card_needs_no_claim(tmp_path: Path) -> None:
    Claim([], rig=None, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_end_of_the_process_gives_the_card_back(tmp_path: Path) -> None:
    code = (
        "import os, pathlib\n"
        "from appliance.card_claim import Claim\n"
        "from tests.builders.machines import card\n"
        f"Claim([card(0)], rig=pathlib.Path('/a'), folder=pathlib.Path({str(tmp_path)!r}))\n"
        "os._exit(9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[2])
    assert ended.returncode == 9
    Claim([card(0)], rig=Path("/b"), folder=tmp_path).release()
