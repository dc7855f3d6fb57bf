"""Stored tensors as torch sees them: raw bytes, unpacked matrices, and rows of tables."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch

from appliance.errors import ModelFileError
from appliance.gguf.reader import TensorInfo
from kernels.quant import dequantise


def raw_bytes(info: TensorInfo) -> torch.Tensor:
    """The stored bytes as uint8 [rows, row_bytes], a view of the mapping that is only ever read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the mapping is read-only; nothing writes to it
        flat = torch.from_numpy(info.raw())
    return flat.view(-1, info.row_bytes)


class Tensors:
    """Unpacks tensors of one model to float32 on one device."""

    def __init__(self, infos: Mapping[str, TensorInfo], device: torch.device) -> None:
        self._infos = infos
        self.device = device

    def __contains__(self, name: str) -> bool:
        return name in self._infos

    def info(self, name: str) -> TensorInfo:
        """The directory entry.

        Raises:
            ModelFileError: there is no such tensor.
        """
        found = self._infos.get(name)
        if found is None:
            raise ModelFileError(f"tensor {name} is missing; the model cannot be computed without it")
        return found

    def matrix(self, name: str) -> torch.Tensor:
        """A matrix, float32 [out, in] as stored."""
        info = self.info(name)
        raw = raw_bytes(info).to(self.device)
        return dequantise(raw, info.type.name, columns=info.shape[-1]).view(info.shape)

    def vector(self, name: str) -> torch.Tensor:
        """All weights in one float32 vector, whatever the stored shape."""
        return self.matrix(name).reshape(-1)
