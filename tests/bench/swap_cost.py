"""Times windows one after the other while experts change places, and without: what an exchange costs those who decode.

    python -m tests.bench.swap_cost --layers 12 --hits 0.6

Routing is uniform and the exchanges are chosen at random, as many at once as there can be.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from appliance.bench.synthetic import SyntheticShape
from appliance.bench.windows import Bench, load
from appliance.model.qwen4exp.device.hotness import Heat, Move
from appliance.model.qwen4exp.device.model import DeviceModel
from appliance.model.qwen4exp.device.shapes import StepShape
from appliance.model.qwen4exp.device.tables import bucket_of
from appliance.model.qwen4exp.device.work import Draws
from kernels.rows import SpanPlan

WINDOWS, WARM = 300, 20


@dataclass
class Restless:
    """Stands for `Heat`: always wants to exchange something."""

    random: np.random.Generator

    def add(self, counts: NDArray[np.int32], resident: NDArray[np.bool_]) -> None:
        """See `Heat`."""

    def moves(self, resident: NDArray[np.bool_], *, most: int) -> list[Move]:
        """See `Heat`."""
        layers = self.random.choice(len(resident), min(most, len(resident)), replace=False)
        return [Move(int(n), self._pick(~resident[n]), self._pick(resident[n])) for n in layers]

    def _pick(self, which: NDArray[np.bool_]) -> int:
        return int(self.random.choice(np.flatnonzero(which)))


@torch.inference_mode()
def interval_ms(model: DeviceModel, *, rows: int, context: int) -> float:
    """Milliseconds from window to window."""
    spans = [SpanPlan(slot=slot, rows=1, tokens=(slot + 7,), start=context, certain=1) for slot in range(rows)]
    shape = StepShape(rows=bucket_of(rows), spans=bucket_of(rows), steps=0, draws=Draws(wide=False, greedy=True))
    for slot in range(rows):
        model.open_slot(slot)
        model.set_pages(slot, range(slot, model.plan.pages, model.plan.slots))
    began = 0.0
    for number in range(WINDOWS + WARM):
        if number == WARM:
            torch.cuda.synchronize()
            began = time.monotonic()
        model.launcher.submit(shape, spans)
        model.launcher.collect(shape.rows)
    torch.cuda.synchronize()
    return (time.monotonic() - began) / WINDOWS * 1e3


def main() -> None:
    """Prints a line for each number of rows."""
    command = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    command.add_argument("--layers", type=int, default=12)
    command.add_argument("--hits", type=float, default=0.6, help="share of the experts on the card")
    command.add_argument("--rows", type=int, nargs="+", default=[1, 4])
    command.add_argument("--every", type=int, default=4)
    asked = command.parse_args()
    bench = Bench(
        shape=SyntheticShape(layers=asked.layers),
        rows=asked.rows,
        context=1024,
        hit_share=asked.hits,
        draft=False,
        kv_type="bf16",
        plain=False,
    )
    model = load(bench)
    compare(model, rows=asked.rows, every=asked.every)
    model.close()


def compare(model: DeviceModel, *, rows: Sequence[int], every: int, context: int = 1024) -> None:
    """Prints a line for each number of rows, at most one a slot."""
    (stage,) = model.parts.stages
    assert stage.store is not None
    still = {count: interval_ms(model, rows=count, context=context) for count in rows}
    with torch.inference_mode():
        stage.follow_routing(np.zeros((len(stage.store.layers), stage.routing.experts), np.float32), every=every)
    assert stage.swapper is not None
    heat: Heat = Restless(np.random.default_rng(1))  # type: ignore[assignment]
    stage.swapper.heat = heat
    for count in rows:
        before, began = stage.swapper.swaps, time.monotonic()
        moving = interval_ms(model, rows=count, context=context)
        swaps = stage.swapper.swaps - before
        size = swaps * stage.store.layers[0].experts.layout.host_kind.words * 4 / 1e9
        print(
            f"{count} rows: {still[count]:.3f} ms a window, moving {moving:.3f} ({moving / still[count] - 1:+.1%}), "
            f"{swaps} experts, {size / (time.monotonic() - began):.1f} GB/s each way",
            flush=True,
        )


if __name__ == "__main__":
    main()
