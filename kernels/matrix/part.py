"""Takes stored blocks apart into codes, scales and lows, and joins them into a matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from kernels.compiled.product import kernels
from kernels.compiled.vector import TILE, VECTORS
from kernels.compiled.whole import GROUP, MOST_INPUTS, whole_kernel
from kernels.matrix.matrix import Matrix
from kernels.planes.fields import SPLIT, Fields
from kernels.planes.format import FORMATS, FORMATS_OF_TYPE, TABLES, PlaneFormat
from kernels.quant import dequantise
from kernels.quant.table import FORMATS as BLOCKS

Cut = Callable[[torch.Tensor], torch.Tensor]

# Temporaries are about 40 bytes a weight.
_SLICE_WEIGHTS = 1 << 18


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a stored matrix, [columns of the product, inputs].

    Attributes:
        values: int8 codes or float32 weights [columns, inputs].
        scales: float32 [columns, groups]; None for float32 weights.
        lows: as scales, or None.
    """

    values: torch.Tensor
    scales: torch.Tensor | None = None
    lows: torch.Tensor | None = None

    @property
    def group(self) -> int:
        """Inputs that share a scale; 0 for float32 weights."""
        return 0 if self.scales is None else self.values.shape[1] // self.scales.shape[1]

    def rows(self, index: torch.Tensor) -> Part:
        """Some of the rows, int64 [any]."""
        return self._each(lambda values: values.index_select(0, index), lambda values: values.index_select(0, index))

    def inputs(self, first: int, stop: int) -> Part:
        """Some of the inputs; float32 where the cut goes through a group."""
        if self.group and (first % self.group or stop % self.group):
            return Part(self.floats()[:, first:stop])
        group = self.group or 1
        return self._each(
            lambda values: values[:, first:stop], lambda values: values[:, first // group : stop // group]
        )

    def over(self, divisor: float) -> Part:
        """All weights divided by a number."""
        if self.scales is None:
            return Part(self.values / divisor)
        return Part(self.values, self.scales / divisor, None if self.lows is None else self.lows / divisor)

    def filled(self, run: int) -> Part:
        """Zeros after every `run` rows, up to a tile's edge."""
        missing = -run % TILE
        if missing == 0:
            return self

        def fill(values: torch.Tensor) -> torch.Tensor:
            return pad(values.view(-1, run, values.shape[1]), (0, 0, 0, missing)).flatten(0, 1)

        return self._each(fill, fill)

    def regrouped(self, group: int, *, lows: bool) -> Part:
        """The same codes with smaller groups, which divide the present ones, and perhaps with lows of zero."""
        assert self.scales is not None
        times = self.group // group
        scales, low = self.scales.repeat_interleave(times, 1), None
        if lows:
            low = torch.zeros_like(scales) if self.lows is None else self.lows.repeat_interleave(times, 1)
        return Part(self.values, scales, low)

    def floats(self) -> torch.Tensor:
        """The weights, float32 [columns, inputs]."""
        if self.scales is None:
            return self.values
        weights = self.values.to(torch.float32).mul_(self.scales.repeat_interleave(self.group, 1))
        return weights if self.lows is None else weights.add_(self.lows.repeat_interleave(self.group, 1))

    def _each(self, of_values: Cut, of_scales: Cut) -> Part:
        return Part(
            of_values(self.values),
            None if self.scales is None else of_scales(self.scales),
            None if self.lows is None else of_scales(self.lows),
        )


def stored(type_name: str, raw: torch.Tensor, *, columns: int) -> Part:
    """Stored blocks, exact: codes where the type has blocks, else float32.

    Args:
        type_name: ggml type, e.g. "Q4_K".
        raw: uint8 [rows, row bytes] on the CPU.
        columns: weights in a row.
    """
    form = FORMATS[FORMATS_OF_TYPE[type_name][0]]
    if form.bits >= 16:
        return Part(dequantise(raw, type_name, columns=columns))
    step = max(1, _SLICE_WEIGHTS // columns)
    parts = [_take_apart(type_name, form, raw[at : at + step], columns) for at in range(0, raw.shape[0], step)]
    if len(parts) == 1:
        return parts[0]
    scales = [part.scales for part in parts if part.scales is not None]
    lows = [part.lows for part in parts if part.lows is not None]
    return Part(torch.cat([part.values for part in parts]), torch.cat(scales), torch.cat(lows) if lows else None)


def _take_apart(type_name: str, form: PlaneFormat, raw: torch.Tensor, columns: int) -> Part:
    fields = SPLIT[type_name, form.name](raw.reshape(-1, BLOCKS[type_name].block_bytes))
    rows = raw.shape[0]
    codes, shrink = _signed(form, fields)
    scales = _times(fields.d, fields.steps, odd=form.odd) * shrink
    lows = None if fields.low is None else _times(fields.low, fields.low_steps).reshape(rows, -1).contiguous()
    return Part(codes.reshape(rows, columns), scales.reshape(rows, -1).contiguous(), lows)


def _signed(form: PlaneFormat, fields: Fields) -> tuple[torch.Tensor, float]:
    """Codes as int8 around zero, and what their scale is multiplied by."""
    if form.table:
        levels = torch.tensor(TABLES[form.table], dtype=torch.int8)
        return levels[fields.codes.to(torch.int32)], 1.0
    if form.zero % 1:  # a zero between two codes: twice the codes, half the scale
        return (fields.codes.to(torch.int16) * 2 - int(2 * form.zero)).to(torch.int8), 0.5
    return (fields.codes.to(torch.int16) - int(form.zero)).to(torch.int8), 1.0


def _times(d: torch.Tensor, steps: torch.Tensor | None, *, odd: bool = False) -> torch.Tensor:
    if steps is None:
        return d
    return d * (2 * steps + 1 if odd else steps)


def alike(parts: Sequence[Part]) -> list[Part]:
    """The same weights with groups of one size, and with lows if some have them; float32 if some are."""
    groups, lows = {part.group for part in parts}, any(part.lows is not None for part in parts)
    if 0 in groups:
        return [Part(part.floats()) for part in parts]
    return [part.regrouped(min(groups), lows=lows) for part in parts]


def stack(parts: Sequence[Part], *, runs: int) -> Part:
    """Parts cut into equally many runs of rows: the first run of every part, then the second of every part, ..."""
    if len(parts) == 1:
        return parts[0]
    parts = alike(parts)

    def weave(values: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([one.view(runs, -1, one.shape[1]) for one in values], 1).flatten(0, 1)

    scales = [part.scales for part in parts if part.scales is not None]
    lows = [part.lows for part in parts if part.lows is not None]
    values = weave([part.values for part in parts])
    return Part(values, weave(scales) if scales else None, weave(lows) if lows else None)


def join(parts: Sequence[Part]) -> Matrix:
    """Matrices that read the same input, as one; their columns follow each other without gaps.

    Parts keep their codes as long as they begin at a tile's edge; from the first other one on, all are float32.
    """
    coded = columns = 0
    for part in parts:
        if part.group == 0 or columns % TILE:
            break
        coded += 1
        columns += part.values.shape[0]
    if coded < len(parts) and columns % TILE:
        coded = 0
    first, rest = alike(parts[:coded]), parts[coded:]
    inputs = parts[0].values.shape[1]
    scales = [part.scales for part in first if part.scales is not None]
    lows = [part.lows for part in first if part.lows is not None]
    codes = _tiles([part.values for part in first], inputs, torch.int8)
    codes_kernel, floats_kernel = kernels()
    if first and first[0].group == GROUP and inputs <= MOST_INPUTS and (whole := whole_kernel()):
        codes, codes_kernel = in_fours(codes), whole
    return Matrix(
        codes=codes.numpy(),
        scales=_tiles(scales, inputs, torch.float32).numpy(),
        lows=_tiles(lows, 0, torch.float32).numpy(),
        floats=_tiles([part.floats() for part in rest], inputs, torch.float32).numpy(),
        codes_kernel=codes_kernel,
        floats_kernel=floats_kernel,
    )


def _tiles(parts: Sequence[torch.Tensor], inputs: int, dtype: torch.dtype) -> torch.Tensor:
    """[columns, inputs] one after the other -> [tiles, inputs, TILE]; no tiles of `inputs` when there are no parts."""
    if not parts:
        return torch.empty(0, inputs, TILE, dtype=dtype)
    whole = torch.cat(list(parts)) if len(parts) > 1 else parts[0]
    whole = pad(whole, (0, 0, 0, -whole.shape[0] % TILE))
    return whole.view(-1, TILE, whole.shape[1]).transpose(1, 2).contiguous()


def in_fours(codes: torch.Tensor) -> torch.Tensor:
    """Codes [tiles, inputs, TILE] as the product in whole numbers reads them: four inputs of a column side by side."""
    blocks = codes.view(-1, codes.shape[1] // GROUP, GROUP // 4, 4, VECTORS, TILE // VECTORS)
    return blocks.permute(0, 1, 4, 2, 5, 3).reshape(codes.shape).contiguous()
