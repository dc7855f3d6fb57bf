"""Brings stored experts to the homes that a store has for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from appliance.model.qwen4exp.device.expert_loading import (
    ExpertRows,
    expert_rows,
    expert_stretches,
    pack_experts,
    pack_home,
)
from appliance.model.qwen4exp.device.experts import ExpertTensors, expert_tensors, kernel_packs
from appliance.model.qwen4exp.device.source import FileSource
from appliance.model.qwen4exp.device.staging import Stretch
from appliance.model.qwen4exp.device.store import ExpertStore
from appliance.model.qwen4exp.loading_footprint import place_bytes, together
from appliance.model.qwen4exp.spec import ModelSpec
from kernels.experts import ExpertLayout
from kernels.experts.recode import recode
from kernels.quant import nonfinite

_CHECK_EVERY: Final = 8
"""Layers between two looks at what packing found: a look waits for the device."""


def load_experts(
    store: ExpertStore,
    source: FileSource,
    spec: ModelSpec,
    *,
    done: Callable[[], None],
    by_kernel: bool | None = None,
) -> None:
    """Packs every expert into its home and writes the tables.

    Args:
        store: with empty homes.
        source: of the stored experts.
        spec: the model.
        done: called when a layer is on its way.
        by_kernel: whether the packing kernel is used where it knows the types; None: on a card.

    Raises:
        ModelFileError: an expert with scales that are no numbers.
    """
    draft = store.layers[-1].block == f"blk.{spec.trunk_layers}"
    place = place_bytes(spec, draft=draft)
    names = [expert_tensors(source, layer.block) for layer in store.layers]
    edges = [_edges(spec, int(layer.block.split(".")[1]), place=place) for layer in store.layers]

    def groups() -> Iterator[list[Stretch]]:
        for one, own in zip(names, edges, strict=True):
            for first, stop in pairwise(own):
                yield expert_stretches(source, one, spec, first=first, count=stop - first)

    rows, cuda = source.groups(groups()), store.pool.is_cuda
    for number, (one, own) in enumerate(zip(names, edges, strict=True)):
        fast = (cuda if by_kernel is None else by_kernel) and _known(store, source, number, one)
        packer: _Packer = _ByKernel(store, number) if fast else _ByTorch(store, number)
        for first, _ in pairwise(own):
            packer.place(first, expert_rows(source, one, spec, next(rows)))
        for name, bad in zip((one.gate, one.up, one.down), packer.bad, strict=True):
            source.doubt(name, bad)
        if number % _CHECK_EVERY == _CHECK_EVERY - 1:
            source.check()
        done()
    source.check()
    for number in range(len(store.layers)):
        store.write_table(number)


class _Packer(Protocol):
    """Packs the experts of one layer; `bad` int [3] of gate, up and down: scales that are no numbers."""

    bad: torch.Tensor

    def place(self, first: int, rows: ExpertRows) -> None:
        """Packs neighbours from `first` on into the homes that they have."""
        ...


class _ByKernel:
    """Each expert from its stored rows to its home, also where that is in pinned memory."""

    def __init__(self, store: ExpertStore, number: int) -> None:
        self._store, self._number = store, number
        self._layout = store.layers[number].experts.layout
        homes, device = store.homes[number], store.pool.device
        self.bad = torch.zeros(3, dtype=torch.int32, device=device)
        self._held = homes.slot >= 0
        kinds = ((homes.slot, self._layout.kind.words), (homes.place, self._layout.host_kind.words))
        places = [np.where(there < 0, -1, there.astype(np.int64) * words) for there, words in kinds]
        held = torch.from_numpy(np.stack(places))
        if store.pool.is_cuda:
            # Fresh pinned memory, which torch does not hand out again before the copy from it is done.
            held = held.pin_memory()
        self._places = held.to(device, non_blocking=True)

    def place(self, first: int, rows: ExpertRows) -> None:
        """See `_Packer`."""
        stop = first + rows.down[1].shape[0]
        on_card, in_ram = self._places[:, first:stop]
        held = self._held[first:stop]
        if held.any():
            out = self._store.slots(self._number).view(-1)
            pack_home(rows, kind=self._layout.kind, out=out, places=on_card, bad=self.bad)
        if not held.all():
            out = self._store.places(self._number).view(-1)
            pack_home(rows, kind=self._layout.host_kind, out=out, places=in_ram, bad=self.bad)


class _ByTorch:
    """All at once with temporaries of many bytes a weight, then to their homes."""

    def __init__(self, store: ExpertStore, number: int) -> None:
        self._store, self._number = store, number
        self._layout = store.layers[number].experts.layout
        self.bad = torch.zeros(3, dtype=torch.int64, device=store.pool.device)

    def place(self, first: int, rows: ExpertRows) -> None:
        """See `_Packer`."""
        columns = (self._layout.kind.hidden, self._layout.kind.hidden, self._layout.kind.ff)
        found = [
            nonfinite(part.flatten(0, 1), name, columns=width)
            for (name, part), width in zip(rows.parts, columns, strict=True)
        ]
        self.bad += torch.stack(found)
        packed, homes = pack_experts(rows, kind=self._layout.kind), self._store.homes[self._number]
        for host, homes_of in enumerate((homes.slot, homes.place)):
            held = homes_of[first : first + packed.shape[0]]
            which = np.flatnonzero(held >= 0)
            if not which.size:
                continue
            # Homes were given in the order of the experts, so those of neighbours follow each other.
            at = int(held[which[0]])
            if host:
                there = self._store.places(self._number)[at : at + which.size]
                there.copy_(_recoded(packed, which, self._layout))
            else:
                self._store.slots(self._number)[at : at + which.size].copy_(_some(packed, which))


def _edges(spec: ModelSpec, layer: int, *, place: int) -> list[int]:
    """Where groups of a layer's experts begin, and where the last one ends."""
    return [*range(0, spec.experts, together(spec, layer, place=place)), spec.experts]


def _known(store: ExpertStore, source: FileSource, number: int, names: ExpertTensors) -> bool:
    """Whether the kernel knows a layer's types, in both forms."""
    gate, up, down = (source.info(name).type.name for name in (names.gate, names.up, names.down))
    layout = store.layers[number].experts.layout
    return all(kernel_packs((gate, up, down), kind) for kind in (layout.kind, layout.host_kind))


def _some(packed: torch.Tensor, which: NDArray[np.intp]) -> torch.Tensor:
    """Those of the packed experts: without a copy where they are neighbours, as they mostly are."""
    first, last = int(which[0]), int(which[-1])
    if last - first + 1 == which.size:
        return packed[first : last + 1]
    return packed.index_select(0, torch.from_numpy(which).to(packed.device))


def _recoded(packed: torch.Tensor, which: NDArray[np.intp], layout: ExpertLayout) -> torch.Tensor:
    """Those of the packed experts in the host's form: packing a second time would take longer."""
    if layout.kind == layout.host_kind:
        return _some(packed, which)
    found = torch.empty((which.size, layout.host_kind.words), dtype=torch.int32, device=packed.device)
    for at, number in enumerate(which.tolist()):
        recode(packed[number], layout.kind, out=found[at], to=layout.host_kind)
    return found
