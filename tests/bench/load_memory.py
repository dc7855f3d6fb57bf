"""What a loaded model takes beside what its placement said, in one table; for `tests.bench.load_speed`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from appliance.card_sizing import CardAsk, CardSizes, card_sizes
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.device.held import held_bytes
from appliance.model.qwen4exp.device.model import DeviceModel
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.model.qwen4exp.stage_footprint import model_bytes

ALLOWED = 0.03
_RUNTIME, _PROMPTS = "card: runtime", "card: prompts"


@dataclass(frozen=True, slots=True)
class Line:
    """What was placed and what was measured, in bytes; `more`: whether less than placed is a fault too."""

    what: str
    placed: int
    measured: int
    both_ways: bool

    @property
    def share(self) -> float:
        """How far the measure is from the placement."""
        return self.measured / self.placed - 1 if self.placed else 0.0

    def words(self) -> str:
        """One row of the table."""
        bad = self.share > ALLOWED or (self.both_ways and self.share < -ALLOWED)
        sizes = f"{self.placed / 1e9:9.3f} {self.measured / 1e9:9.3f}"
        return f"  {self.what:42} {sizes} {self.share:+8.2%}{'  over 3 %' if bad else ''}"


def taken_bytes() -> int:
    """What this process and whoever else is there have of the card."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def placed(spec: ModelSpec, plan: LoadPlan) -> CardSizes:
    """What the planner says of a model on one card."""
    ask = CardAsk(
        tokens=plan.max_tokens,
        slots=plan.slots,
        pages=plan.pages,
        home=plan.ngram_home,
        kv_type=plan.kv_type,
        chunk_rows=plan.chunk_rows,
    )
    model = model_bytes(spec, page_tokens=plan.page_tokens, kv_type=plan.kv_type, draft=plan.draft_max > 0)
    return card_sizes(spec, model, range(spec.trunk_layers), ask, budget=1 << 40, cache=plan.expert_pool_bytes)


def table(model: DeviceModel, *, loading_peak: int) -> Iterator[str]:
    """Every part, then the three sums: held, the peak while loading, and what the driver gave.

    Args:
        model: loaded, its windows made, its longest prompt run once.
        loading_peak: most bytes of torch while it was loaded.
    """
    sizes = placed(model.spec, model.plan)
    parts = {item.name: item.size_bytes for item in sizes.items()}
    (held,) = held_bytes(model.parts, model.launcher)
    now, taken, reserved = torch.cuda.memory_allocated(), taken_bytes(), torch.cuda.memory_reserved()
    beside = {_PROMPTS: torch.cuda.max_memory_allocated() - now, _RUNTIME: taken - reserved}
    for name, size in (held | beside).items():
        yield f"  {name:42} {parts[name] / 1e9:9.3f} {size / 1e9:9.3f} {(size - parts[name]) / 1e6:+8.1f} MB"
    total = sum(parts.values())
    for line in (
        Line("held: all parts but prompts and runtime", total - parts[_RUNTIME] - parts[_PROMPTS], now, True),
        Line("peak while loading, of all but the runtime", total - parts[_RUNTIME], loading_peak, False),
        Line("taken from the driver", total, taken, True),
    ):
        yield line.words()
    store = model.parts.last_stage.store
    assert store is not None
    if sizes.host_experts:
        yield Line("pinned experts", sizes.host_experts, store.host.size_bytes, True).words()
    yield f"  reserved by torch {reserved / 1e9:.3f} GB, of which unused {(reserved - now) / 1e9:.3f}"
