"""Threads that read stretches of files into pinned pieces and send each to a card, many on their way at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch

from appliance.gguf.part import GgufPart
from appliance.model.qwen4exp.device.pinned import HostBlock
from appliance.model.qwen4exp.loading_footprint import PIECE_BYTES, PIECES_EACH, READERS


@dataclass
class _Own:
    """What one thread has to itself: its pieces, when each was last sent, and the stream it sends them on."""

    stream: torch.cuda.Stream
    pieces: list[torch.Tensor]
    sent: list[torch.cuda.Event | None] = field(default_factory=lambda: [None] * PIECES_EACH)
    number: int = 0


class Readers:
    """Reads with the file's descriptor, not through its mapping: a page fault for each 4 KiB is what would be slow."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="reader")
        self._local = threading.local()
        self._blocks: list[HostBlock] = []

    def send(self, part: GgufPart, offset: int, target: torch.Tensor) -> list[Future[torch.cuda.Event]]:
        """Begins to fill a card's memory from a file.

        Args:
            part: the file.
            offset: where the bytes begin in it.
            target: uint8 [bytes] on the card, allocated on the current stream. Its reader must wait for the events.

        Returns:
            For each piece the event after which it is there.
        """
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record(torch.cuda.current_stream(self._device))
        return [
            self._threads.submit(self._send, part, offset + at, target[at:stop], ready)
            for at, stop in _pieces(target.numel())
        ]

    def fill(self, part: GgufPart, offset: int, target: torch.Tensor) -> None:
        """Fills uint8 [bytes] of the host's memory from a file, with all threads."""
        whole = target.numpy().data
        jobs = [
            self._threads.submit(part.read_into, whole[at:stop], offset + at) for at, stop in _pieces(target.numel())
        ]
        for job in jobs:
            job.result()

    def close(self) -> None:
        """Ends the threads and gives their memory back."""
        self._threads.shutdown(cancel_futures=True)
        torch.cuda.synchronize(self._device)
        self._local = threading.local()
        for block in self._blocks:
            block.release()
        self._blocks.clear()

    # A thread does not inherit the loader's inference mode.
    @torch.inference_mode()
    def _send(self, part: GgufPart, offset: int, target: torch.Tensor, ready: torch.cuda.Event) -> torch.cuda.Event:
        own = self._mine()
        place, own.number = own.number % PIECES_EACH, own.number + 1
        before = own.sent[place]
        if before is not None:
            before.synchronize()
        held = own.pieces[place][: target.numel()]
        part.read_into(held.numpy().data, offset)
        own.stream.wait_event(ready)
        with torch.cuda.stream(own.stream):
            target.copy_(held, non_blocking=True)
        sent = torch.cuda.Event()  # type: ignore[no-untyped-call]
        sent.record(own.stream)
        own.sent[place] = sent
        return sent

    def _mine(self) -> _Own:
        own: _Own | None = getattr(self._local, "own", None)
        if own is None:
            torch.cuda.set_device(self._device)
            # Touched in large pages first, by each thread its own: the driver takes four times as long for the others.
            block = HostBlock(PIECE_BYTES * PIECES_EACH, cuda=True)
            self._blocks.append(block)
            block.touch()
            block.register(before=(len(self._blocks) - 1) * block.bytes.numel())
            pieces = list(torch.split(block.bytes, PIECE_BYTES))
            own = self._local.own = _Own(torch.cuda.Stream(self._device), pieces)  # type: ignore[no-untyped-call]
        return own


def _pieces(size_bytes: int) -> Iterator[tuple[int, int]]:
    """Where each of as few pieces as there can be begins and ends; about equal, so that none is waited for alone."""
    count = -(-size_bytes // PIECE_BYTES)
    step = -(-size_bytes // max(1, count))
    return ((at, min(size_bytes, at + step)) for at in range(0, size_bytes, step or 1))
