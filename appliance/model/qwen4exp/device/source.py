"""Where a device model's weights come from: stored tensors, packed into planes one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import torch

from appliance.errors import ModelFileError
from appliance.gguf.reader import TensorInfo
from appliance.model.qwen4exp.device.staging import Staging, Stretch
from kernels.planes import Planes, choose_format, pack, word_count
from kernels.planes.fast import Items, can_pack, pack_items
from kernels.planes.format import TILE_ROWS, PlaneFormat
from kernels.quant import dequantise


class Source(Protocol):
    """Tensors by canonical name, on one device."""

    device: torch.device

    def __contains__(self, name: object) -> bool:
        """Whether the model has the tensor."""
        ...

    def info(self, name: str) -> TensorInfo:
        """Its directory entry."""
        ...

    def planes(self, name: str) -> Planes:
        """A matrix, packed."""
        ...

    def floats(self, name: str) -> torch.Tensor:
        """All weights as float32, in the stored shape."""
        ...

    def blocks(self, name: str) -> torch.Tensor:
        """Stored rows, uint8 [rows, row bytes]."""
        ...

    def table(self, name: str, *, on_device: bool) -> torch.Tensor:
        """A table's stored rows, uint8 [rows, row bytes], on the device or in memory of the host that it reads."""
        ...

    def release(self) -> None:
        """Gives back the host's memory that tables lie in; nothing may read it any more."""
        ...


class FileSource:
    """Tensors of a file."""

    def __init__(self, tensors: Mapping[str, TensorInfo], staging: Staging) -> None:
        self.device = staging.device
        self._tensors = tensors
        self._staging = staging

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def info(self, name: str) -> TensorInfo:
        """See `Source`.

        Raises:
            ModelFileError: there is no such tensor.
        """
        found = self._tensors.get(name)
        if found is None:
            raise ModelFileError(f"tensor {name} is missing; the model cannot be computed without it")
        return found

    def planes(self, name: str) -> Planes:
        """See `Source`."""
        info = self.info(name)
        form = choose_format(info.type.name)
        if self.device.type == "cuda" and can_pack(info.type.name, form.name):
            return self._packed(info, form)
        return pack(info.type.name, self._staging.raw(info), columns=info.shape[-1])

    def floats(self, name: str) -> torch.Tensor:
        """See `Source`."""
        info = self.info(name)
        raw = self._staging.raw(info)
        return dequantise(raw, info.type.name, columns=info.shape[-1]).view(info.shape)

    def blocks(self, name: str) -> torch.Tensor:
        """See `Source`."""
        return self._staging.raw(self.info(name))

    def stretch(self, name: str, *, first_row: int, rows: int) -> Stretch:
        """Some rows of a tensor, for `stream`."""
        return Stretch(self.info(name), first_row, rows)

    def groups(self, groups: Iterable[Sequence[Stretch]]) -> Iterator[list[torch.Tensor]]:
        """Stored rows of each group's stretches in turn; see `Staging.groups`."""
        return self._staging.groups(groups)

    def doubt(self, name: str, count: torch.Tensor) -> None:
        """Notes how many scales of a tensor are no numbers, for `check`."""
        self._staging.doubt(self.info(name), count)

    def check(self) -> None:
        """Names a tensor, of those brought so far, whose scales are no numbers.

        Raises:
            ModelFileError: there is one.
        """
        self._staging.check()

    def table(self, name: str, *, on_device: bool) -> torch.Tensor:
        """See `Source`."""
        info = self.info(name)
        if on_device:
            rows = self._staging.raw(info)
            return rows if rows.is_cuda else rows.clone()
        return self._staging.host(info)

    def release(self) -> None:
        """See `Source`."""
        self._staging.release()

    def _packed(self, info: TensorInfo, form: PlaneFormat) -> Planes:
        """Slice by slice, so that no other room is needed than the planes'."""
        columns, name = info.shape[-1], info.type.name
        rows = info.byte_count // info.row_bytes
        words = torch.empty(word_count(form, rows=rows, columns=columns), dtype=torch.int32, device=self.device)
        bad = torch.zeros(1, dtype=torch.int32, device=self.device)
        start = torch.zeros(1, dtype=torch.int64, device=self.device)
        for first, raw in self._staging.slices(info):
            items = Items(type_name=name, raw=raw.unsqueeze(0), columns=columns, form=form.name)
            pack_items(items, out=words[first // TILE_ROWS * form.strip_words(columns) :], places=start, bad=bad)
        self._staging.doubt(info, bad[0])
        return Planes(form.name, rows, columns, words)
