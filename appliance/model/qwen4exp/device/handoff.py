"""From one stage to the next: the streams of a window's rows, copied once, chained by events and never by the host."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import torch

from appliance.model.qwen4exp.device.stage import Stage
from appliance.model.qwen4exp.device.tables import MOST_ROWS

_log = logging.getLogger(__name__)

PEER: Final = "peer"
RAM: Final = "ram"

_PATTERNS: Final = 3

Copy = Callable[[torch.Tensor, torch.Tensor], object]


def copy_async(target: torch.Tensor, source: torch.Tensor) -> None:
    """On the current stream of the source's device."""
    target.copy_(source, non_blocking=True)


class Border:
    """Between two neighbours. Every lane has a landing place, so the earlier stage goes on at once with another window.

    A lane has one window on its way, so nobody writes to its place before the later stage has read it.
    """

    def __init__(self, before: Stage, after: Stage, *, lanes: int, copy: Copy = copy_async) -> None:
        """Proves the way first; a copy that returns wrong bytes is not used, and the log says so (SPLIT-01).

        Args:
            before: the stage that a window leaves.
            after: the stage that it enters.
            lanes: windows that may be on their way.
            copy: copies `(target, source)` between the two devices; tests give one that lies.
        """
        self._before, self._after, self._copy = before, after, copy
        spec = before.common.spec
        shape = (lanes, MOST_ROWS * spec.streams * spec.hidden)
        self._landing = torch.zeros(shape, device=after.device)
        self.route = PEER if self._proved() else RAM
        if self.route == RAM:
            self._landing = torch.zeros(shape, pin_memory=before.device.type == "cuda")
        self._side: torch.cuda.Stream | None = None
        self._sent: list[torch.cuda.Event] = []
        if before.stream is not None:
            self._sent = [torch.cuda.Event() for _ in range(lanes)]  # type: ignore[no-untyped-call]

    def send(self, rows: int, lane: int) -> None:
        """Copies the bucket's streams to the lane's landing place; on the earlier stage's stream."""
        x = self._before.bucket(rows)[1].buffers.x
        copy = self._copy if self.route == PEER else copy_async
        copy(self._place(x, lane), x)
        if self._before.stream is not None:
            self._sent[lane].record(self._before.stream)

    def receive(self, rows: int, lane: int) -> None:
        """Copies them into the later stage's bucket once they have landed; on the later stage's stream."""
        x = self._after.bucket(rows)[1].buffers.x
        x.copy_(self._place(x, lane), non_blocking=True)

    def await_stage(self) -> None:
        """Lets the later stage's stream wait for all that the earlier one's has; the host does not."""
        if self._before.stream is not None and self._after.stream is not None:
            self._after.stream.wait_stream(self._before.stream)

    def carry(self, tensor: torch.Tensor) -> torch.Tensor:
        """Gives the later stage a tensor of any size that the earlier one has made; on the later stage's stream.

        Both streams are ordered, the host waits for nothing, and the earlier stage goes on meanwhile.
        """
        after = self._after.stream
        if self.route == PEER and self._before.device == self._after.device:
            self.await_stage()
            if after is not None:
                tensor.record_stream(after)
            return tensor
        target = torch.empty_like(tensor, device=self._after.device)
        with self._beside(tensor):
            if self.route == PEER:
                # Waits for, and holds up, the current stream of the target's device, which is the later stage's.
                self._copy(target, tensor)
                return target
            held = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            held.copy_(tensor, non_blocking=True)
        if after is not None and self._side is not None:
            after.wait_stream(self._side)
        target.copy_(held, non_blocking=True)
        return target

    def await_landing(self, lane: int) -> None:
        """Lets the later stage's stream wait for the lane's window; the host does not."""
        if self._after.stream is not None:
            self._after.stream.wait_event(self._sent[lane])

    def _beside(self, tensor: torch.Tensor) -> AbstractContextManager[object]:
        """A stream of the earlier device on which a tensor of its stage is ready."""
        before = self._before.stream
        if before is None:
            return nullcontext()
        if self._side is None:
            self._side = torch.cuda.Stream(self._before.device)  # type: ignore[no-untyped-call]
        self._side.wait_stream(before)
        tensor.record_stream(self._side)
        return torch.cuda.stream(self._side)

    def _place(self, x: torch.Tensor, lane: int) -> torch.Tensor:
        return self._landing[lane, : x.numel()].view(x.shape)

    def _proved(self) -> bool:
        source, target = self._before.device, self._after.device
        if source.type == "cuda" and source != target and not torch.cuda.can_device_access_peer(source, target):
            _log.info("event=no_peer_access from=%s to=%s route=ram", source, target)
            return False
        if not proves(self._copy, self._landing, source=source):
            _log.warning("event=peer_copy_wrong from=%s to=%s route=ram", source, target)
            return False
        return True


def proves(copy: Copy, landing: torch.Tensor, *, source: torch.device) -> bool:
    """Whether patterns of the landing places' size come back as they were sent, several times.

    Args:
        copy: as `Border` takes it.
        landing: float32 on the later device, overwritten.
        source: the earlier device.
    """
    for number in range(_PATTERNS):
        pattern = torch.randn(landing.shape, generator=torch.Generator().manual_seed(number))
        sent = pattern.to(source)
        landing.fill_(float("nan"))
        for device in {source, landing.device}:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        copy(landing, sent)
        if source.type == "cuda":
            torch.cuda.synchronize(source)
        if not torch.equal(landing.cpu(), pattern):
            return False
    landing.zero_()
    return True
