"""Where every routed expert of a stage is: a pool on the card, and pinned host memory that the same kernels read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from appliance.model.qwen4exp.device.experts import LayerExperts, packed_experts
from appliance.model.qwen4exp.device.pinned import host_memory, host_release
from appliance.model.qwen4exp.device.source import Source
from appliance.model.qwen4exp.spec import ModelSpec
from kernels.experts import table_entry

_LOAD_TOGETHER = 64


@dataclass(frozen=True, slots=True)
class StoreLayer:
    """A layer whose experts the store holds: name of its block, what runs it, and how many are on the card."""

    block: str
    experts: LayerExperts
    resident: int


def resident_counts(sizes: Sequence[int], *, experts: int, pool_bytes: int | None) -> list[int]:
    """Experts of each layer that the card holds: the same share of every layer, to the nearest expert.

    Args:
        sizes: bytes of one expert of each layer.
        experts: of a layer.
        pool_bytes: of the card's pool; None for all.
    """
    total = sum(sizes) * experts
    if pool_bytes is None or pool_bytes >= total:
        return [experts] * len(sizes)
    counts = [math.floor(experts * max(0, pool_bytes) / total)] * len(sizes)
    left = pool_bytes - sum(size * count for size, count in zip(sizes, counts, strict=True))
    for number, size in enumerate(sizes):
        if size <= left and counts[number] < experts:
            counts[number] += 1
            left -= size
    return counts


class ExpertStore:
    """Fixed homes: the first experts of each layer on the card, the others in RAM; addresses are in the layers' tables.

    The pools must outlive every graph that has seen the tables.
    """

    def __init__(self, layers: Sequence[StoreLayer], *, device: torch.device) -> None:
        on_card = sum(layer.resident * layer.experts.layout.kind.words for layer in layers)
        in_ram = sum(
            (layer.experts.layout.experts - layer.resident) * layer.experts.layout.host_kind.words for layer in layers
        )
        self._device = device
        self.layers = tuple(layers)
        self.pool = torch.empty(on_card, dtype=torch.int32, device=device)
        self.host = host_memory((in_ram,), torch.int32, cuda=device.type == "cuda")

    @property
    def hit_share(self) -> float:
        """Share of all experts that the card holds."""
        total = sum(layer.experts.layout.experts for layer in self.layers)
        return sum(layer.resident for layer in self.layers) / total if total else 1.0

    def load(self, source: Source, spec: ModelSpec, *, done: Callable[[], None]) -> None:
        """Packs every expert into its home and writes the tables; `done` is called after each layer."""
        at = at_host = 0
        for layer in self.layers:
            layout, resident = layer.experts.layout, layer.resident
            homes = ((0, resident, layout.kind), (resident, layout.experts, layout.host_kind))
            entries: list[int] = []
            for host, (first, stop, kind) in enumerate(homes):
                for begin in range(first, stop, _LOAD_TOGETHER):
                    count = min(_LOAD_TOGETHER, stop - begin)
                    size = count * kind.words
                    place = self.host[at_host : at_host + size] if host else self.pool[at : at + size]
                    packed = packed_experts(source, layer.block, spec, kind=kind, first=begin, count=count)
                    place.copy_(packed.view(-1))
                    entries += self._entries(layer, place.view(count, kind.words), host=bool(host))
                    at, at_host = (at, at_host + size) if host else (at + size, at_host)
            layer.experts.table[:-1].copy_(torch.tensor(entries, dtype=torch.int64))
            done()

    def fill(self, words: Callable[[StoreLayer, bool, int], torch.Tensor]) -> None:
        """Writes made-up experts: `words(layer, host, count)` gives int32 [count, words of one]; see `load`."""
        at = at_host = 0
        for layer in self.layers:
            layout, entries = layer.experts.layout, []
            for host, count in enumerate((layer.resident, layout.experts - layer.resident)):
                kind = layout.host_kind if host else layout.kind
                size = count * kind.words
                place = self.host[at_host : at_host + size] if host else self.pool[at : at + size]
                place = place.view(count, kind.words)
                for begin in range(0, count, _LOAD_TOGETHER):
                    some = place[begin : begin + _LOAD_TOGETHER]
                    some.copy_(words(layer, bool(host), some.shape[0]))
                entries += self._entries(layer, place, host=bool(host))
                at, at_host = (at, at_host + size) if host else (at + size, at_host)
            layer.experts.table[:-1].copy_(torch.tensor(entries, dtype=torch.int64))

    def _entries(self, layer: StoreLayer, place: torch.Tensor, *, host: bool) -> list[int]:
        return [table_entry(one, layer.experts.anchor, host=host) for one in place.unbind(0)]

    def close(self) -> None:
        """Gives the pinned memory back."""
        host_release(self.host, cuda=self._device.type == "cuda")
        self.host = self.host[:0]
