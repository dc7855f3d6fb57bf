"""What is planned for each card is what its stage allocates, at any split."""

from __future__ import annotations

import pytest

from appliance.card_sizing import CardAsk, card_sizes
from appliance.model.qwen4exp.handoff_footprint import landing_bytes
from appliance.model.qwen4exp.stage_footprint import model_bytes
from tests.device.models import PAGE, load, spec_of


@pytest.mark.parametrize(
    ("split", "kv_type"),
    [pytest.param((1,), "bf16", id="before the n-gram layer"), pytest.param((1, 3), "int8", id="three stages")],
)
def test_states_pages_and_experts_of_each_stage(split: tuple[int, ...], kv_type: str) -> None:
    """SPLIT-05: to the byte, but for the small table of pages."""
    model = load("base4", kv_type=kv_type, layer_split=split)
    planned = model_bytes(spec_of("base4"), page_tokens=PAGE, kv_type=kv_type, draft=model.can_draft)
    slots, pages = model.plan.slots + 1, model.plan.pages + 1
    assert len(model.parts.stages) == len(split) + 1
    for stage in model.parts.stages:
        part = planned.stage(range(stage.layers.start, stage.layers.stop))
        held = stage.state.size_bytes - stage.state.pages.nbytes
        assert held == slots * part.fixed + pages * part.page
        assert stage.store is not None
        assert stage.store.pool.nbytes == sum(part.experts)
        assert stage.has_ngram == (part.ngram > 0)
    for border in model.launcher._borders:
        stages, groups = len(model.parts.stages), model.plan.groups
        assert border._landing.nbytes == landing_bytes(model.spec, stages=stages, groups=groups)
    model.close()


def test_every_part_is_within_three_percent_of_its_plan() -> None:
    """MEM-02: part by part, on the card and pinned, with some of the experts in RAM."""
    spec = spec_of("base4")
    planned = model_bytes(spec, page_tokens=PAGE, kv_type="bf16", draft=True)
    pool = round(0.6 * sum(planned.experts))
    model = load("base4", kv_type="bf16", expert_pool_bytes=pool, ngram_home="vram")
    plan = model.plan
    ask = CardAsk(tokens=plan.max_tokens, slots=plan.slots, pages=plan.pages, home="vram", kv_type="bf16", chunk_rows=0)
    sizes = card_sizes(spec, planned, range(spec.trunk_layers), ask, budget=1 << 40, cache=pool)
    (held,) = model.report.held()
    parts = {item.name: item.size_bytes for item in sizes.items()}
    for name in ("card: weights", "card: experts", "card: states", "card: KV pages", "card: n-gram table"):
        assert held[name] == pytest.approx(parts[name], rel=0.03), name
    assert held["card: buffers"] <= parts["card: buffers"]
    (stage,) = model.parts.stages
    assert stage.store is not None
    assert stage.store.host.size_bytes == pytest.approx(sizes.host_experts, rel=0.03)
    model.close()
