"""Prices of parts against the model's description, recorded speeds, and what a change is said to cost."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from appliance.model.qwen4exp.device_footprint import slot_bytes
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.models.catalogue import read_catalogue
from appliance.models.outline import outline
from appliance.planning.plan import PlanView, difference, view, view_of
from appliance.planning.wish import Wish
from appliance.rig.machine_schema import BenchTable
from appliance.rig.rates import Rates
from appliance.rig.size import GIB, MIB
from appliance.speeds import card_speeds, load_of
from appliance.window_cost import Span
from tests.builders.machines import BOXES

BOX = BOXES["24 GB card"]
WISH = Wish(
    parallel=4,
    max_tokens=32768,
    kv="int8",
    ngram_home="ram",
    draft=True,
    reserve_bytes=700 * MIB,
)


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return outline(read_catalogue().size("iq3-s"))


def seen(spec: ModelSpec, wish: Wish = WISH) -> PlanView:
    return view(BOX, spec, BOX.cards.cards, wish)


def price_of_slot(spec: ModelSpec, *, tokens: int, kv: str, draft: bool) -> int:
    slot = slot_bytes(spec, page_tokens=64, kv_type=kv, draft=draft)
    return slot.fixed + tokens // 64 * slot.page


# Section 6 of the model's description, bytes a token: K and V of 12 layers x 2 heads x 256 x 2; of one draft layer;
# pooled indexer keys of 12 x 128 / 4 in two bytes each; int8 adds a float32 scale for every token and head.
KEYS_VALUES, DRAFT, POOLED = 12288, 1024, 384
SCALES, DRAFT_SCALES = 12 * 2 * 2 * 4, 2 * 2 * 4
RECURRENT = 108 * MIB


@pytest.mark.parametrize("tokens", [32768, 131072, 262144, 1048576], ids=["32K", "131K", "262K", "1M"])
@pytest.mark.parametrize(
    ("kv", "a_token"),
    [
        pytest.param("bf16", 2 * (KEYS_VALUES + DRAFT + POOLED), id="bf16"),
        pytest.param("int8", KEYS_VALUES + DRAFT + 2 * POOLED + SCALES + DRAFT_SCALES, id="int8"),
    ],
)
def test_the_price_of_a_slot(spec: ModelSpec, tokens: int, kv: str, a_token: int) -> None:
    price = price_of_slot(spec, tokens=tokens, kv=kv, draft=True)
    fixed = price - tokens * a_token
    # Recurrent states, and the histories of a few rows that rejected drafts need.
    assert RECURRENT <= fixed <= RECURRENT + 48 * MIB
    assert price - price_of_slot(spec, tokens=tokens, kv=kv, draft=False) == tokens * (
        DRAFT * (2 if kv == "bf16" else 1) + (DRAFT_SCALES if kv == "int8" else 0)
    )


def test_a_slot_at_the_trained_length_in_bf16(spec: ModelSpec) -> None:
    """The description's own example: 6.0 GiB of K and V, 0.19 of pooled keys, 0.5 of the drafter's K and V."""
    price = price_of_slot(spec, tokens=262144, kv="bf16", draft=True)
    assert price / GIB == pytest.approx(6.0 + 0.1875 + 0.5 + RECURRENT / GIB, rel=0.01)


def test_the_outline_has_the_published_bytes() -> None:
    for size in read_catalogue().sizes:
        model = outline(size)
        experts = sum(t.byte_count for n, t in model.tensors.items() if "_exps." in n and ".48." not in n)
        assert experts == pytest.approx(size.experts_bytes, rel=0.1)
        assert len([n for n in model.tensors if ".48." not in n]) == 1224
        assert len(model.tensors) == 1256
        assert model.tensors["per_layer_token_embd.weight"].byte_count == size.table_bytes


def test_what_a_window_moves(spec: ModelSpec) -> None:
    """The published inputs: 12.2 GFLOP a prompt token, 0.23 GB of state, 2.04 MB an expert."""
    load = load_of(spec, draft=True)
    assert load.prompt_flop == pytest.approx(12.2e9, rel=0.03)
    assert load.state_bytes == pytest.approx(0.23e9, rel=0.03)
    assert load.expert_bytes == pytest.approx(2.04e6, rel=0.1)
    assert load.dense_bytes == pytest.approx(4.2e9, rel=0.15)


def test_recorded_speeds_replace_estimates(spec: ModelSpec) -> None:
    guess = seen(spec)
    assert guess.placement is not None
    recorded = BenchTable(users_1=61.0, users_2=98.0, prompt=1800.0, hit_share=0.81)
    found = view_of(BOX, spec, guess.placement, bench=recorded)
    assert guess.source == "estimate from measured speeds"
    assert found.source == "measured, ranges are estimates"
    assert found.speed is not None
    assert guess.speed is not None
    assert found.speed.users[:2] == (Span(61.0, 61.0), Span(98.0, 98.0))
    assert found.speed.users[2:] == guess.speed.users[2:]
    assert (found.speed.prompt, found.speed.hits) == (Span(1800.0, 1800.0), Span(0.81, 0.81))


def test_without_measurements_the_vendors_figures_are_used_and_said(spec: ModelSpec) -> None:
    bare = dataclasses.replace(BOX, rates=Rates())
    assert view(bare, spec, bare.cards.cards, WISH).source == "estimate from advertised speeds"
    (card,) = bare.cards.cards
    assert card_speeds(bare, card).vram_gbps.value == pytest.approx(907, abs=1)
    unknown = dataclasses.replace(card, link=None, peak_gbps=None)
    assert card_speeds(bare, unknown).source == "assumed"


def test_a_change_is_told_in_one_line(spec: ModelSpec) -> None:
    """CFG-19"""
    before = seen(spec)
    line = difference(before, seen(spec, dataclasses.replace(WISH, parallel=8)))
    for words in ("GiB less cache", "hits ", " to ", "one user ", "slower", "four users "):
        assert words in line
    assert difference(before, before) == "no difference worth naming"
    back = difference(seen(spec, dataclasses.replace(WISH, parallel=8)), before)
    assert "more cache" in back
    assert "faster" in back
    refused = difference(before, seen(spec, dataclasses.replace(WISH, parallel=64, max_tokens=262144)))
    assert refused.startswith("cannot fit: 64 x 262144 tokens need")
    assert "on card 0 (NVIDIA GeForce RTX 4090)" in refused
    assert difference(seen(spec, dataclasses.replace(WISH, parallel=64, max_tokens=262144)), before) == "fits now"


def test_a_stated_context_is_kept_with_96_gb_and_refused_with_32(spec: ModelSpec) -> None:
    """CFG-19: the wish is the answer's wish; never shortened."""
    wish = dataclasses.replace(WISH, parallel=1, max_tokens=262144)
    large = dataclasses.replace(BOX, ram=dataclasses.replace(BOX.ram, total_bytes=96 * GIB, budget_bytes=94 * GIB))
    found = view(large, spec, large.cards.cards, wish).placement
    assert found is not None
    assert (found.parallel, found.max_tokens) == (1, 262144)
    small = dataclasses.replace(large, ram=dataclasses.replace(large.ram, total_bytes=32 * GIB, budget_bytes=30 * GIB))
    refusal = view(small, spec, small.cards.cards, wish).refusal
    for words in ("1 x 262144 tokens need", "this process may use 30 GiB", "short", "experts", "n-gram table"):
        assert words in refusal


def test_a_drafter_that_does_not_fit_names_the_way_out(spec: ModelSpec) -> None:
    """MEM-09: 300 MiB short; needed, free, and that it goes without drafts."""
    (card,) = BOX.cards.cards
    bare = dataclasses.replace(WISH, draft=False)
    # Downwards until it just fits without the drafter: what it takes with it is then short.
    sizes = (dataclasses.replace(card, free_bytes=mib * MIB) for mib in range(16_000, 1000, -100))
    fitting = list(itertools.takewhile(lambda one: view(BOX, spec, [one], bare).fits, sizes))
    tight = fitting[-1]
    refusal = view(BOX, spec, [tight], WISH).refusal
    for words in ("tokens need", "besides its reserve", "short", "draft_max = 0, which leaves the drafter out"):
        assert words in refusal
