"""Where a device model's weights come from: stored tensors, packed into planes one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import torch

from appliance.errors import ModelFileError
from appliance.gguf.reader import TensorInfo
from appliance.model.qwen4exp.device.staging import Staging, Stretch
from kernels.planes import Planes, pack
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

    def stream(self, stretches: Iterable[Stretch]) -> Iterator[torch.Tensor]:
        """Stored rows of each stretch in turn, uint8 [rows, row bytes]; those that follow are read meanwhile."""
        return self._staging.stream(stretches)

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
            return self._staging.raw(info).clone()
        return self._staging.host(info)

    def release(self) -> None:
        """See `Source`."""
        self._staging.release()
