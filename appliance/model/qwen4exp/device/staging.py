"""Brings stored tensors to a device, read ahead of who asks for them, and notes scales that are no numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from appliance.errors import ModelFileError
from appliance.gguf.reader import TensorInfo
from appliance.model.qwen4exp.device.pinned import HostBlock
from appliance.model.qwen4exp.device.readers import Readers
from appliance.model.qwen4exp.tensors import raw_bytes
from kernels.quant import nonfinite

# On the card and not yet asked for.
AHEAD_BYTES = 256 << 20


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

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._readers = Readers(device) if device.type == "cuda" else None
        self._doubts: list[tuple[TensorInfo, torch.Tensor]] = []
        self._expected: dict[str, TensorInfo] = {}
        self._coming: dict[str, _Coming] = {}
        self._ahead = 0
        self._blocks: list[HostBlock] = []

    def expect(self, infos: Iterable[TensorInfo]) -> None:
        """Says which whole tensors will be asked for from now on, about in this order, so that they are read ahead."""
        self._coming.clear()
        self._ahead = 0
        self._expected = {info.name: info for info in infos}
        self._read_ahead()

    def raw(self, info: TensorInfo) -> torch.Tensor:
        """All stored rows on the device, uint8 [rows, row bytes]. On the CPU a view of the mapping: do not write to it.

        Scales that are no numbers are named by the next `check`.
        """
        self._expected.pop(info.name, None)
        coming = self._coming.pop(info.name, None)
        if coming is None:
            return next(self.stream([Stretch.whole(info)]))
        self._ahead -= info.byte_count
        self._read_ahead()
        return self._arrived(info, coming)

    def stream(self, stretches: Iterable[Stretch]) -> Iterator[torch.Tensor]:
        """The rows of each stretch in turn, as `raw`; those that follow are read meanwhile."""
        if self._readers is None:
            for stretch in stretches:
                rows = raw_bytes(stretch.info)[stretch.first_row : stretch.first_row + stretch.rows]
                yield self._noted(stretch.info, rows)
            return
        coming: deque[tuple[Stretch, _Coming]] = deque()
        ahead = 0
        for stretch in stretches:
            while coming and ahead + stretch.size_bytes > AHEAD_BYTES:
                first, rows_coming = coming.popleft()
                ahead -= first.size_bytes
                yield self._arrived(first.info, rows_coming)
            coming.append((stretch, self._send(stretch)))
            ahead += stretch.size_bytes
        for first, rows_coming in coming:
            yield self._arrived(first.info, rows_coming)

    def host(self, info: TensorInfo) -> torch.Tensor:
        """All stored rows in memory of the host that the device reads; on the CPU a view of the mapping."""
        if self._readers is None:
            return raw_bytes(info)
        block = HostBlock(info.byte_count, cuda=True)
        self._blocks.append(block)
        self._readers.fill(info.part, info.offset, block.bytes)
        block.register()
        return block.bytes.view(-1, info.row_bytes)

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
        """Ends the threads; what was brought stays."""
        if self._readers is not None:
            self._readers.close()

    def release(self) -> None:
        """Gives back the host's memory of `host`; nothing may read it any more."""
        for block in self._blocks:
            block.release()

    def _send(self, stretch: Stretch) -> _Coming:
        assert self._readers is not None
        info = stretch.info
        rows = torch.empty((stretch.rows, info.row_bytes), dtype=torch.uint8, device=self.device)
        offset = info.offset + stretch.first_row * info.row_bytes
        return _Coming(rows, self._readers.send(info.part, offset, rows.view(-1)))

    def _arrived(self, info: TensorInfo, coming: _Coming) -> torch.Tensor:
        stream = torch.cuda.current_stream(self.device)
        for piece in coming.pieces:
            stream.wait_event(piece.result())
        return self._noted(info, coming.rows)

    def _noted(self, info: TensorInfo, rows: torch.Tensor) -> torch.Tensor:
        self._doubts.append((info, nonfinite(rows, info.type.name, columns=info.shape[-1])))
        return rows

    def _read_ahead(self) -> None:
        while self._readers is not None and self._expected:
            info = next(iter(self._expected.values()))
            if self._coming and self._ahead + info.byte_count > AHEAD_BYTES:
                return
            del self._expected[info.name]
            self._coming[info.name] = self._send(Stretch.whole(info))
            self._ahead += info.byte_count
