"""Brings stored tensors to a device, read ahead of who asks for them, and notes scales that are no numbers."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from appliance.errors import ModelFileError
from appliance.gguf.reader import TensorInfo
from appliance.model.qwen4exp.device.pinned import HostBlock
from appliance.model.qwen4exp.device.readers import Readers
from appliance.model.qwen4exp.loading_footprint import ALIGN, PLACE_BYTES, PLACES, SLICED_BYTES
from appliance.model.qwen4exp.tensors import raw_bytes
from kernels.planes.format import TILE_ROWS
from kernels.quant import nonfinite

# Whole tensors on the card and not yet asked for; larger ones come in slices.
AHEAD_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class Stretch:
    """Stored rows of a tensor."""

    info: TensorInfo
    first_row: int
    rows: int

    @classmethod
    def whole(cls, info: TensorInfo) -> Stretch:
        """All rows."""
        return cls(info, 0, info.byte_count // info.row_bytes)

    @property
    def size_bytes(self) -> int:
        """Bytes of the rows."""
        return self.rows * self.info.row_bytes


@dataclass(frozen=True, slots=True)
class _Coming:
    """Rows on their way to the card."""

    rows: torch.Tensor
    pieces: list[Future[torch.cuda.Event]]


class Staging:
    """On the CPU rows are views of the mapping; on a card they are read by threads and sent by the copy engine."""

    def __init__(self, device: torch.device, *, place_bytes: int = PLACE_BYTES) -> None:
        """Nothing read yet; a group of stretches has at most `place_bytes` bytes."""
        self.device = device
        self._readers = Readers(device) if device.type == "cuda" else None
        self._doubts: list[tuple[TensorInfo, torch.Tensor]] = []
        self._expected: dict[str, TensorInfo] = {}
        self._coming: dict[str, _Coming] = {}
        self._ahead = 0
        self._blocks: list[HostBlock] = []
        self._place_bytes = place_bytes
        self._places: list[torch.Tensor] = []

    def expect(self, infos: Iterable[TensorInfo]) -> None:
        """Says which whole tensors will be asked for from now on, about in this order, so that they are read ahead."""
        self._coming.clear()
        self._ahead = 0
        self._expected = {info.name: info for info in infos if info.byte_count <= SLICED_BYTES}
        self._read_ahead()

    def raw(self, info: TensorInfo, *, noted: bool = True) -> torch.Tensor:
        """All stored rows on the device, uint8 [rows, row bytes]. On the CPU a view of the mapping: do not write to it.

        Args:
            info: of the tensor.
            noted: scales that are no numbers are named by the next `check`; else they are the caller's to count.
        """
        self._expected.pop(info.name, None)
        coming = self._coming.pop(info.name, None)
        if coming is not None:
            self._ahead -= info.byte_count
        elif self._readers is not None:
            coming = self._send(Stretch.whole(info))
        self._read_ahead()
        rows = raw_bytes(info) if coming is None else self._arrived(coming)
        if noted:
            self.doubt(info, nonfinite(rows, info.type.name, columns=info.shape[-1]))
        return rows

    def slices(self, info: TensorInfo) -> Iterator[tuple[int, torch.Tensor]]:
        """All stored rows with the number of the first, whole strips at once where they are many; see `groups`."""
        if self._readers is None or info.byte_count <= SLICED_BYTES:
            yield 0, self.raw(info, noted=False)
            return
        step = max(1, self._place_bytes // (info.row_bytes * TILE_ROWS)) * TILE_ROWS
        firsts = range(0, info.byte_count // info.row_bytes, step)
        groups = [[Stretch(info, first, min(step, firsts.stop - first))] for first in firsts]
        for first, (rows,) in zip(firsts, self.groups(groups), strict=True):
            yield first, rows

    def groups(self, groups: Iterable[Sequence[Stretch]]) -> Iterator[list[torch.Tensor]]:
        """The rows of each group's stretches in turn; those that follow are read meanwhile.

        A group's rows are there for what is launched before the next is asked for. Their scales are the caller's to
        look at.
        """
        if self._readers is None:
            for group in groups:
                yield [raw_bytes(one.info)[one.first_row : one.first_row + one.rows] for one in group]
            return
        if not self._places:
            self._places = [self._room(self._place_bytes) for _ in range(PLACES)]
        ahead = iter(groups)
        coming = deque(
            (self._send_group(group, place), place) for place, group in zip(self._places, ahead, strict=False)
        )
        while coming:
            rows, place = coming.popleft()
            yield [self._arrived(one) for one in rows]
            for group in itertools.islice(ahead, 1):
                coming.append((self._send_group(group, place), place))

    def host(self, info: TensorInfo) -> torch.Tensor:
        """All stored rows in memory of the host that the device reads; on the CPU a view of the mapping."""
        if self._readers is None:
            return raw_bytes(info)
        block = HostBlock(info.byte_count, cuda=True)
        self._blocks.append(block)
        self._readers.fill(info.part, info.offset, block.bytes)
        block.register()
        return block.bytes.view(-1, info.row_bytes)

    def doubt(self, info: TensorInfo, count: torch.Tensor) -> None:
        """Notes how many scales of a tensor are no numbers: an integer [] on the device, not waited for."""
        self._doubts.append((info, count.to(torch.int64)))

    def check(self) -> None:
        """Waits for what was found so far.

        Raises:
            ModelFileError: NaN or infinite scales (values, for plain types); names the tensor.
        """
        doubts, self._doubts = self._doubts, []
        if not doubts:
            return
        for (info, _), bad in zip(doubts, torch.stack([count for _, count in doubts]).tolist(), strict=True):
            if bad:
                raise ModelFileError(
                    f"tensor {info.name} has {bad} scales that are NaN or infinite ({info.type.name}); "
                    "the file is damaged or badly quantised",
                    hint="check its checksum or choose another quantisation",
                )

    def close(self) -> None:
        """Ends the threads and gives back what rows arrived in; what was brought stays."""
        if self._readers is not None:
            self._readers.close()
        self._places.clear()

    def release(self) -> None:
        """Gives back the host's memory of `host`; nothing may read it any more."""
        for block in self._blocks:
            block.release()

    def _room(self, size_bytes: int) -> torch.Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, device=self.device)

    def _send_group(self, group: Sequence[Stretch], place: torch.Tensor) -> list[_Coming]:
        at, coming = 0, []
        for stretch in group:
            coming.append(self._send(stretch, place[at : at + stretch.size_bytes]))
            at += -(-stretch.size_bytes // ALIGN) * ALIGN
        return coming

    def _send(self, stretch: Stretch, place: torch.Tensor | None = None) -> _Coming:
        """Into a place that nothing launched later reads from, or into memory of its own."""
        assert self._readers is not None
        info = stretch.info
        target = self._room(stretch.size_bytes) if place is None else place
        offset = info.offset + stretch.first_row * info.row_bytes
        pieces = self._readers.send(info.part, offset, target)
        return _Coming(target.view(stretch.rows, info.row_bytes), pieces)

    def _arrived(self, coming: _Coming) -> torch.Tensor:
        stream = torch.cuda.current_stream(self.device)
        for piece in coming.pieces:
            stream.wait_event(piece.result())
        return coming.rows

    def _read_ahead(self) -> None:
        while self._readers is not None and self._expected:
            info = next(iter(self._expected.values()))
            if self._coming and self._ahead + info.byte_count > AHEAD_BYTES:
                return
            del self._expected[info.name]
            self._coming[info.name] = self._send(Stretch.whole(info))
            self._ahead += info.byte_count
