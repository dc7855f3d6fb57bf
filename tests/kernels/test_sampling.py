"""The batched sampler: against the obvious one, against chi-square, alone and in company, at its filters' edges."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from kernels.sampling import Row, Rules, build, choose, log_probabilities
from kernels.sampling.noise import gumbel, noise_key
from kernels.sampling.order import largest
from kernels.sampling.reference import choose_reference, noise_reference

RULES: dict[str, Rules] = {
    "greedy": Rules(temperature=0),
    "plain": Rules(),
    "hot": Rules(temperature=2.5, seed=3),
    "cold": Rules(temperature=1e-9, top_p=0.9),
    "coldest": Rules(temperature=5e-324, top_p=0.9),
    "top-k-1": Rules(top_k=1),
    "top-k-2": Rules(top_k=2),
    "top-k-20-top-p": Rules(temperature=0.6, top_k=20, top_p=0.9, seed=-1),
    "top-k-all": Rules(top_k=10**9),
    "top-k-large": Rules(top_k=1100, top_p=0.99, temperature=1.5),
    "top-p-0": Rules(top_p=0.0),
    "top-p-narrow": Rules(top_p=0.3),
    "top-p-wide": Rules(top_p=0.999, temperature=3.0),
    "min-p": Rules(min_p=0.05, seed=2**80),
    "min-p-1": Rules(min_p=1.0),
    "min-p-tiny": Rules(min_p=1e-6, temperature=2.0),
    "all-filters": Rules(temperature=1.3, top_k=40, top_p=0.95, min_p=0.02),
    "penalties": Rules(top_k=30, presence_penalty=1.5, frequency_penalty=0.3, repetition_penalty=1.2),
    "negative-penalties": Rules(top_p=0.8, presence_penalty=-1.0, repetition_penalty=0.8),
    "bias": Rules(logit_bias=((3, 4.0), (5, -100.0)), top_p=0.9),
}


def random_logits(rows: int, vocabulary: int, *, seed: int = 0) -> torch.Tensor:
    return torch.randn((rows, vocabulary), generator=torch.Generator().manual_seed(seed)) * 3


def row_of(rules: Rules, position: int) -> Row:
    """A row with something to penalise and to forbid."""
    return Row(
        rules,
        position,
        generated=[(0, 1), (3, 2), (7, 5)],
        recent=(3, 9, 9),
        prompt_tokens=torch.tensor([1, 3, 4]),
        forbidden=(position % 5, 11),
    )


@pytest.mark.parametrize("vocabulary", [12, 131, 2048 + 32, 4096], ids=["tiny", "prime", "piles", "large"])
@pytest.mark.parametrize("name", RULES)
def test_equals_the_reference(name: str, vocabulary: int) -> None:
    logits = random_logits(7, vocabulary)
    rows = [row_of(RULES[name], position) for position in range(7)]
    found = choose(logits, build(rows, vocabulary=vocabulary))
    ids, probabilities = choose_reference(logits, rows)
    assert found.ids.tolist() == ids
    assert found.probabilities.tolist() == pytest.approx(probabilities, rel=1e-5)
    assert not found.bad.any()


@pytest.mark.parametrize("name", RULES)
def test_equal_logits_are_taken_by_the_lower_id(name: str) -> None:
    vocabulary = 4096
    logits = random_logits(5, vocabulary).round()
    rows = [row_of(RULES[name], position) for position in range(5)]
    assert choose(logits, build(rows, vocabulary=vocabulary)).ids.tolist() == choose_reference(logits, rows)[0]


def test_company_changes_nothing() -> None:
    """SAMP-01, SAMP-05: a row's token depends on its own rules, seed and position only."""
    vocabulary = 8192
    rows = [row_of(rules, 40 + place) for place, rules in enumerate(RULES.values())] * 2
    logits = random_logits(len(rows), vocabulary)
    together = choose(logits, build(rows, vocabulary=vocabulary))
    again = choose(logits, build(rows, vocabulary=vocabulary))
    alone = [choose(logits[n : n + 1], build([row], vocabulary=vocabulary)) for n, row in enumerate(rows)]
    assert together.ids.tolist() == again.ids.tolist() == [choice.ids.item() for choice in alone]
    assert torch.equal(together.probabilities, again.probabilities)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))
    shuffled = choose(logits[order], build([rows[n] for n in order.tolist()], vocabulary=vocabulary))
    assert torch.equal(shuffled.ids, together.ids[order])


def test_a_draft_is_penalised_as_the_same_token_once_committed() -> None:
    """SAMP-01: the row after two drafts equals, to the bit, the row after the same two tokens were generated."""
    rules = Rules(top_k=50, presence_penalty=0.7, frequency_penalty=0.1, repetition_penalty=1.3)
    drafted = Row(rules, 9, generated=[(5, 2), (6, 1)], recent=(5, 8))
    committed = Row(rules, 9, generated=[(5, 3), (6, 1), (8, 1)])
    for seed in range(20):
        logits = random_logits(1, 256, seed=seed)
        first, second = (choose(logits, build([row], vocabulary=256)) for row in (drafted, committed))
        assert torch.equal(first.ids, second.ids)
        assert torch.equal(first.probabilities, second.probabilities)


@pytest.mark.parametrize("name", ["plain", "hot", "top-k-20-top-p", "top-p-narrow", "min-p", "all-filters", "bias"])
def test_draws_follow_the_distribution(name: str) -> None:
    vocabulary, draws = 96, 20_000
    logits = random_logits(1, vocabulary).expand(draws, vocabulary)
    rules = RULES[name]
    ids = choose(logits, build([Row(rules, position) for position in range(draws)], vocabulary=vocabulary)).ids
    counts = torch.bincount(ids, minlength=vocabulary).double()
    expected = filtered(logits[0].double(), rules) * draws
    assert counts[expected == 0].sum() == 0
    # Bins of less than five expected draws are one bin, as chi-square wants.
    usual = expected >= 5
    pairs = list(zip(counts[usual].tolist(), expected[usual].tolist(), strict=True))
    rest = (counts[~usual].sum().item(), expected[~usual].sum().item())
    pairs += [rest] if rest[1] >= 5 else []
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in pairs)
    freedom = len(pairs) - 1
    assert statistic < freedom + 4 * math.sqrt(2 * freedom) + 4


def filtered(logits: torch.Tensor, rules: Rules) -> torch.Tensor:
    """The distribution that the rules leave, by sorting and masking."""
    logits = logits.clone()
    for token, value in rules.logit_bias:
        logits[token] += value
    weights = (logits / rules.temperature).softmax(0)
    order = weights.argsort(descending=True, stable=True)
    kept = weights[order].clone()
    if rules.top_k:
        kept[rules.top_k :] = 0
    kept[(kept.cumsum(0) - kept) >= rules.top_p * kept.sum()] = 0
    kept[kept < rules.min_p * kept[0]] = 0
    result = torch.zeros_like(weights)
    result[order] = kept / kept.sum()
    return result


@pytest.mark.parametrize("by", ["position", "seed", "token"])
def test_noise_is_uniform_and_uncorrelated(by: str) -> None:
    count = 1 << 15
    numbers = range(count)
    if by == "token":
        keys, tokens = torch.tensor([noise_key(0, 7)], dtype=torch.int32), torch.arange(count)[None]
    else:
        pairs = [noise_key(0, n) if by == "position" else noise_key(n, 0) for n in numbers]
        keys, tokens = torch.tensor(pairs, dtype=torch.int32), torch.tensor([[42]])
    uniform = (-(-gumbel(keys, tokens)).exp()).exp().flatten()
    buckets = torch.histc(uniform, bins=256, min=0, max=1)
    assert ((buckets - count / 256) ** 2 / (count / 256)).sum() < 255 + 4 * math.sqrt(2 * 255)
    for lag in (1, 2, 3, 64, 256):
        first, second = uniform[:-lag] - 0.5, uniform[lag:] - 0.5
        assert abs((first * second).mean().item() * 12) < 4 / math.sqrt(count)


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**80 + 5], ids=["zero", "negative", "large", "beyond-64-bits"])
def test_noise_equals_plain_integers(seed: int) -> None:
    tokens = torch.tensor([[0, 1, 8191, 248_319]])
    found = gumbel(torch.tensor([noise_key(seed, 262_143)], dtype=torch.int32), tokens)
    assert found[0].tolist() == pytest.approx(
        [noise_reference(seed, 262_143, t) for t in tokens[0].tolist()], rel=1e-12
    )


def test_two_close_distributions_mostly_give_the_same_token() -> None:
    """SAMP-02: drafts drawn with the noise of their positions are worth verifying under normal sampling."""
    rows = 400
    logits = random_logits(rows, 512)
    close = logits + 0.1 * random_logits(rows, 512, seed=1) / 3
    rules = Rules(temperature=0.8, top_k=20, top_p=0.95)
    params = build([Row(rules, position) for position in range(rows)], vocabulary=512)
    assert (choose(logits, params).ids == choose(close, params).ids).float().mean() > 0.9


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        (Rules(top_k=1), {2}),
        (Rules(top_p=0.0), {2}),
        (Rules(top_p=1e-12), {2}),
        (Rules(min_p=1.0), {2, 4}),
        (Rules(top_p=0.4), {2}),
        (Rules(top_p=0.41), {2, 4}),
        (Rules(top_k=3, top_p=0.99), {2, 4, 0}),
        (Rules(temperature=0), {2}),
        (Rules(top_k=5, temperature=1e-30), {2, 4}),
    ],
    ids=["top-k-1", "top-p-0", "top-p-tiny", "min-p-1", "edge", "past-edge", "top-k-tie", "greedy-tie", "cold-tie"],
)
def test_edges_of_the_filters(rules: Rules, allowed: set[int]) -> None:
    """SAMP-06: probabilities 0.08, 0.04, 0.4, 0.08, 0.4, two of each value equal."""
    logits = torch.tensor([0.08, 0.04, 0.4, 0.08, 0.4]).log().expand(300, 5)
    found = choose(logits, build([Row(rules, position) for position in range(300)], vocabulary=5))
    assert set(found.ids.tolist()) == allowed


@pytest.mark.parametrize(("top_p", "allowed"), [(0.5, {1}), (0.5000001, {1, 3}), (5e-324, {1})])
def test_a_nucleus_ends_where_its_mass_is_reached(top_p: float, allowed: set[int]) -> None:
    logits = torch.tensor([-1e9, 2.0, -1e9, 2.0]).expand(200, 4)
    found = choose(logits, build([Row(Rules(top_p=top_p), position) for position in range(200)], vocabulary=4))
    assert set(found.ids.tolist()) == allowed


@pytest.mark.parametrize("vocabulary", [300, 4096], ids=["topk", "piles"])
def test_a_tie_for_the_last_place_goes_to_the_lower_id(vocabulary: int) -> None:
    count = 9
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        order = torch.randperm(vocabulary, generator=generator)
        logits = torch.empty((1, vocabulary))
        logits[0, order] = torch.arange(vocabulary, 0, -1, dtype=torch.float32)
        first, second = sorted(order[count - 1 : count + 1].tolist())
        logits[0, [first, second]] = logits[0, first].clone()
        values, ids = largest(logits, count)
        assert ids[0].tolist() == [*order[: count - 1].tolist(), first]
        assert torch.equal(values, logits.gather(1, ids))


def test_forbidden_tokens_and_bias_hold_for_greedy_rows_too() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]]).repeat(3, 1)
    greedy = Rules(temperature=0)
    rows = [
        Row(greedy, 0, forbidden=(0, 1)),
        Row(replace(greedy, logit_bias=((3, 50.0), (3, 50.0))), 0),
        Row(replace(greedy, presence_penalty=2.0), 0, generated=[(0, 1)], recent=[1]),
    ]
    before = logits.clone()
    assert choose(logits, build(rows, vocabulary=4)).ids.tolist() == [2, 3, 0]
    assert torch.equal(logits, before)


@pytest.mark.parametrize("name", RULES)
def test_nonfinite_rows_are_named_and_others_untouched(name: str) -> None:
    """TOOL-10: a NaN or infinity in one row's logits is that row's alone."""
    logits = random_logits(6, 160)
    rows = [row_of(RULES[name], position) for position in range(6)]
    clean = choose(logits, build(rows, vocabulary=160))
    spoilt = logits.clone()
    spoilt[1, 7], spoilt[3, 159], spoilt[4] = math.nan, math.inf, -math.inf
    found = choose(spoilt, build(rows, vocabulary=160))
    assert found.bad.tolist() == [False, True, False, True, True, False]
    assert ((found.ids >= 0) & (found.ids < 160)).all()
    good = ~found.bad
    assert torch.equal(found.ids[good], clean.ids[good])


def test_a_row_with_every_token_forbidden_is_bad() -> None:
    rows = [Row(rules, 0, forbidden=range(8)) for rules in (Rules(temperature=0), Rules(), Rules(top_k=3))]
    assert choose(random_logits(3, 8), build(rows, vocabulary=8)).bad.all()


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_few_and_no_rows(rows: int) -> None:
    found = choose(random_logits(rows, 64), build([Row(Rules(top_k=5), n) for n in range(rows)], vocabulary=64))
    assert found.ids.shape == found.probabilities.shape == found.bad.shape == (rows,)


def test_greedy_confidence_is_the_probability_at_temperature_one() -> None:
    logits = random_logits(4, 100)
    rows = [Row(Rules(temperature=0), 0), Row(Rules(top_k=3), 0)] * 2
    found = choose(logits, build(rows, vocabulary=100), greedy_confidence=True)
    expected = logits.softmax(1).amax(1)
    assert torch.allclose(found.probabilities[::2], expected[::2])
    plain = choose(logits, build(rows, vocabulary=100))
    assert plain.probabilities[::2].tolist() == [1.0, 1.0]
    assert torch.equal(plain.probabilities[1::2], found.probabilities[1::2])


def test_log_probabilities() -> None:
    logits = random_logits(3, 4096).round()
    ids = torch.tensor([5, 0, 4095])
    found = log_probabilities(logits, ids, top_counts=[2, 0, 5])
    expected = logits.double().log_softmax(1)
    assert torch.allclose(found.chosen.double(), expected.gather(1, ids[:, None]).squeeze(1), atol=1e-5)
    values, order = expected.sort(dim=1, descending=True, stable=True)
    assert torch.equal(found.top_ids, order[:, :5])
    assert torch.allclose(found.top.double(), values[:, :5], atol=1e-5)
    assert log_probabilities(logits, ids, top_counts=[0, 0, 0]).top_ids.shape == (3, 0)
    assert log_probabilities(logits[:, :4], ids.clamp(max=3), top_counts=[9, 0, 0]).top.shape == (3, 4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1.0),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 1.1),
        ("top_p", -1.0),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("presence_penalty", math.nan),
    ],
)
def test_rules_out_of_range_are_refused(field: str, value: float) -> None:
    """SAMP-06."""
    with pytest.raises(ValueError, match=field if field != "presence_penalty" else "penalties"):
        Rules(**{field: value})


@pytest.mark.parametrize(
    "row",
    [
        Row(Rules(), 0, forbidden=(64,)),
        Row(Rules(logit_bias=((-1, 1.0),)), 0),
        Row(Rules(presence_penalty=1.0), 0, generated=[(99, 1)]),
        Row(Rules(repetition_penalty=1.5), 0, recent=(70,)),
    ],
    ids=["forbidden", "biased", "generated", "recent"],
)
def test_tokens_outside_the_vocabulary_are_refused(row: Row) -> None:
    with pytest.raises(ValueError, match="is outside the vocabulary of 64"):
        build([row], vocabulary=64)


def test_logits_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"float32 \[1, 64\], found torch.float32 \[2, 64\]"):
        choose(random_logits(2, 64), build([Row(Rules(), 0)], vocabulary=64))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
@pytest.mark.parametrize("vocabulary", [8192, 248_320])
def test_cuda_equals_cpu(vocabulary: int) -> None:
    rows = [row_of(rules, 40 + place) for place, rules in enumerate(RULES.values())]
    logits = random_logits(len(rows), vocabulary)
    on_cpu = choose(logits, build(rows, vocabulary=vocabulary))
    on_card = choose(logits.cuda(), build(rows, vocabulary=vocabulary, device="cuda"))
    assert on_card.ids.tolist() == on_cpu.ids.tolist()
    assert torch.allclose(on_card.probabilities.cpu(), on_cpu.probabilities, rtol=1e-5)
