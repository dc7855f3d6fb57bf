"""What is planned for each card is what its stage allocates, at any split."""

from __future__ import annotations

import pytest

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
    model.close()
