"""Bytes by layers: the stages of any split add up to the whole model's own formulas."""

from __future__ import annotations

import itertools

import pytest

from appliance.model.qwen4exp.device_footprint import dense_bytes, expert_bytes, host_expert_bytes, slot_bytes
from appliance.model.qwen4exp.footprint import ngram_bytes
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.model.qwen4exp.stage_footprint import ModelBytes, StageBytes, model_bytes
from appliance.models.catalogue import read_catalogue
from appliance.models.outline import outline


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return outline(read_catalogue().size("iq3-s"))


def stages(found: ModelBytes, *split: int) -> list[StageBytes]:
    return [found.stage(range(first, past)) for first, past in itertools.pairwise((0, *split, found.layers))]


@pytest.mark.parametrize("draft", [True, False], ids=["drafts", "no drafts"])
@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_one_stage_is_the_whole_model(spec: ModelSpec, kv: str, draft: bool) -> None:
    found = model_bytes(spec, page_tokens=64, kv_type=kv, draft=draft)
    (whole,) = stages(found)
    slot = slot_bytes(spec, page_tokens=64, kv_type=kv, draft=draft)
    assert whole.dense == dense_bytes(spec, draft=draft)
    assert sum(whole.experts) == expert_bytes(spec, draft=draft).total
    assert sum(whole.host_experts) == host_expert_bytes(spec, draft=draft)
    assert (whole.fixed, whole.page) == (slot.fixed, slot.page)
    assert whole.ngram == ngram_bytes(spec)


@pytest.mark.parametrize(
    "split",
    [pytest.param((24,), id="two"), pytest.param((1, 47), id="three uneven"), pytest.param((12, 24, 36), id="four")],
)
@pytest.mark.parametrize("draft", [True, False], ids=["drafts", "no drafts"])
def test_a_card_holds_only_its_own_layers(spec: ModelSpec, split: tuple[int, ...], draft: bool) -> None:
    found = model_bytes(spec, page_tokens=64, kv_type="int8", draft=draft)
    (whole,), parts = stages(found), stages(found, *split)
    again = found.embedding if draft else 0  # where the draft layer looks tokens up
    assert sum(part.dense for part in parts) == whole.dense + again
    assert tuple(itertools.chain(*(part.experts for part in parts))) == whole.experts
    assert sum(part.page for part in parts) == whole.page
    assert sum(part.fixed for part in parts) == whole.fixed + (len(parts) - 1) * found.ring
    table = [bool(part.ngram) for part in parts]
    assert table.count(True) == 1
    assert table[next(n for n, start in enumerate((*split, 48)) if start > found.ngram_layer)]


def test_the_last_card_has_head_and_drafter(spec: ModelSpec) -> None:
    found = model_bytes(spec, page_tokens=64, kv_type="int8", draft=True)
    first, last = stages(found, 24)
    assert first.dense == sum(found.dense[:24]) + found.embedding
    assert last.dense == sum(found.dense[24:]) + found.embedding + found.head + found.drafter
    assert len(last.experts) == 25
