"""What cards keep for passing windows and chunks on, in a placement: on which card, how much, and in RAM."""

from __future__ import annotations

import dataclasses

import pytest

from appliance.model.qwen4exp.handoff_footprint import (
    landing_bytes,
    lanes_of,
    leaving_bytes,
    pinned_bytes,
    read_lanes,
)
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.models.catalogue import read_catalogue
from appliance.models.outline import outline
from appliance.placed import Placement
from appliance.placement import place
from appliance.rig.judge import Device, choose_device
from appliance.rig.load import load_text
from appliance.rig.size import GIB
from tests.builders.machines import RTX_3090, box, card, machine

STREAMS = 4 * 2560 * 4


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return outline(read_catalogue().size("iq3-s"))


@pytest.mark.parametrize(
    ("stages", "groups", "lanes", "reads"),
    [
        pytest.param(1, 1, 2, 0, id="one stage: one is computed, one waits"),
        pytest.param(2, 2, 5, 3, id="two"),
        pytest.param(4, 4, 9, 5, id="four"),
    ],
)
def test_bytes_of_a_border(spec: ModelSpec, stages: int, groups: int, lanes: int, reads: int) -> None:
    assert (lanes_of(stages, groups), read_lanes(stages)) == (lanes, reads)
    assert landing_bytes(spec, stages=stages, groups=groups) == (lanes + 1) * 40 * STREAMS
    assert leaving_bytes(spec, rows=8192, stages=stages) == max(0, reads - 1) * 8192 * STREAMS
    both = landing_bytes(spec, stages=stages, groups=groups) + reads * 8192 * STREAMS
    assert pinned_bytes(spec, rows=8192, stages=stages, groups=groups) == both


def on_two(spec: ModelSpec, *, peers: bool) -> Placement:
    text = '[model]\npath = "/m.gguf"\n[context]\nmax_tokens = 32768\n[serving]\nparallel = 8\n'
    found = box((RTX_3090, 16), (RTX_3090, 16), ram_gib=128)
    if peers:
        cards = tuple(
            dataclasses.replace(one, peers=tuple(other.uuid for other in found.rates.cards if other is not one))
            for one in found.rates.cards
        )
        found = dataclasses.replace(found, rates=dataclasses.replace(found.rates, cards=cards))
    loaded = load_text(text)
    return place(found, spec, loaded.rig, device=choose_device(loaded, found))


@pytest.mark.parametrize("peers", [True, False])
def test_both_cards_keep_what_passes_between_them(spec: ModelSpec, peers: bool) -> None:
    """SPLIT-05: what leaves is on the earlier card, what lands on the later one, in RAM if they must."""
    found = on_two(spec, peers=peers)
    first, last = found.stages
    assert first.size("card: hand-off") == leaving_bytes(spec, rows=found.chunk_rows, stages=2) > 0
    assert last.size("card: hand-off") == landing_bytes(spec, stages=2, groups=found.groups)
    in_ram = sum(item.size_bytes for item in found.items if item.name == "hand-off")
    assert in_ram == (0 if peers else pinned_bytes(spec, rows=found.chunk_rows, stages=2, groups=found.groups))
    assert (found.pinned_bytes > in_ram) if in_ram else True
    assert all(stage.used_bytes <= stage.budget_bytes for stage in found.stages)


def test_one_card_passes_nothing_on(spec: ModelSpec) -> None:
    device = Device("cuda:0", "", (card(vram_bytes=141 * GIB),))
    found = place(machine(ram_bytes=256 * GIB, cards=1), spec, load_text("").rig, device=device)
    assert all("hand-off" not in item.name for item in (*found.items, *found.card_items))
