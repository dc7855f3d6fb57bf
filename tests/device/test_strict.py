"""Chunks and windows in fp16 touch their own memory alone, and use nothing that was not written before."""

from __future__ import annotations

import pytest
import torch

from appliance.model.qwen4exp.device.model import DeviceModel
from tests.builders.strict import strict
from tests.device.models import ON_CARD, load, open_slot, window

CASES = {
    "odd": ((17, 4), {"kv_type": "int8"}),
    "filled-up": ((14, 4), {"kv_type": "bf16", "recorded_rows": (16, 20)}),
    "stages": ((15, 1), {"kv_type": "bf16", "layer_split": (1, 3)}),
}


@pytest.mark.parametrize(("parts", "plan"), CASES.values(), ids=CASES)
def test_a_prompt_and_drafts(parts: tuple[int, ...], plan: dict[str, object]) -> None:
    model = load("base4", tokens=48, chunk_rows=40, exact=False, **plan)  # type: ignore[arg-type]
    open_slot(model, 1)
    with strict(_in_tables(model)) as launches:
        for count in parts:
            drafts = 2 if count == 4 else 0
            tokens = [7 * (model.length(1) + place) % 251 for place in range(count)]
            logits, _ = window(
                model, 1, tokens, following=5, drafts=drafts, ask=3, kept=count, logits_from=count - 1 - drafts
            )
            assert torch.isfinite(torch.from_numpy(logits)).all()
    assert ON_CARD or {"recur", "gate_up_tiles", "attend"} <= set(launches)


def _in_tables(model: DeviceModel) -> list[torch.Tensor]:
    """Experts, which kernels find by the addresses in their tables."""
    found = []
    for stage in model.parts.stages:
        assert stage.store is not None
        found += [stage.store.pool, *(block.bytes for block in stage.store.host.blocks)]
        layers = [block.weights for block in stage.blocks] + ([stage.draft] if stage.draft is not None else [])
        found += [layer.experts.shared for layer in layers]
    return found
