"""Experts that are not on the card, brought there ahead of a prompt chunk's layers by the copy engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from appliance.model.qwen4exp.device.stage import Stage
from appliance.model.qwen4exp.prompt_footprint import PIECE_EXPERTS, landing_pieces
from kernels.experts import table_entry
from kernels.experts.prompt import ExpertPass

_KEEP: Final = -(1 << 63)
_NOWHERE: Final = -9223372036854775807
"""Entries of a piece's table: what the layer's own table says holds; not in this piece. No expert lies at either."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Neighbouring places of a layer in RAM, and the row of the tables that says where they land."""

    layer: int
    first: int
    stop: int
    row: int


class ExpertAhead:
    """Owned by the engine's thread. Pieces of layers land in a ring of places while what came before computes.

    Where a chunk's rows hardly meet an expert twice, kernels read those that are not on the card over the link.
    """

    def __init__(self, stage: Stage) -> None:
        """Makes the ring; none where all experts are on the card."""
        store = stage.store
        assert store is not None
        self._stage, self._store = stage, store
        self._pieces: list[_Piece] = []
        for layer in range(len(stage.blocks)):
            count = store.places(layer).shape[0]
            for first in range(0, count, PIECE_EXPERTS):
                self._pieces.append(_Piece(layer, first, min(count, first + PIECE_EXPERTS), len(self._pieces)))
        words = max((store.places(piece.layer).shape[1] for piece in self._pieces), default=0)
        shape = (landing_pieces(len(self._pieces), layers=len(stage.blocks)), PIECE_EXPERTS * words)
        self._ring = torch.empty(shape, dtype=torch.int32, device=stage.device)
        cuda = stage.device.type == "cuda" and bool(self._pieces)
        self._layers = torch.tensor([piece.layer for piece in self._pieces], dtype=torch.int64, device=stage.device)
        columns = store.routing.tables.shape[1]
        self._tables = torch.zeros((len(self._pieces), columns), dtype=torch.int64, device=stage.device)
        self._staged = False
        self._sent = 0
        self._side: torch.cuda.Stream | None = None
        if cuda:
            self._side = torch.cuda.Stream(stage.device)  # type: ignore[no-untyped-call]
            self._landed, self._read = _events(len(self._ring)), _events(len(self._ring))

    @property
    def streaming(self) -> bool:
        """Whether experts come to the card for a chunk."""
        return bool(self._pieces)

    @property
    def size_bytes(self) -> int:
        """Bytes on the card."""
        return self._ring.nbytes + self._tables.nbytes

    def begin(self, rows: int) -> None:
        """A chunk of so many rows begins: notes where everything will be, and sends the first pieces on their way."""
        used, experts = self._stage.blocks[0].weights.experts.layout.used, self._store.routing.experts
        self._staged, self._sent = rows * used >= experts and bool(self._pieces), 0
        if not self._staged:
            return
        held = torch.from_numpy(np.stack([self._entries(piece) for piece in self._pieces]))
        # Fresh pinned memory, which torch does not hand out again before the copy from it is done.
        held = held if self._side is None else held.pin_memory()
        there = held.to(self._stage.device, non_blocking=True)
        own = self._store.routing.tables[self._layers, :experts]
        self._tables[:, :experts] = torch.where(there == _KEEP, own, there)
        if self._side is not None:
            for event in self._read:
                event.record()
        for _ in self._ring:
            self._send()

    def passes(self, layer: int) -> Iterator[ExpertPass]:
        """The passes over a layer's experts; each must be enqueued before the next is asked for."""
        table = self._stage.blocks[layer].weights.experts.table
        resident = self._store.homes[layer].resident
        if resident.any():
            yield ExpertPass(table, 0)
        if not self._staged:
            if not resident.all():
                yield ExpertPass(table, 1)
            return
        for piece in self._pieces:
            if piece.layer != layer:
                continue
            place = piece.row % len(self._ring)
            if self._side is not None:
                torch.cuda.current_stream(self._stage.device).wait_event(self._landed[place])
            yield ExpertPass(self._tables[piece.row, : table.shape[0]], 1)
            if self._side is not None:
                self._read[place].record()
            self._send()

    def _send(self) -> None:
        """Sends the next piece on its way, to land when what was enqueued before has left its place."""
        if self._sent == len(self._pieces):
            return
        piece = self._pieces[self._sent]
        self._sent += 1
        source = self._store.places(piece.layer)[piece.first : piece.stop].view(-1)
        place = piece.row % len(self._ring)
        target = self._ring[place, : source.numel()]
        if self._side is None:
            target.copy_(source)
            return
        with torch.cuda.stream(self._side):
            self._side.wait_event(self._read[place])
            target.copy_(source, non_blocking=True)
            self._landed[place].record()

    def _entries(self, piece: _Piece) -> NDArray[np.int64]:
        """Entries of a piece's experts once they have landed. The first piece keeps what lies nowhere in RAM."""
        layer, place = self._stage.blocks[piece.layer].weights.experts, self._store.homes[piece.layer].place
        first = table_entry(self._ring[piece.row % len(self._ring)], layer.anchor, host=True)
        step = layer.layout.host_kind.words // 4 * 2
        found: NDArray[np.int64] = np.where(place < 0, _KEEP if piece.first == 0 else _NOWHERE, _NOWHERE)
        here = (place >= piece.first) & (place < piece.stop)
        found[here] = first + (place[here].astype(np.int64) - piece.first) * step
        return found


def _events(count: int) -> list[torch.cuda.Event]:
    return [torch.cuda.Event() for _ in range(count)]  # type: ignore[no-untyped-call]
