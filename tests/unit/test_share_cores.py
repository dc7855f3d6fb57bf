"""How the runtime's threads wait for each other when other programs want the cores too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.loading import SPINS, share_cores


@pytest.mark.parametrize(
    ("given", "left"),
    [
        pytest.param({}, {"GOMP_SPINCOUNT": SPINS}, id="nothing said"),
        pytest.param({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}, id="policy of the operator"),
        pytest.param({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}, id="count of the operator"),
    ],
)
def test_the_operator_has_the_last_word(given, left):
    share_cores(given)
    assert given == left


def test_it_is_said_before_the_runtime_reads_it():
    """Importing the loader brings no torch, so that what it sets still counts."""
    script = "import sys, appliance.loading; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, env=os.environ | {"PYTHONPATH": str(Path.cwd())})
