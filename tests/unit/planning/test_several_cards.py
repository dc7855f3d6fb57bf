"""Placement over two to four cards: who holds what, the split, the order, and refusals with each card's numbers."""

from __future__ import annotations

import dataclasses
import itertools
from random import Random

import pytest

from appliance.card_placement import ranges
from appliance.errors import DoesNotFitError
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.models.catalogue import read_catalogue
from appliance.models.outline import outline
from appliance.placed import Placement
from appliance.placed_speed import company_rate, draft_slopes, stage_times
from appliance.placement import place
from appliance.rig.card_facts import CardProcess
from appliance.rig.cards import Card
from appliance.rig.judge import choose_device
from appliance.rig.load import load_text
from appliance.rig.machine import Machine
from appliance.rig.size import GIB
from appliance.scheduler.costs import USUAL
from appliance.split import CostOf, StageCost, best_split
from tests.builders.machines import BOXES, PRO_5000, RTX_3090, RTX_4090, RTX_5070, Kind, box

TWO = box((RTX_3090, 16), (RTX_3090, 16), ram_gib=128)
UNEQUAL_LINKS = BOXES["two 24 GB cards, one on x4"]
FOUR = BOXES["four 24 GB cards, 64 GB RAM"]
STATED = "[context]\nmax_tokens = 32768\n[serving]\nparallel = 8\n"
SMALL_AND_SLOW = Kind("NVIDIA Old 8G", 8, "8.6", 224, 20, 4)


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return outline(read_catalogue().size("iq3-s"))


def placed(machine: Machine, spec: ModelSpec, text: str = "") -> Placement:
    loaded = load_text(f'[model]\npath = "/m.gguf"\n{text}')
    return place(machine, spec, loaded.rig, device=choose_device(loaded, machine))


def layers_of(found: Placement) -> list[int]:
    return [stage.past_layer - stage.first_layer for stage in found.stages]


def with_cards(machine: Machine, *cards: Card) -> Machine:
    return dataclasses.replace(machine, cards=dataclasses.replace(machine.cards, cards=cards))


def costs(*speeds: float, short_after: int = 99) -> CostOf:
    """Not a real pricing: layers cost 1/speed each, and card 0 holds no more than some."""

    def cost(stage: int, layers: range) -> StageCost:
        seconds = len(layers) / speeds[stage]
        return StageCost(max(0, len(layers) - short_after) if stage == 0 else 0, seconds, seconds)

    return cost


@pytest.mark.parametrize(
    ("speeds", "short_after", "split"),
    [
        pytest.param((1.0,), 99, (), id="one card"),
        pytest.param((1.0, 1.0), 99, (24,), id="equal"),
        pytest.param((3.0, 1.0), 99, (36,), id="three to one"),
        pytest.param((1.0, 3.0), 99, (12,), id="one to three"),
        pytest.param((1000.0, 1.0), 99, (47,), id="every card gets a layer"),
        pytest.param((1.0, 1.0, 1.0, 1.0), 99, (12, 24, 36), id="four equal"),
        pytest.param((2.0, 1.0, 1.0), 99, (24, 36), id="one quick of three"),
        pytest.param((3.0, 1.0), 20, (20,), id="quick but small"),
    ],
)
def test_the_slowest_card_is_as_quick_as_can_be(
    speeds: tuple[float, ...], short_after: int, split: tuple[int, ...]
) -> None:
    cost = costs(*speeds, short_after=short_after)
    assert best_split(cost, stages=len(speeds), layers=48) == split


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_no_other_split_is_better(stages: int, seed: int) -> None:
    """Against every split there is, on cards and layers of random speed and room."""
    random, layers = Random(seed), 9
    weight = [random.choice((1, 1, 1, 3)) for _ in range(layers)]
    speeds = [random.uniform(0.5, 2) for _ in range(stages)]
    room = [random.randrange(1, 12) for _ in range(stages)]

    def cost(stage: int, own: range) -> StageCost:
        work = sum(weight[own.start : own.stop]) / speeds[stage]
        return StageCost(max(0, len(own) - room[stage]), work, work)

    def whole(split: tuple[int, ...]) -> tuple[int, float]:
        parts = [cost(stage, own) for stage, own in enumerate(ranges(split, layers))]
        return max(part.short_bytes for part in parts), max(part.seconds for part in parts)

    every = list(itertools.combinations(range(1, layers), stages - 1))
    short, seconds = whole(best_split(cost, stages=stages, layers=layers))
    assert short == min(whole(split)[0] for split in every)
    if short == 0:  # among those that do not fit, the time does not matter
        assert seconds == pytest.approx(min(time for lack, time in map(whole, every) if lack == 0))


def test_equal_cards_balance_milliseconds_and_not_layers(spec: ModelSpec) -> None:
    """The last card has head and drafts too, so it gets fewer layers."""
    found = placed(FOUR, spec, STATED)
    times = [time.window_s for time in stage_times(FOUR, spec, found)]
    assert len(found.stages) == 4
    assert layers_of(found)[-1] < layers_of(found)[0]
    assert max(times) < 1.15 * min(times)
    assert all(time.idle < 0.15 for time in stage_times(FOUR, spec, found))


def test_a_card_on_a_slow_link_gets_fewer_layers(spec: ModelSpec) -> None:
    big = outline(read_catalogue().size("ud-q4-k-xl"))  # does not fit in VRAM, so links count
    assert layers_of(placed(UNEQUAL_LINKS, big, STATED))[1] < layers_of(placed(TWO, big, STATED))[1]


def test_a_card_holds_the_bytes_of_its_own_layers(spec: ModelSpec) -> None:
    found = placed(TWO, spec, STATED)
    first, last = found.stages
    assert found.fits
    assert (first.first_layer, last.past_layer) == (0, 48)
    assert first.past_layer == last.first_layer == found.layer_split[0]
    plan = found.load_plan()
    assert plan.devices == ("cuda:0", "cuda:1")
    assert plan.layer_split == found.layer_split
    assert plan.stage_pool_bytes == (first.expert_bytes, last.expert_bytes)
    assert plan.groups == 2
    # Logits, rules and the draft layer are with the head.
    assert last.size("card: buffers") > first.size("card: buffers")
    in_vram = placed(TWO, spec, STATED + '[ngram]\nhome = "ram"\n')
    assert [stage.size("card: n-gram table") for stage in in_vram.stages] == [0, 0]


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        pytest.param("", 2, id="equal cards are busy with two"),
        pytest.param("[cards]\nlayer_split = [46]\n", 1, id="beside a card that does nearly all, one"),
        pytest.param("[serving]\nbatch_groups = 1\n", 1, id="stated"),
        pytest.param("[serving]\nbatch_groups = 8\n", 8, id="stated, and more than cards"),
    ],
)
def test_groups_are_as_many_as_keep_the_cards_busy(spec: ModelSpec, text: str, groups: int) -> None:
    stated = "[context]\nmax_tokens = 16384\n" + (text if "[serving]" in text else "[serving]\n" + text)
    large = box((PRO_5000, 16), (PRO_5000, 16), ram_gib=128)
    assert placed(large, spec, stated).groups == groups


def test_the_table_is_where_its_layer_is(spec: ModelSpec) -> None:
    large = box((PRO_5000, 16), (PRO_5000, 16), ram_gib=128)
    found = placed(large, spec, STATED + '[ngram]\nhome = "vram"\n')
    assert [stage.size("card: n-gram table") > 0 for stage in found.stages] == [True, False]


def test_a_stated_split_is_kept_and_its_price_said(spec: ModelSpec) -> None:
    automatic = placed(TWO, spec, STATED)
    found = placed(TWO, spec, STATED + "[cards]\nlayer_split = [8]\n")
    assert found.layer_split == (8,)
    (note,) = found.notes
    assert note.startswith("layer_split = [8]: the slowest card takes ")
    assert f"longer a window than with {list(automatic.layer_split)}" in note
    same = placed(TWO, spec, STATED + f"[cards]\nlayer_split = {list(automatic.layer_split)}\n")
    assert same.notes == ()


def test_a_stated_order_is_kept_and_an_open_one_measured(spec: ModelSpec) -> None:
    """SPLIT-02"""
    pair = box((RTX_5070, 16), (RTX_4090, 16), ram_gib=128)
    stated = placed(pair, spec, STATED + "[cards]\ndevices = [1, 0]\n")
    assert [stage.card.index for stage in stated.stages] == [1, 0]
    assert stated.notes == ()
    both = [placed(pair, spec, STATED + f"[cards]\ndevices = {order}\n") for order in ("[0, 1]", "[1, 0]")]
    rates = [company_rate(pair, spec, found) for found in both]
    found = placed(pair, spec, STATED)
    assert company_rate(pair, spec, found) >= 0.99 * max(rates)
    if [stage.card.index for stage in found.stages] == [1, 0]:
        assert "cards in the order 1, 0" in found.notes[0]


def test_a_card_that_would_slow_the_others_down_is_left_idle(spec: ModelSpec) -> None:
    """SPLIT-06: the reason is said, and who names it gets it."""
    pair = box((PRO_5000, 16), (SMALL_AND_SLOW, 4), ram_gib=128)
    found = placed(pair, spec, STATED)
    assert [stage.card.index for stage in found.stages] == [0]
    assert "card 1 (NVIDIA Old 8G) left idle: with one more, four users together would be" in found.notes[0]
    both = placed(pair, spec, STATED + "[cards]\ndevices = [0, 1]\n")
    assert [stage.card.index for stage in both.stages] == [0, 1]


def test_free_memory_counts_and_not_the_cards_size(spec: ModelSpec) -> None:
    """SPLIT-05: 24 GB with 4 GB used and 12 GB; 8 slots of 64K; head, drafts and logits are counted on the last."""
    pair = box((RTX_3090, 16), (RTX_5070, 16), ram_gib=128)
    first, last = pair.cards.cards
    held = CardProcess(pid=7, name="x", used_bytes=4 * GIB)
    used = dataclasses.replace(first, free_bytes=20 * GIB, processes=(held,))
    text = "[context]\nmax_tokens = 65536\n[serving]\nparallel = 8\n[cards]\ndevices = [0, 1]\n"
    found = placed(with_cards(pair, used, last), spec, text)
    assert found.fits
    assert found.stages[0].budget_bytes == 20 * GIB - 700 * 1024**2
    roomy = placed(pair, spec, text)
    assert found.stages[0].used_bytes <= found.stages[0].budget_bytes
    assert sum(s.expert_bytes for s in found.stages) < sum(s.expert_bytes for s in roomy.stages)
    names = {item.name for item in found.stages[1].items if item.size_bytes}
    assert names >= {"card: weights", "card: experts", "card: states", "card: KV pages", "card: buffers"}


def test_every_card_that_is_too_small_is_named_with_its_numbers(spec: ModelSpec) -> None:
    tiny = tuple(dataclasses.replace(card, free_bytes=4 * GIB) for card in TWO.cards.cards)
    with pytest.raises(DoesNotFitError) as caught:
        placed(with_cards(TWO, *tiny), spec, STATED + "[cards]\ndevices = [0, 1]\n")
    for index in (0, 1):
        assert f"on card {index} (NVIDIA GeForce RTX 3090) with layers " in str(caught.value)
    for words in ("8 x 32768 tokens need", "besides its reserve", "short; card: weights", "KV pages"):
        assert words in str(caught.value)


def test_a_stated_split_that_one_card_cannot_hold_names_that_card(spec: ModelSpec) -> None:
    pair = box((RTX_3090, 16), (SMALL_AND_SLOW, 16), ram_gib=128)
    with pytest.raises(DoesNotFitError) as caught:
        placed(pair, spec, STATED + "[cards]\nlayer_split = [4]\n")
    assert "on card 1 (NVIDIA Old 8G) with layers 4 to 47" in str(caught.value)
    assert "card 0" not in str(caught.value)


def test_the_cards_share_of_ram_is_what_none_of_them_holds(spec: ModelSpec) -> None:
    big = outline(read_catalogue().size("ud-q4-k-xl"))
    found = placed(TWO, big, STATED)
    away = sum(stage.all_expert_bytes - stage.expert_bytes for stage in found.stages)
    assert found.items[0].size_bytes == pytest.approx(away, rel=0.01)
    assert found.pinned_bytes > away


def test_no_more_cards_than_layers_are_chosen(spec: ModelSpec) -> None:
    short = dataclasses.replace(spec, trunk_layers=2, full_attention=(False, True), ngram=None)
    tensors = {n: t for n, t in spec.tensors.items() if not n.startswith("blk.") or n.split(".")[1] in ("0", "1", "2")}
    assert len(placed(FOUR, dataclasses.replace(short, tensors=tensors, has_draft=False), STATED).stages) <= 2


@pytest.mark.parametrize("split", [(24,), (12, 24, 36), ()])
def test_ranges(split: tuple[int, ...]) -> None:
    found = ranges(split, 48)
    assert [layer for layers in found for layer in layers] == list(range(48))
    assert len(found) == len(split) + 1


@pytest.mark.parametrize("name", ["24 GB card", "two 24 GB cards, one on x4", "four 24 GB cards, 64 GB RAM"])
def test_rows_and_steps_are_expected_to_cost_before_they_are_measured(name: str, spec: ModelSpec) -> None:
    """SPEC-09: the planner of drafts begins with what the bytes say, as shares of a window of one row."""
    machine = BOXES[name]
    found = draft_slopes(machine, spec, placed(machine, spec))
    assert 0.02 < found.row < 0.4
    assert 0.02 < found.step < 0.2
    assert 0 < found.more < found.step


def test_without_a_card_or_drafts_the_usual_is_expected(spec: ModelSpec) -> None:
    assert draft_slopes(TWO, spec, placed(TWO, spec, STATED + "draft_max = 0\n")) == USUAL
