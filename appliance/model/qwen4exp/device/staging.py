"""Brings stored tensors to a device through a bounded pinned buffer, while the next piece is read from the file."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import torch

from appliance.errors import ModelFileError
from appliance.gguf.reader import TensorInfo
from appliance.model.qwen4exp.tensors import raw_bytes
from kernels.quant import count_nonfinite

PIECE_BYTES = 64 << 20
_PIECES = 3
_READERS = 4


@torch.inference_mode()
def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """On a reader's thread, which does not inherit the loader's inference mode."""
    target.copy_(source)


class Staging:
    """Reads pieces of the mapping in threads (a copy releases the interpreter) and sends them by the copy engine."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool: ThreadPoolExecutor | None = None
        self._pieces: list[torch.Tensor] = []
        self._sent: list[torch.cuda.Event | None] = [None] * _PIECES
        if device.type == "cuda":
            self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="staging")
            self._pieces = [torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(_PIECES)]

    def raw(self, info: TensorInfo, *, first_row: int = 0, rows: int | None = None) -> torch.Tensor:
        """Stored rows on the device, uint8 [rows, row bytes], checked for scales that are no numbers.

        On the CPU it is a view of the mapping; do not write to it.

        Raises:
            ModelFileError: NaN or infinite scales (values, for plain types); names the tensor.
        """
        stored = raw_bytes(info)
        stored = stored[first_row : stored.shape[0] if rows is None else first_row + rows]
        found = stored if self.device.type == "cpu" else self._send(stored)
        bad = count_nonfinite(found, info.type.name, columns=info.shape[-1])
        if bad:
            raise ModelFileError(
                f"tensor {info.name} has {bad} scales that are NaN or infinite ({info.type.name}); "
                "the file is damaged or badly quantised",
                hint="check its checksum or choose another quantisation",
            )
        return found

    def close(self) -> None:
        """Frees the buffer."""
        if self._pool is not None:
            self._pool.shutdown()
            torch.cuda.synchronize(self.device)
        self._pieces = []

    def _send(self, stored: torch.Tensor) -> torch.Tensor:
        assert self._pool is not None
        source = stored.reshape(-1)
        target = torch.empty(stored.shape, dtype=torch.uint8, device=self.device)
        flat = target.view(-1)
        for number, first in enumerate(range(0, source.numel(), PIECE_BYTES)):
            place = number % _PIECES
            before = self._sent[place]
            if before is not None:
                before.synchronize()
            piece = source[first : first + PIECE_BYTES]
            held = self._pieces[place][: piece.numel()]
            step = -(-piece.numel() // _READERS)
            parts = [slice(at, at + step) for at in range(0, piece.numel(), step)]
            done: list[Future[None]] = [self._pool.submit(_copy, held[part], piece[part]) for part in parts]
            for one in done:
                one.result()
            flat[first : first + PIECE_BYTES].copy_(held, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self.device))
            self._sent[place] = event
        return target
