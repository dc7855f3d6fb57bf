"""A weight with scales that are no numbers is named at load, whatever its type and wherever the block lies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from appliance.errors import ModelFileError
from appliance.gguf.reader import TensorInfo, open_set
from appliance.model.qwen4exp.device.staging import Staging, Stretch
from kernels.quant import SUPPORTED, nonfinite
from kernels.quant.table import FORMATS
from tests.builders.gguf import TensorSpec, gguf_bytes
from tests.kernels.test_quant import random_rows

DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
ROWS, COLUMNS = 40, 512


def stored(folder: Path, name: str, *, bad: int | None) -> TensorInfo:
    """A tensor in a file; the last block of row `bad` has a scale that is no number."""
    rows = random_rows(name, rows=ROWS, columns=COLUMNS)
    if bad is not None:
        block = rows[bad].reshape(-1, FORMATS[name].block_bytes)[-1]
        if name == "IQ1_M":  # its scale lies in the upper four bits of four words
            block[49:56:2] |= 0xF0
        elif name in ("BF16", "F32"):
            block[-2:] = (0x80, 0x7F)
        else:
            block[FORMATS[name].scale_offsets[-1] + 1] = 0x7C
    path = folder / "m.gguf"
    path.write_bytes(
        gguf_bytes({"a": 1}, [TensorSpec("blk.7.w", (ROWS, COLUMNS), name, np.ascontiguousarray(rows).tobytes())])
    )
    return open_set(path).tensors["blk.7.w"]


@pytest.mark.parametrize("name", SUPPORTED)
def test_every_type_is_checked(tmp_path: Path, name: str) -> None:
    staging = Staging(DEVICE)
    staging.raw(stored(tmp_path, name, bad=None))
    staging.check()
    staging.raw(stored(tmp_path, name, bad=ROWS - 1))
    with pytest.raises(
        ModelFileError, match=rf"tensor blk.7.w has [1-9]\d* scales that are NaN or infinite \({name}\)"
    ):
        staging.check()
    staging.check()  # said once
    staging.close()


@pytest.mark.parametrize("bad", [None, 0, 15, 16, ROWS - 1], ids=str)
def test_groups_are_the_stored_rows_and_their_packer_tells_what_is_bad(tmp_path: Path, bad: int | None) -> None:
    """As experts are read: a few rows at a time, more of them than a card has places for."""
    info, staging = stored(tmp_path, "Q8_0", bad=bad), Staging(DEVICE, place_bytes=8 * COLUMNS * 2)
    whole = torch.from_numpy(info.raw().copy()).view(-1, info.row_bytes)
    groups = [[Stretch(info, first, 2), Stretch(info, first + 2, 2)] for first in range(0, ROWS, 4)]
    found = []
    for rows in staging.groups(groups):
        found += [one.cpu() for one in rows]
        staging.doubt(info, sum((nonfinite(one, "Q8_0", columns=COLUMNS) for one in rows), torch.tensor(0)))
    assert torch.equal(torch.cat(found), whole)
    if bad is None:
        staging.check()
    else:
        with pytest.raises(ModelFileError, match=r"tensor blk.7.w has 1 scales"):
            staging.check()
    staging.close()


def test_slices_are_the_stored_rows(tmp_path: Path) -> None:
    """Whole strips where a tensor comes in several."""
    info, staging = stored(tmp_path, "IQ4_NL", bad=None), Staging(DEVICE)
    whole = torch.from_numpy(info.raw().copy()).view(-1, info.row_bytes)
    for first, rows in staging.slices(info):
        assert torch.equal(rows.cpu(), whole[first : first + rows.shape[0]])
    staging.close()


def test_what_was_expected_and_what_was_not_are_the_same_bytes(tmp_path: Path) -> None:
    """Read ahead, asked for in another order, or never announced."""
    names = ("Q8_0", "IQ4_NL", "F32", "Q4_K")
    infos = []
    for name in names:
        (tmp_path / name).mkdir()
        infos.append(stored(tmp_path / name, name, bad=None))
    whole = [torch.from_numpy(info.raw().copy()).view(-1, info.row_bytes) for info in infos]
    staging = Staging(DEVICE)
    staging.expect(infos[:3])
    for number in (2, 3, 0, 1, 0):
        assert torch.equal(staging.raw(infos[number]).cpu(), whole[number])
    staging.expect(())
    staging.check()
    staging.close()
