"""What the plan knows of the CPU kernels' layout is what the kernels do."""

from __future__ import annotations

import pytest
import torch

from appliance.model.qwen4exp.footprint import OFFSETS, PLAIN, SLICE_BYTES, SMALL_GROUPS, TILE
from kernels.compiled import vector
from kernels.matrix import part, stored
from kernels.quant import row_bytes
from kernels.quant.table import FORMATS


@pytest.mark.parametrize("name", FORMATS)
def test_codes_and_scales_of_every_type(name: str) -> None:
    found = stored(name, torch.zeros(2, row_bytes(name, 256), dtype=torch.uint8), columns=256)
    assert found.group == (0 if name in PLAIN else SMALL_GROUPS.get(name, 32))
    assert (found.lows is not None) == (name in OFFSETS)


def test_tiles_and_slices() -> None:
    assert vector.TILE == TILE
    assert 40 * part._SLICE_WEIGHTS == SLICE_BYTES
