"""The n-gram table and its homes: RAM, mapping, direct reads past the page cache, or the device."""

from __future__ import annotations

import mmap
import os
from typing import Protocol

import numpy as np
import torch

from appliance.gguf.reader import TensorInfo
from appliance.model.qwen4exp.tensors import raw_bytes
from kernels.quant import dequantise

DIRECT_BLOCK_BYTES = 4096


class NgramTable(Protocol):
    """Rows by number."""

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Unpacks rows: int64 [count] on the CPU -> float32 [count, row_width] on the model's device."""
        ...


class BytesTable:
    """Stored bytes in RAM, in the mapping or on the device; only gathered rows are unpacked."""

    def __init__(self, raw: torch.Tensor, info: TensorInfo, device: torch.device) -> None:
        self._raw = raw
        self._info = info
        self._device = device

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """See `NgramTable`."""
        picked = self._raw.index_select(0, rows.to(self._raw.device)).to(self._device)
        return dequantise(picked, self._info.type.name, columns=self._info.shape[-1])


class DirectTable:
    """Rows read from the file with O_DIRECT, or through the page cache where the file system refuses that."""

    def __init__(self, info: TensorInfo, device: torch.device) -> None:
        self._info = info
        self._device = device
        self._buffer = mmap.mmap(-1, 2 * DIRECT_BLOCK_BYTES + info.row_bytes // DIRECT_BLOCK_BYTES * DIRECT_BLOCK_BYTES)
        self._descriptor = self._open(info)

    def _open(self, info: TensorInfo) -> int:
        try:
            descriptor = os.open(info.part.path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        except OSError:
            return os.open(info.part.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.preadv(descriptor, [memoryview(self._buffer)[:DIRECT_BLOCK_BYTES]], 0)
        except OSError:
            os.close(descriptor)
            return os.open(info.part.path, os.O_RDONLY | os.O_CLOEXEC)
        return descriptor

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """See `NgramTable`."""
        size = self._info.row_bytes
        distinct, back = torch.unique(rows.cpu(), return_inverse=True)
        found = np.empty((distinct.shape[0], size), dtype=np.uint8)
        for i, row in enumerate(distinct.tolist()):
            found[i] = np.frombuffer(self._read(self._info.offset + row * size, size), dtype=np.uint8)
        raw = torch.from_numpy(found).index_select(0, back).to(self._device)
        return dequantise(raw, self._info.type.name, columns=self._info.shape[-1])

    def _read(self, offset: int, size: int) -> bytes:
        first = offset // DIRECT_BLOCK_BYTES * DIRECT_BLOCK_BYTES
        last = -(-(offset + size) // DIRECT_BLOCK_BYTES) * DIRECT_BLOCK_BYTES
        os.preadv(self._descriptor, [memoryview(self._buffer)[: last - first]], first)
        return self._buffer[offset - first : offset - first + size]

    def close(self) -> None:
        """Closes the descriptor."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


def open_table(info: TensorInfo, *, home: str, device: torch.device) -> NgramTable:
    """The table in its home: "ram", "mmap", "direct" or "vram".

    Raises:
        ValueError: another home.
    """
    if home == "ram":
        return BytesTable(raw_bytes(info).clone(), info, device)
    if home == "mmap":
        return BytesTable(raw_bytes(info), info, device)
    if home == "vram":
        return BytesTable(raw_bytes(info).to(device, copy=True), info, device)
    if home == "direct":
        return DirectTable(info, device)
    raise ValueError(f"n-gram home is {home!r}; allowed are ram, mmap, direct and vram")
