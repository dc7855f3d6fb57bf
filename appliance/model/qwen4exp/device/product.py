"""Matrices that read the same operand rows: as few launches as their formats allow, and where each part lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from appliance.model.qwen4exp.device.scratch import Scratch
from appliance.model.qwen4exp.device.source import Source
from kernels.linear import linear, linear_pair, splits
from kernels.planes import Planes, join


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a joined matrix: which launch, first row, rows."""

    launch: int
    first: int
    rows: int


@dataclass(frozen=True, slots=True)
class Product:
    """Joined matrices and where each part is."""

    launches: tuple[Planes, ...]
    parts: Mapping[str, Part]

    def run(
        self, operand: torch.Tensor, *, scratch: Scratch, tag: str, used: torch.Tensor, exact: bool, pdl: bool
    ) -> dict[str, torch.Tensor]:
        """Partial results of each part, float32 [terms, rows, part rows]; valid until the next product of this tag."""
        rows = operand.shape[0]
        outs = []
        for number, planes in enumerate(self.launches):
            terms = splits(planes.rows, planes.columns)
            place = f"{tag} {number}:{terms}x{planes.rows}"
            outs.append(scratch.take(place, (terms, rows, planes.rows), rows=rows))
        if len(self.launches) == 2:
            large, small = sorted(range(2), key=lambda number: -self.launches[number].rows)
            linear_pair(
                operand,
                self.launches[large],
                self.launches[small],
                out=outs[large],
                small_out=outs[small],
                exact=exact,
                pdl=pdl,
                rows_used=used,
            )
        else:
            for number, (planes, out) in enumerate(zip(self.launches, outs, strict=True)):
                linear(operand, planes, out=out, exact=exact, pdl=pdl, beside=number > 0, rows_used=used)
        return {name: outs[p.launch][:, :, p.first : p.first + p.rows] for name, p in self.parts.items()}


def product_of(source: Source, names: Mapping[str, str]) -> Product:
    """Joins what has one format.

    Args:
        source: of the matrices, all with the same inputs.
        names: part -> tensor.
    """
    groups: dict[str, list[tuple[str, Planes]]] = {}
    for part, name in names.items():
        planes = source.planes(name)
        groups.setdefault(planes.format, []).append((part, planes))
    return joined(list(groups.values()))


def joined(groups: Sequence[Sequence[tuple[str, Planes]]]) -> Product:
    """One launch for each group of (part, matrix); a group has one format and one number of inputs."""
    launches: list[Planes] = []
    parts: dict[str, Part] = {}
    for number, group in enumerate(groups):
        whole, starts = join([planes for _, planes in group])
        launches.append(whole)
        for (part, planes), first in zip(group, starts, strict=True):
            parts[part] = Part(number, first, planes.rows)
    return Product(tuple(launches), parts)
