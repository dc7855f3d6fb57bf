"""Rows of an n-gram table that stays on storage: the host knows the tokens, so it fetches what a window will gather."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from appliance.gguf.reader import TensorInfo
from appliance.model.qwen4exp.device_footprint import RING
from appliance.model.qwen4exp.hyperparameters import NgramSpec
from appliance.model.qwen4exp.tensors import raw_bytes

THREADS: Final = 16
# Storage answers many questions at once, and one after the other takes about 0.1 ms each.
_ALONE: Final = 8
_BLOCK_BYTES: Final = 4096


class Reader(Protocol):
    """Fetches rows; any thread may."""

    def read(self, numbers: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Copies rows: int64 [count] -> uint8 [count, row bytes]."""
        ...


class Mapped:
    """Through the page cache."""

    def __init__(self, info: TensorInfo) -> None:
        self._raw: NDArray[np.uint8] = raw_bytes(info).numpy()

    def read(self, numbers: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """See `Reader`; lets other threads run."""
        np.take(self._raw, numbers, axis=0, out=out, mode="clip")


class Direct:
    """Past the page cache, or through it where the file system refuses that."""

    def __init__(self, info: TensorInfo) -> None:
        self._offset, self._size = info.offset, info.row_bytes
        self._local = threading.local()
        path = info.part.path
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
            os.preadv(self._file, [mmap.mmap(-1, _BLOCK_BYTES)], 0)
        except OSError:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, numbers: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """See `Reader`."""
        held = getattr(self._local, "held", None)
        if held is None:
            held = self._local.held = mmap.mmap(-1, (self._size // _BLOCK_BYTES + 2) * _BLOCK_BYTES)
        found: NDArray[np.uint8] = np.frombuffer(held, np.uint8)
        for at, number in enumerate(numbers.tolist()):
            inside = (self._offset + number * self._size) % _BLOCK_BYTES
            first = self._offset + number * self._size - inside
            blocks = -(-(inside + self._size) // _BLOCK_BYTES)
            os.preadv(self._file, [memoryview(held)[: blocks * _BLOCK_BYTES]], first)
            out[at] = found[inside : inside + self._size]


class StoredRows:
    """The same hash as `kernels.ngram`, over the same ring of tokens, kept by the host."""

    def __init__(self, info: TensorInfo, ngram: NgramSpec, *, home: str, slots: int) -> None:
        """Opens the table.

        Args:
            info: of the table.
            ngram: how tokens become rows.
            home: "mmap" or "direct".
            slots: of the model; a dummy one comes behind them.
        """
        self.info = info
        self._ngram = ngram
        self._reader: Reader = Mapped(info) if home == "mmap" else Direct(info)
        self._ring = np.zeros((slots + 1, RING), np.int64)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="ngram")

    def numbers(self, slot: int, start: int, tokens: Sequence[int]) -> NDArray[np.int64]:
        """Rows of a slot's next tokens, int64 [tokens, heads]; the tokens are then its past, until written over."""
        spec, ring = self._ngram, self._ring[slot]
        before = np.arange(start - spec.order + 1, start)
        past = np.where(before >= 0, ring[before % RING], spec.reset_token_id)
        known = np.concatenate((past, np.asarray(tokens, np.int64)))
        count = len(tokens)
        last = range(max(0, count - RING), count)
        ring[(start + np.array(last)) % RING] = known[spec.order - 1 :][last.start :]
        mixed = known[spec.order - 1 :] * spec.multipliers[0]
        ended = np.zeros(count, bool)
        found = np.empty((count, spec.heads), np.int64)
        for back in range(1, spec.order):
            token = known[spec.order - 1 - back :][:count]
            ended |= token == spec.reset_token_id
            mixed ^= np.where(ended, spec.reset_token_id, token) * spec.multipliers[back]
            heads = slice((back - 1) * spec.heads_per_order, back * spec.heads_per_order)
            found[:, heads] = mixed[:, None] % np.array(spec.head_rows[heads]) + np.array(spec.head_offsets[heads])
        return found

    def fetch(self, numbers: NDArray[np.int64], out: torch.Tensor) -> None:
        """Fetches rows, int64 [any] -> uint8 [their count, row bytes] of the host."""
        wanted, rows = numbers.reshape(-1), out.numpy()
        step = max(_ALONE, -(-wanted.size // THREADS))
        jobs = [
            self._threads.submit(self._reader.read, wanted[at : at + step], rows[at : at + step])
            for at in range(0, wanted.size, step)
        ]
        for job in jobs:
            job.result()
