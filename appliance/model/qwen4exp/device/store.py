"""Where every routed expert of a stage is: a pool on the card, and pinned host memory that the same kernels read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from appliance.model.qwen4exp.device.experts import LayerExperts
from appliance.model.qwen4exp.device.homes import Homes, Routing
from appliance.model.qwen4exp.device.pinned import HostPool
from kernels.experts import table_entry

_FILL_TOGETHER = 64


@dataclass(frozen=True, slots=True)
class StoreLayer:
    """A layer whose experts the store holds: name of its block, what runs it, and which are on the card at first."""

    block: str
    experts: LayerExperts
    resident: Sequence[int]


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
    """Homes of the experts; addresses are in the layers' tables.

    The pools must outlive every graph that has seen the tables.

    Attributes:
        layers: in order, the draft layer last.
        homes: of each layer, as the last table change that was enqueued has them.
        routing: tables and counts of the same layers.
        pool: int32, the card's slots of all layers, one layer after the other.
        host: the host's places, a block for each layer.
    """

    def __init__(self, layers: Sequence[StoreLayer], *, routing: Routing, device: torch.device) -> None:
        self._device = device
        self.layers = tuple(layers)
        self.routing = routing
        self.homes = [Homes(routing.experts, layer.resident) for layer in layers]
        in_ram = [(routing.experts - len(one.resident)) * one.experts.layout.host_kind.words * 4 for one in self.layers]
        self.host = HostPool(in_ram, cuda=device.type == "cuda")
        on_card = [len(one.resident) * one.experts.layout.kind.words for one in self.layers]
        self.pool = torch.empty(sum(on_card), dtype=torch.int32, device=device)
        self._starts = [sum(on_card[:number]) for number in range(len(on_card) + 1)]

    @property
    def hit_share(self) -> float:
        """Share of all experts that the card holds."""
        total = len(self.layers) * self.routing.experts
        return sum(len(layer.resident) for layer in self.layers) / total if total else 1.0

    def slots(self, number: int) -> torch.Tensor:
        """The card's homes of a layer, int32 [slots, words in the card's form]."""
        words = self.layers[number].experts.layout.kind.words
        return self.pool[self._starts[number] : self._starts[number + 1]].view(-1, words)

    def places(self, number: int) -> torch.Tensor:
        """The host's homes of a layer, int32 [places, words in the host's form]; waits until cards can read them."""
        return self.host.words(number).view(-1, self.layers[number].experts.layout.host_kind.words)

    def entries(self, number: int) -> NDArray[np.int64]:
        """What the table says of each expert of a layer in its home, int64 [experts]."""
        layer, homes = self.layers[number].experts, self.homes[number]
        found = np.zeros(self.routing.experts, np.int64)
        for host, (held, there) in enumerate(((homes.slot, self.slots(number)), (homes.place, self.places(number)))):
            which = held >= 0
            if which.any():
                first, step = table_entry(there[0], layer.anchor, host=bool(host)), there.shape[1] // 4 * 2
                found[which] = first + held[which].astype(np.int64) * step
        for expert, entry in homes.spare.items():
            found[expert] = entry
        return found

    def fill(self, words: Callable[[StoreLayer, bool, int], torch.Tensor]) -> None:
        """Writes made-up experts: `words(layer, host, count)` gives int32 [count, words of one]; see `load`."""
        for number, layer in enumerate(self.layers):
            for host, homes in enumerate((self.slots(number), self.places(number))):
                for some in torch.split(homes, _FILL_TOGETHER):
                    some.copy_(words(layer, bool(host), some.shape[0]))
            self.write_table(number)

    def close(self) -> None:
        """Gives the pinned memory back."""
        self.host.release()

    def write_table(self, number: int) -> None:
        """Says in a layer's table where its experts are, once they are there."""
        self.routing.layer(number).table[:-1].copy_(torch.from_numpy(self.entries(number)))
