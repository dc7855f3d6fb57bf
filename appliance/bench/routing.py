"""How often each expert is chosen: recorded from a run, kept in a file, and made again in a synthetic model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from appliance.errors import UsageError

if TYPE_CHECKING:
    from appliance.model.qwen4exp.device.model import DeviceModel
    from appliance.model.qwen4exp.device.store import ExpertStore

VERSION: Final = 1
# A router without a bias chooses no expert in more than half of the rows; see `scales`.
MOST_SHARE: Final = 0.45
_LEAST_SHARE: Final = 1e-6
_ROUNDS: Final = 30
_MOST_BYTES: Final = 64 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Rows routed to each expert.

    Attributes:
        model: whose run it was.
        used: experts of one row.
        layers: counts of each layer of the trunk, one for each expert.
    """

    model: str
    used: int
    layers: tuple[tuple[int, ...], ...]

    def shares(self, layer: int) -> NDArray[np.float64]:
        """Share of the rows that each expert gets, the most used first; float64 [experts], together `used`."""
        counts = np.sort(np.asarray(self.layers[layer % len(self.layers)], np.float64))[::-1]
        return np.asarray(counts * self.used / counts.sum(), np.float64)

    def distinct(self, rows: int) -> float:
        """Experts that so many independent rows are expected to touch in one layer, on average over the layers."""
        each = [np.sum(1 - (1 - np.minimum(self.shares(layer), 1.0)) ** rows) for layer in range(len(self.layers))]
        return float(np.mean(each))


def read(path: Path, *, experts: int) -> Histogram:
    """A histogram that `write` wrote.

    Raises:
        UsageError: not readable, not such a file, of another version, or of a model with another number of experts.
    """
    where = f"--routing {path}"
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{where}: larger than {_MOST_BYTES // 1024**2} MiB, so no histogram")
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{where}: {(error.strerror or str(error)).lower()}") from error
    except ValueError as error:
        raise UsageError(f"{where}: no JSON ({error})", hint="strata bench --record-routing FILE writes one") from error
    if not isinstance(found, dict) or found.get("routing") != VERSION:
        raise UsageError(
            f'{where}: found no "routing": {VERSION}', hint="strata bench --record-routing FILE of this version"
        )
    layers: Any = found.get("layers")
    used: Any = found.get("used")
    if not _is_table(layers) or not isinstance(used, int) or not 1 <= used <= experts:
        raise UsageError(f'{where}: "layers" must be rows of whole numbers from 0 on, and "used" their experts a row')
    if any(len(layer) != experts or sum(layer) == 0 for layer in layers):
        raise UsageError(f"{where}: every layer must count {experts} experts and some rows; found {len(layers[0])}")
    return Histogram(model=str(found.get("model", "")), used=used, layers=tuple(map(tuple, layers)))


def _is_table(layers: Any) -> bool:
    return (
        isinstance(layers, list)
        and bool(layers)
        and all(isinstance(layer, list) and all(type(n) is int and n >= 0 for n in layer) for layer in layers)
    )


def write(path: Path, histogram: Histogram) -> None:
    """Writes a histogram for `read`.

    Raises:
        UsageError: the file cannot be written.
    """
    layers = ",\n".join(json.dumps(layer) for layer in histogram.layers)
    head = json.dumps({"routing": VERSION, "model": histogram.model, "used": histogram.used})[:-1]
    try:
        path.write_text(f'{head}, "layers": [\n{layers}\n]}}\n', encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--record-routing {path}: {(error.strerror or str(error)).lower()}") from error


class RoutingCounter:
    """What a model on cards routed since this was made; waits for the cards when asked."""

    def __init__(self, model: DeviceModel) -> None:
        self._model = model
        self._before = self._now()

    def counts(self) -> list[NDArray[np.int64]]:
        """int64 [experts] of each layer, the draft layer last where it is loaded."""
        # The device counts in 32 bits and wraps around, as the difference does.
        now = self._now()
        return [
            (late - early).astype(np.uint32).astype(np.int64) for late, early in zip(now, self._before, strict=True)
        ]

    def histogram(self) -> Histogram:
        """Of the trunk.

        Raises:
            UsageError: some layer routed nothing.
        """
        spec = self._model.spec
        layers = self.counts()[: spec.trunk_layers]
        if any(layer.sum() == 0 for layer in layers):
            raise UsageError("--record-routing: nothing was computed, so there is nothing to record")
        return Histogram(
            model=spec.name, used=spec.experts_used, layers=tuple(tuple(map(int, layer)) for layer in layers)
        )

    def touched(self) -> float:
        """Experts of a layer that were routed to at all, on average over the trunk's layers."""
        layers = self.counts()[: self._model.spec.trunk_layers]
        return sum(int(np.count_nonzero(layer)) for layer in layers) / max(1, len(layers))

    def hit_share(self) -> float | None:
        """Share of the routed experts that were on a card; None where nothing was routed."""
        resident = [homes.resident for store in self._stores() for homes in store.homes]
        counts = self.counts()
        total = sum(int(layer.sum()) for layer in counts)
        found = sum(int(layer[here].sum()) for layer, here in zip(counts, resident, strict=True))
        return found / total if total else None

    def _stores(self) -> list[ExpertStore]:
        return [stage.store for stage in self._model.parts.stages if stage.store is not None]

    def _now(self) -> list[NDArray[np.int32]]:
        found: list[NDArray[np.int32]] = []
        for store in self._stores():
            table = store.routing.counts[:, : store.routing.experts].to("cpu", copy=True).numpy()
            found += list(table[: len(store.layers)])
        return found


def scales(shares: NDArray[np.float64]) -> torch.Tensor:
    """Factors for the router's rows that make random rows choose experts by these shares; float32 [experts].

    A row of random weights gives logits that are normal with the row's length as deviation. An expert is chosen where
    its logit is above a threshold that few others pass, so a share of p wants a deviation of threshold / z(p), z being
    the normal distance that is passed in a share p of cases. An expert of more than half of the rows cannot be made.
    """
    normal = NormalDist()
    used, chosen = shares.sum(), shares
    for _ in range(_ROUNDS):  # what is cut off the most used goes to the others
        chosen = np.clip(chosen * used / chosen.sum(), _LEAST_SHARE, MOST_SHARE)
    return torch.tensor([1.0 / normal.inv_cdf(1.0 - float(share)) for share in chosen], dtype=torch.float32)


def capped(histogram: Histogram, layers: Sequence[int]) -> bool:
    """Whether some expert is chosen more often than a synthetic router can."""
    return any(float(histogram.shares(layer)[0]) > MOST_SHARE for layer in layers)
