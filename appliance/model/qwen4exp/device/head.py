"""The end of the trunk: final mixer, vocabulary, draw, verdict; buffers of the last stage."""

from __future__ import annotations

from dataclasses import fields

import torch

from appliance.model.qwen4exp.device.scratch import Scratch
from appliance.model.qwen4exp.device.source import Source
from appliance.model.qwen4exp.device.tables import MOST_ROWS
from appliance.model.qwen4exp.spec import ModelSpec
from kernels.linear import linear, splits
from kernels.planes import Planes
from kernels.sampling.decode import Drawn, DrawScratch


class Vocabulary:
    """The output matrix and the sampler's room."""

    def __init__(self, source: Source, spec: ModelSpec, scratch: Scratch) -> None:
        name = "output.weight" if "output.weight" in source else "token_embd.weight"
        self.planes: Planes = source.planes(name)
        self._scratch = scratch
        self._size = spec.vocabulary
        self._whole = DrawScratch.empty(rows=MOST_ROWS, vocabulary=spec.vocabulary, device=scratch.device)

    def logits(self, operand: torch.Tensor, *, used: torch.Tensor, exact: bool, pdl: bool) -> torch.Tensor:
        """float32 [rows, vocabulary]; valid until the next call."""
        rows = operand.shape[0]
        terms = splits(self.planes.rows, self.planes.columns)
        parts = self._scratch.take("logit parts", (terms, rows, self._size), rows=rows)
        linear(operand, self.planes, out=parts, exact=exact, pdl=pdl, rows_used=used)
        if terms == 1:
            return parts[0]
        logits = self._scratch.take("logits", (rows, self._size), rows=rows)
        torch.sum(parts, 0, out=logits)
        return logits

    def draw_scratch(self, rows: int) -> DrawScratch:
        """The sampler's room in the shape of a bucket; all buckets share it."""
        whole = self._whole
        tensors = {field.name: getattr(whole, field.name) for field in fields(DrawScratch) if field.name != "tile"}
        across = ("tiles_float", "tiles_whole", "tiles_double", "rows_float")
        views = {name: one[:, :rows] if name in across else one[:rows] for name, one in tensors.items()}
        return DrawScratch(tile=whole.tile, **views)

    def drawn(self, rows: int) -> Drawn:
        """A place for draws."""
        return Drawn.empty(rows=rows, device=self._scratch.device)

    @property
    def size_bytes(self) -> int:
        """Bytes of the sampler's room."""
        return sum(getattr(self._whole, field.name).nbytes for field in fields(DrawScratch) if field.name != "tile")
