"""Prompt chunks in a placement: how long they are, what they take, and that a stated length is kept."""

from __future__ import annotations

import pytest

from appliance.model.qwen4exp.prompt_footprint import (
    CHUNK_SHARE,
    MOST_LANDING,
    PIECE_EXPERTS,
    chunk_bytes,
    chunk_rows,
    landing_bytes,
    landing_pieces,
    room_bytes,
)
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.models.catalogue import read_catalogue
from appliance.models.outline import outline
from appliance.placed import Placement
from appliance.placement import place
from appliance.rig.judge import Device
from appliance.rig.load import load_text
from appliance.rig.size import GIB, MIB
from tests.builders.machines import card, machine


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return outline(read_catalogue().size("iq3-s"))


def on_card(spec: ModelSpec, vram_bytes: int, rig: str = "") -> Placement:
    device = Device("cuda:0", "", (card(vram_bytes=vram_bytes),))
    return place(machine(ram_bytes=256 * GIB, cards=1), spec, load_text(rig).rig, device=device)


@pytest.mark.parametrize(
    ("vram_bytes", "tokens", "rows"),
    [
        pytest.param(141 * GIB, 262144, 8192, id="a large card"),
        pytest.param(141 * GIB, 1000, 1000, id="no longer than a conversation"),
        pytest.param(24 * GIB, 262144, 8192, id="a middling one"),
        pytest.param(12 * GIB, 262144, 4096, id="a small one"),
        pytest.param(GIB, 262144, 0, id="one that is too small"),
    ],
)
def test_chunks_are_as_long_as_a_share_of_the_card_holds(
    spec: ModelSpec, vram_bytes: int, tokens: int, rows: int
) -> None:
    found = chunk_rows(spec, tokens=tokens, card_bytes=vram_bytes)
    assert found == rows
    if found == 8192:
        assert chunk_bytes(spec, rows=found) <= vram_bytes * CHUNK_SHARE


def test_the_largest_matrix_of_the_real_shape_is_the_first_of_a_linear_layer(spec: ModelSpec) -> None:
    assert room_bytes(spec) == (10240 + 6144 + 2 * 48) * 2560 * 2


@pytest.mark.parametrize(
    ("experts", "places"),
    [(0, 0), (1, 2), (64, 2), (205, 8), (512, 8)],
    ids=["none in RAM", "one", "a piece a layer", "four pieces a layer", "all"],
)
def test_landing_places_hold_two_layers_but_no_more_than_eight_pieces(experts: int, places: int) -> None:
    assert landing_bytes(experts=experts, expert_bytes=MIB) == places * PIECE_EXPERTS * MIB
    pieces = 48 * -(-experts // PIECE_EXPERTS)
    assert landing_pieces(pieces, layers=48) == places <= MOST_LANDING


def test_a_placement_counts_them(spec: ModelSpec) -> None:
    found = on_card(spec, 141 * GIB)
    rows = next(item for item in found.card_items if item.name == "card: prompts")
    assert rows.size_bytes == chunk_bytes(spec, rows=found.chunk_rows)
    assert found.load_plan().chunk_rows == found.chunk_rows > 0
    assert found.fits


def test_what_lands_is_counted_where_experts_stay_in_ram(spec: ModelSpec) -> None:
    whole, part = (on_card(spec, vram_bytes) for vram_bytes in (141 * GIB, 48 * GIB))
    buffers = [found.stages[0].size("card: buffers") for found in (whole, part)]
    one = landing_bytes(experts=512, expert_bytes=MIB)
    assert buffers[1] - buffers[0] > one
    assert part.fits


def test_a_stated_length_is_kept(spec: ModelSpec) -> None:
    assert on_card(spec, 141 * GIB, "[serving]\nprompt_chunk = 512\n").chunk_rows == 512
