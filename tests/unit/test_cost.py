"""The speed formulas against the worked limits and measurements they come from."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from appliance.cost import estimate, limit, prompt_limit
from appliance.window_cost import (
    LEAST_WINDOW_S,
    Lane,
    Load,
    Way,
    distinct_experts,
    handoffs_s,
    hit_share,
    tokens_a_window,
)

WAY = Way(draft_max=3, batch_mtp=True, groups=1, prompt_chunk=8192)
SIZES = {"IQ3_S": (4.2e9, 2.04e6), "UD-IQ4_XS": (4.8e9, 2.42e6), "UD-Q4_K_XL": (4.9e9, 3.13e6)}


def load(size: str = "IQ3_S") -> Load:
    dense, expert = SIZES[size]
    return Load(
        layers=48,
        experts=512,
        experts_used=10,
        expert_bytes=expert,
        dense_bytes=dense,
        state_bytes=0.23e9,
        prompt_flop=12.2e9,
        draft=True,
        draft_step_bytes=0.3e9,
        row_bytes=51200,
    )


def lane(vram: float, link: float, *, tflops: float = 100.0, share: float = 1.0, cache: float = 0.0) -> Lane:
    return Lane(
        share=share,
        dense_share=share,
        state_share=share,
        vram_gbps=vram,
        link_gbps=link,
        tflops=tflops,
        cache_bytes=cache,
    )


@pytest.mark.parametrize(
    ("card", "size", "hits", "plain", "drafted"),
    [
        pytest.param(lane(1008, 25), "IQ3_S", 0.87, (97, 134, 173, 214), (118, 152, 190, 230), id="4090 IQ3_S"),
        pytest.param(lane(1008, 25), "UD-IQ4_XS", 0.83, (72, 97, 123, 150), (85, 108, 133, 159), id="4090 IQ4_XS"),
        pytest.param(lane(1008, 25), "UD-Q4_K_XL", 0.77, (50, 64, 78, 93), (56, 69, 82, 97), id="4090 Q4_K_XL"),
        pytest.param(lane(936, 25), "IQ3_S", 0.98, (153, 246, 365, 500), (233, 340, 466, 600), id="2x3090 one window"),
        pytest.param(lane(1344, 50), "IQ3_S", 0.992, (239, 400, 618, 876), (390, 592, 838, 1112), id="PRO 5000"),
        pytest.param(lane(672, 50), "IQ3_S", 0.60, (65, 91, 118, 146), (80, 103, 129, 156), id="5070"),
    ],
)
def test_worked_limits(card: Lane, size: str, hits: float, plain: tuple[int, ...], drafted: tuple[int, ...]) -> None:
    """Without overlap and over PCIe only, at 1, 2, 4, 8 users; to the rounding of the published table."""
    model = load(size)
    for users, none, best in zip((1, 2, 4, 8), plain, drafted, strict=True):
        rates = [limit(model, [card], WAY, users=users, drafts=drafts, hits=[hits]) for drafts in range(4)]
        assert rates[0] == pytest.approx(none, rel=0.015)
        assert max(rates) == pytest.approx(best, rel=0.015)


def test_pipelined_groups() -> None:
    """Two equal stages with two groups: twice the rate of half the users; 331 and 536 at two users."""
    halves = [lane(936, 50, share=0.5), lane(936, 50, share=0.5)]
    two = dataclasses.replace(WAY, groups=2)
    model = load()
    one_group = [limit(model, halves, WAY, users=1, drafts=k, hits=[0.98, 0.98]) for k in (0, 3)]
    both = [limit(model, halves, two, users=2, drafts=k, hits=[0.98, 0.98]) for k in (0, 3)]
    assert both[0] == pytest.approx(2 * one_group[0], rel=0.02)
    assert both[1] <= 2 * one_group[1]
    uneven = [lane(936, 50, share=0.8), lane(936, 50, share=0.2)]
    assert limit(model, uneven, two, users=2, drafts=0, hits=[0.98, 0.98]) < both[0]


@pytest.mark.parametrize(
    ("cached", "least", "most"),
    [
        pytest.param(0.12, 0.56, 0.62, id="12%"),
        pytest.param(0.32, 0.83, 0.90, id="32%"),
        pytest.param(0.52, 0.98, 0.99, id="52%"),
        pytest.param(0.0, 0.0, 0.0, id="nothing"),
        pytest.param(1.0, 1.0, 1.0, id="everything"),
        pytest.param(1.7, 1.0, 1.0, id="more than everything"),
    ],
)
def test_hits(cached: float, least: float, most: float) -> None:
    span = hit_share(cached)
    assert (span.least, span.most) == pytest.approx((least, most))


def test_hits_never_fall_with_a_larger_cache() -> None:
    spans = [hit_share(share / 200) for share in range(201)]
    assert all(a.least <= b.least and a.most <= b.most and a.least <= a.most for a, b in itertools.pairwise(spans))


def test_tokens_and_experts() -> None:
    assert tokens_a_window(0) == 1
    assert tokens_a_window(2, 0.7) == pytest.approx(2.19)
    assert tokens_a_window(3, 1.0) == 4
    assert distinct_experts(load(), users=1, drafts=0) == pytest.approx(10)
    assert distinct_experts(load(), users=4, drafts=0) == pytest.approx(10 * 4**0.8)
    assert distinct_experts(load(), users=64, drafts=4) <= 512


def test_prompts() -> None:
    """The published limits of chunk 8K: 6.0K tokens a second over the link, 13.6K by products."""
    cached = load().experts_bytes - 34e9
    card = lane(1008, 25, tflops=165, cache=cached)
    assert prompt_limit(load(), [card], WAY) == pytest.approx(6020, rel=0.01)
    larger = dataclasses.replace(WAY, prompt_chunk=32768)
    assert prompt_limit(load(), [card], larger) == pytest.approx(13500, rel=0.01)


def test_prompts_follow_each_other_through_the_cards() -> None:
    """The slowest card sets the pace after the first chunk; one chunk alone gains nothing from a second card."""
    whole = load().experts_bytes
    one = lane(1008, 25, tflops=100, cache=whole)
    halves = [lane(1008, 25, tflops=100, share=0.5, cache=whole / 2)] * 2
    alone = prompt_limit(load(), [one], WAY)
    assert prompt_limit(load(), halves, WAY) == pytest.approx(alone, rel=0.001)
    short = dataclasses.replace(WAY, prompt_chunk=1024)
    assert prompt_limit(load(), halves, short) == pytest.approx(8 / 4.5 * alone, rel=0.001)


def test_a_hand_off_takes_its_rows_over_the_slower_link() -> None:
    cards = [lane(900, 25), lane(900, 5), lane(900, 25)]
    few, many = handoffs_s(load(), cards, rows=1), handoffs_s(load(), cards, rows=101)
    assert many[0] - few[0] == pytest.approx(2 * 100 * 51200 / 5e9)
    assert many[2] == few[2] < few[0]
    straight = dataclasses.replace(cards[0], direct=True)
    assert handoffs_s(load(), [straight, *cards[1:]], rows=101)[0] < many[0]


def test_an_estimate_is_in_the_published_measurements_range() -> None:
    """RTX 3090 24 GB with IQ3_S: 88 to 114 with one user, prompts 2.0K to 2.6K."""
    speed = estimate(load(), [lane(936, 25, tflops=71, cache=16e9)], WAY)
    assert speed.hits.least == pytest.approx(0.83, abs=0.02)
    assert speed.users[0].least < 88
    assert speed.prompt.least < 2034 < 2607 < speed.prompt.most * 1.01
    assert list(speed.users) == sorted(speed.users, key=lambda span: span.least)


@pytest.mark.parametrize("cached", [0.1, 0.3, 0.6, 1.0])
@pytest.mark.parametrize("groups", [1, 2])
def test_more_users_are_never_slower_together(cached: float, groups: int) -> None:
    model = load("UD-Q4_K_XL")
    lanes = [lane(900, 20, share=0.5, cache=model.experts_bytes * cached / 2) for _ in range(2)]
    speed = estimate(model, lanes, dataclasses.replace(WAY, groups=groups))
    totals = [span.least for span in speed.users]
    assert totals == sorted(totals)
    assert all(0 <= drafts <= 3 for drafts in speed.drafts)


def test_drafts_only_where_the_rig_allows_them() -> None:
    alone = dataclasses.replace(WAY, batch_mtp=False)
    card = lane(4800, 50, tflops=989, cache=60e9)
    assert [drafts > 0 for drafts in estimate(load(), [card], alone).drafts] == [True, False, False, False]
    none = dataclasses.replace(load(), draft=False)
    assert estimate(none, [card], WAY).drafts == (0, 0, 0, 0)


def test_launches_bound_a_quick_card() -> None:
    fast = lane(1e6, 1e6, tflops=1e6, cache=60e9)
    assert limit(load(), [fast], WAY, users=1, drafts=0, hits=[1.0]) == pytest.approx(1 / LEAST_WINDOW_S)
