"""The ring of places that stored weights arrive in: order, ahead of whom, and never over what is still read."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from appliance.gguf.part import GgufPart
from appliance.gguf.reader import TensorInfo
from appliance.model.qwen4exp.device import pinned, readers
from appliance.model.qwen4exp.device.readers import _pieces
from appliance.model.qwen4exp.device.staging import Staging, Stretch
from appliance.model.qwen4exp.loading_footprint import PIECE_BYTES, PIECES_EACH, PLACES
from tests.device.test_nonfinite import COLUMNS, ROWS, stored
from tests.device.test_pinned import Driver


class AtOnce:
    """Readers that have read when they are asked; they note what was asked of them."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    def send(self, part: GgufPart, offset: int, target: torch.Tensor) -> list[Future[None]]:
        self.sent.append(target.numel())
        part.read_into(target.numpy().data, offset)
        done: Future[None] = Future()
        done.set_result(None)
        return [done]

    def close(self) -> None:
        """Nothing to end."""


class NoStream:
    """A stream that has nothing to wait for."""

    def wait_event(self, event: object) -> None:
        assert event is None


@pytest.fixture
def staging(monkeypatch: pytest.MonkeyPatch) -> tuple[Staging, AtOnce]:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: NoStream())
    found, threads = Staging(torch.device("cpu"), place_bytes=2048), AtOnce()
    found._readers = threads  # type: ignore[assignment]
    return found, threads


def parts_of(info: TensorInfo, rows: int) -> list[list[Stretch]]:
    return [[Stretch(info, first, 1), Stretch(info, first + 1, rows - 1)] for first in range(0, ROWS, rows)]


@pytest.mark.parametrize("rows", [2, 3], ids=["more groups than places", "places not used up at the end"])
def test_groups_arrive_in_order_and_stay_until_the_next_is_asked_for(
    staging: tuple[Staging, AtOnce], tmp_path: Path, rows: int
) -> None:
    found, threads = staging
    info = stored(tmp_path, "Q8_0", bad=None)
    whole = torch.from_numpy(info.raw().copy()).view(-1, info.row_bytes)
    groups = parts_of(info, rows)[: ROWS // rows]
    assert len(groups) > PLACES
    seen = []
    for number, both in enumerate(found.groups(groups)):
        assert len(threads.sent) == 2 * min(len(groups), number + PLACES)
        assert torch.equal(torch.cat(both), whole[number * rows : (number + 1) * rows])
        seen.append(both[0].data_ptr())
    assert len(seen) == len(groups)
    assert len(set(seen)) == PLACES
    found.close()
    assert not found._places


def test_few_groups_need_no_more(staging: tuple[Staging, AtOnce], tmp_path: Path) -> None:
    found, _ = staging
    info = stored(tmp_path, "Q8_0", bad=None)
    assert [both[1].shape[0] for both in found.groups(parts_of(info, 2)[:1])] == [1]
    assert list(found.groups([])) == []


def test_large_tensors_come_in_whole_strips(
    staging: tuple[Staging, AtOnce], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = staging
    monkeypatch.setattr("appliance.model.qwen4exp.device.staging.SLICED_BYTES", 1000)
    info = stored(tmp_path, "Q4_0", bad=None)
    found._place_bytes = 32 * info.row_bytes + 100
    slices = [(first, rows.shape[0]) for first, rows in found.slices(info)]
    assert slices == [(0, 32), (32, ROWS - 32)]


@pytest.mark.parametrize(
    ("size", "pieces"),
    [(0, []), (5, [5]), (PIECE_BYTES, [PIECE_BYTES]), (PIECE_BYTES + 1, [PIECE_BYTES // 2 + 1, PIECE_BYTES // 2])],
    ids=["none", "small", "one", "two equal ones"],
)
def test_pieces_are_about_equal(size: int, pieces: list[int]) -> None:
    assert [stop - at for at, stop in _pieces(size)] == pieces


def test_a_large_table_is_read_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into memory of the host: every byte, whatever the pieces."""
    monkeypatch.setattr(readers, "PIECE_BYTES", 1000)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: nullcontext())
    info = stored(tmp_path, "Q8_0", bad=None)
    threads = readers.Readers(torch.device("cpu"))
    target = torch.zeros(ROWS * COLUMNS // 32 * 34, dtype=torch.uint8)
    threads.fill(info.part, info.offset, target)
    threads.close()
    assert torch.equal(target, torch.from_numpy(info.raw().copy()))


def test_each_reader_makes_its_own_pieces_ready_and_all_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """In large pages, registered once a thread."""
    driver = Driver(most=4 * PIECE_BYTES)
    monkeypatch.setattr(pinned, "_runtime", lambda: driver)
    for name in ("set_device", "Stream", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda device: None)
    threads = readers.Readers(torch.device("cpu"))
    own = threads._mine()
    assert threads._mine() is own
    assert [piece.numel() for piece in own.pieces] == [PIECE_BYTES] * PIECES_EACH
    assert driver.asked == [PIECE_BYTES * PIECES_EACH]
    threads.close()
    assert driver.registered == {}
