"""Buffers that all layers of a stage share: one allocation for each purpose, seen in the shape of every bucket."""

from __future__ import annotations

import math

import torch

from kernels.planes import operand_columns


class Scratch:
    """Memory by tag, as large as the largest bucket needs, so that its address never changes."""

    def __init__(self, device: torch.device, *, most_rows: int, exact: bool) -> None:
        self.device = device
        self._most_rows = most_rows
        self._exact = exact
        self._flat: dict[str, torch.Tensor] = {}

    def take(self, tag: str, shape: tuple[int, ...], *, rows: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A contiguous tensor over the tag's memory; what it holds is what was last written under this tag.

        Args:
            tag: purpose; uses of different sizes share the memory of the largest first use.
            shape: of the tensor; its size grows in proportion to `rows`.
            rows: of the bucket, a factor of the shape's size.
            dtype: of the tag.
        """
        count = math.prod(shape)
        flat = self._flat.get(tag)
        if flat is None:
            flat = torch.zeros(count // rows * self._most_rows, dtype=dtype, device=self.device)
            self._flat[tag] = flat
        if flat.numel() < count or flat.dtype != dtype:
            raise ValueError(f"buffer {tag} holds {flat.numel()} {flat.dtype}, asked for {count} {dtype}")
        return flat[:count].view(shape)

    def operand(self, tag: str, inputs: int, *, rows: int) -> torch.Tensor:
        """Operand rows of `inputs` values, [rows, inputs rounded up to 128]; zero where nothing was written."""
        padded = operand_columns(inputs)
        dtype = torch.float32 if self._exact else torch.float16
        return self.take(f"{tag}:{padded}", (rows, padded), rows=rows, dtype=dtype)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tags."""
        return sum(flat.nbytes for flat in self._flat.values())
