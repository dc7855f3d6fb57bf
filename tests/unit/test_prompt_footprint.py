"""Prompt chunks in a placement: how long they are, what they take, and that a stated length is kept."""

from __future__ import annotations

import pytest

from appliance.model.qwen4exp.prompt_footprint import (
    CHUNK_SHARE,
    MOST_LANDING,
    PIECE_EXPERTS,
    chunk_bytes,
    chunk_rows,
    graph_bytes,
    kept_bytes,
    landing_bytes,
    landing_pieces,
    room_bytes,
    text_bytes,
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


def on_card(spec: ModelSpec, vram_bytes: int, rig: str = "", *, cards: int = 1) -> Placement:
    device = Device("cuda:0", "", tuple(card(index=number, vram_bytes=vram_bytes) for number in range(cards)))
    return place(machine(ram_bytes=256 * GIB, cards=cards), spec, load_text(rig).rig, device=device)


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
    launched = chunk_bytes(spec, rows=found.chunk_rows, tokens=found.max_tokens)
    assert rows.size_bytes == launched + graph_bytes(spec, rows=2048, tokens=found.max_tokens)
    assert found.load_plan().chunk_rows == found.chunk_rows > 0
    assert found.fits


@pytest.mark.parametrize(
    ("vram_bytes", "rig", "cards", "recorded", "longest"),
    [
        pytest.param(141 * GIB, "", 1, (128, 256, 512, 1024, 2048), 8192, id="all experts on a card"),
        pytest.param(141 * GIB, "", 2, (128, 256, 512, 1024, 2048), 2048, id="on two, whose chunks overlap"),
        pytest.param(141 * GIB, "[serving]\nprompt_chunk = 600\n", 2, (128, 256, 512), 600, id="a stated length"),
        pytest.param(48 * GIB, "", 1, (), 8192, id="experts in RAM"),
        pytest.param(36 * GIB, "", 2, (), 8192, id="experts in RAM beside two"),
        pytest.param(141 * GIB, "[engine]\nplain = true\n", 1, (), 8192, id="no graphs"),
        pytest.param(141 * GIB, '[ngram]\nhome = "direct"\n', 1, (), 8192, id="rows fetched by the host"),
    ],
)
def test_chunks_are_recorded_where_they_need_nothing_from_outside(
    spec: ModelSpec, vram_bytes: int, rig: str, cards: int, recorded: tuple[int, ...], longest: int
) -> None:
    found = on_card(spec, vram_bytes, rig, cards=cards)
    assert (found.recorded_rows, found.chunk_rows) == (recorded, longest)
    assert found.load_plan().recorded_rows == recorded
    assert found.fits


def test_a_card_that_holds_all_experts_only_without_graphs_has_none(spec: ModelSpec) -> None:
    """What recorded chunks take is not taken from experts."""
    whole = on_card(spec, 141 * GIB)
    used = whole.stages[0].used_bytes
    taken = kept_bytes(spec, rows=2048) + graph_bytes(spec, rows=2048, tokens=whole.max_tokens)
    rig = f"[context]\nmax_tokens = {whole.max_tokens}\n[serving]\nparallel = {whole.parallel}\n"
    spared = whole.stages[0].budget_bytes - used
    just, less = (on_card(spec, 141 * GIB - spared - missing, rig) for missing in (0, taken // 2))
    assert just.recorded_rows == whole.recorded_rows
    assert less.recorded_rows == ()
    assert less.stages[0].expert_bytes == whole.stages[0].expert_bytes


@pytest.mark.parametrize(
    ("tokens", "size_bytes"),
    [
        pytest.param(0, 0, id="none"),
        pytest.param(8192, 2 * 2 * 8192 * 256 * 2, id="both heads in order"),
        pytest.param(262144, 2 * 4 * (1 << 25), id="scores, and the lists of many blocks"),
    ],
)
def test_what_attention_holds_of_a_text(spec: ModelSpec, tokens: int, size_bytes: int) -> None:
    assert text_bytes(spec, rows=2048, tokens=tokens) == size_bytes


def test_what_lands_is_counted_where_experts_stay_in_ram(spec: ModelSpec) -> None:
    whole, part = (on_card(spec, vram_bytes) for vram_bytes in (141 * GIB, 48 * GIB))
    buffers = [found.stages[0].size("card: buffers") for found in (whole, part)]
    one = landing_bytes(experts=512, expert_bytes=MIB)
    assert buffers[1] - buffers[0] > one
    assert part.fits


def test_a_stated_length_is_kept(spec: ModelSpec) -> None:
    assert on_card(spec, 141 * GIB, "[serving]\nprompt_chunk = 512\n").chunk_rows == 512
