"""Draws on the device equal the host's: every rule, ties, penalties of earlier drafts, company; SAMP-05."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.rows.tables import DrawRows
from kernels.sampling import Row, Rules, build, choose, log_probabilities
from kernels.sampling.decode import Drawn, DrawScratch, TopLogprobs, draw, top_logprobs
from kernels.sampling.noise import first_mix, noise_key, noise_keys
from kernels.sampling.slots import FREE, GREEDY, TOP, WIDE, SlotRules, kind_of

VOCABULARY, TILE = 150, 16

RULES: dict[str, Rules] = {
    "greedy": Rules(temperature=0),
    "free": Rules(temperature=0.7, seed=3),
    "hot": Rules(temperature=2.5, seed=-5),
    "top-k-2": Rules(top_k=2),
    "top-k-20-top-p": Rules(temperature=0.6, top_k=20, top_p=0.9, seed=-1),
    "top-k-64": Rules(temperature=1.5, top_k=64, seed=2**80),
    "all-filters": Rules(temperature=1.3, top_k=9, top_p=0.95, min_p=0.02),
    "min-p-1": Rules(top_k=40, min_p=1.0),
    "top-p-0": Rules(top_p=0.0),
    "coldest": Rules(temperature=5e-324, top_k=5),
    "penalties": Rules(top_k=30, presence_penalty=1.5, frequency_penalty=0.3, repetition_penalty=1.2),
    "greedy-penalties": Rules(temperature=0, presence_penalty=2.0, frequency_penalty=0.7, repetition_penalty=1.3),
    "negative-penalties": Rules(top_k=50, presence_penalty=-1.0, repetition_penalty=0.8),
    "bias": Rules(top_k=12, logit_bias=((3, 4.0), (5, -100.0), (3, 1.5))),
    "free-bias": Rules(logit_bias=((7, 6.0),), seed=9),
    "nucleus": Rules(top_p=0.8, temperature=1.2, seed=4),
    "min-p": Rules(min_p=0.05, seed=6),
    "top-k-large": Rules(top_k=100, top_p=0.97, temperature=2.0),
}


def logits_of(rows: int, *, seed: int = 0) -> torch.Tensor:
    return torch.randn((rows, VOCABULARY), generator=torch.Generator().manual_seed(seed)) * 3


def rows_of(wanted: list[Row], slots: list[int], device: str, *, bucket: int) -> DrawRows:
    """Rows with their drafts laid out one after the other; the bucket's rest is not wanted."""
    recent = [token for row in wanted for token in row.recent] or [0]
    first = [sum(len(row.recent) for row in wanted[:i]) for i in range(len(wanted))]
    rest = bucket - len(wanted)

    def whole(values: list[int]) -> torch.Tensor:
        return torch.tensor(values + [0] * rest, dtype=torch.int32, device=device)

    return DrawRows(
        slot=whole(slots),
        position=whole([row.position for row in wanted]),
        wanted=whole([1] * len(wanted)),
        recent_tokens=torch.tensor(recent, dtype=torch.int32, device=device),
        recent_first=whole(first),
        recent_count=whole([len(row.recent) for row in wanted]),
    )


def row_of(rules: Rules, position: int) -> Row:
    """A row with something to penalise and to forbid."""
    return Row(
        rules,
        position,
        generated=[(0, 1), (3, 2), (7, 5)],
        recent=(3, 9, 9)[: position % 4],
        prompt_tokens=torch.tensor([1, 3, 4]),
        forbidden=(2, 11) if position < 6 else (),
    )


def open_slot(table: SlotRules, slot: int, rules: Rules) -> int:
    return table.open(
        slot, rules, stops=(2, 11), first_stop=6, prompt_tokens=[1, 3, 4, 3], generated=[(0, 1), (3, 2), (7, 5)]
    )


def drawn_on(
    device: str,
    logits: torch.Tensor,
    rows: DrawRows,
    table: SlotRules,
    *,
    tile: int = TILE,
    wide: bool = False,
    scratch: DrawScratch | None = None,
    confidence: bool = False,
) -> Drawn:
    bucket = rows.slot.shape[0]
    padded = torch.full((bucket, logits.shape[1]), float("nan"), device=device)
    padded[: logits.shape[0]] = logits.to(device)
    room = scratch or DrawScratch.empty(rows=bucket, vocabulary=logits.shape[1], device=device, tile=tile)
    for tensor in (room.work, room.list_value, room.best, room.tiles_float, room.tiles_double):
        tensor.fill_(float("nan"))
    out = Drawn.empty(rows=bucket, device=device)
    draw(padded, rows, table, scratch=room, out=out, wide=wide, confidence=confidence)
    assert (room.tickets == 0).all()
    assert (room.list_count == 0).all()
    return out


@pytest.mark.parametrize("name", RULES)
def test_equals_the_hosts_sampler(device: str, name: str) -> None:
    rules = RULES[name]
    table = SlotRules.empty(slots=2, vocabulary=VOCABULARY, device=device)
    kind = open_slot(table, 1, rules)
    wanted = [row_of(rules, position) for position in range(3, 8)]
    logits = logits_of(len(wanted))
    logits[1, 20:60] = logits[1].max() - 1
    host = choose(logits, build(wanted, vocabulary=VOCABULARY))
    rows = rows_of(wanted, [1] * len(wanted), device, bucket=len(wanted) + 1)
    out = drawn_on(device, logits, rows, table, wide=kind == WIDE)
    assert out.ids[:-1].tolist() == host.ids.tolist()
    torch.testing.assert_close(out.probabilities[:-1].cpu(), host.probabilities, rtol=1e-5, atol=1e-7)
    assert not out.bad.any()
    assert (out.ids[-1], out.probabilities[-1]) == (0, 0)


def test_rules_of_all_kinds_in_one_window_alone_and_again(device: str) -> None:
    """Company, bucket, tile and repetition change no token and no bit of a probability."""
    names = ("greedy", "free", "top-k-20-top-p", "penalties")
    table = SlotRules.empty(slots=len(names), vocabulary=VOCABULARY, device=device)
    wanted = [row_of(RULES[name], 8 + i) for i, name in enumerate(names)]
    for slot, name in enumerate(names):
        open_slot(table, slot, RULES[name])
    logits = logits_of(len(names), seed=3)
    scratch = DrawScratch.empty(rows=6, vocabulary=VOCABULARY, device=device, tile=TILE)
    rows = rows_of(wanted, [0, 1, 2, 3], device, bucket=6)
    together = drawn_on(device, logits, rows, table, scratch=scratch)
    again = drawn_on(device, logits, rows, table, scratch=scratch)
    coarse = drawn_on(device, logits, rows, table, tile=64)
    for i, row in enumerate(wanted):
        alone = drawn_on(device, logits[i : i + 1], rows_of([row], [i], device, bucket=1), table)
        assert alone.ids[0] == together.ids[i] == again.ids[i] == coarse.ids[i]
        assert alone.probabilities[0] == together.probabilities[i] == again.probabilities[i]
    assert together.ids[:4].tolist() == choose(logits, build(wanted, vocabulary=VOCABULARY)).ids.tolist()


def test_equal_logits_go_to_the_lower_id_even_when_no_list_holds_them(device: str) -> None:
    """More equal logits than candidates are kept go through the slow path."""
    vocabulary = 1500
    logits = torch.full((2, vocabulary), 2.0)
    logits[:, 700] = 2.5
    logits[1, 3] = 1.0
    rules = Rules(top_k=5, seed=1)
    table = SlotRules.empty(slots=1, vocabulary=vocabulary, device=device)
    table.open(0, rules)
    wanted = [Row(rules, 4), Row(rules, 5)]
    out = drawn_on(device, logits, rows_of(wanted, [0, 0], device, bucket=2), table, tile=256)
    assert out.ids.tolist() == choose(logits, build(wanted, vocabulary=vocabulary)).ids.tolist()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_a_row_that_is_not_finite_is_named_and_no_other(device: str, value: float) -> None:
    """SAMP-05: the flag is the row's own; ids stay inside the vocabulary."""
    rules = Rules(top_k=5)
    table = SlotRules.empty(slots=1, vocabulary=VOCABULARY, device=device)
    table.open(0, rules)
    logits = logits_of(3)
    logits[1, 77] = value
    rows = rows_of([Row(rules, i) for i in range(3)], [0] * 3, device, bucket=3)
    out = drawn_on(device, logits, rows, table)
    assert out.bad.tolist() == [0, 1, 0]
    assert ((out.ids >= 0) & (out.ids < VOCABULARY)).all()


def test_top_logprobs_are_of_the_models_own_logits(device: str) -> None:
    rules = Rules(temperature=0, logit_bias=((9, 50.0),))
    table = SlotRules.empty(slots=1, vocabulary=VOCABULARY, device=device)
    table.open(0, rules)
    logits = logits_of(3)
    logits[2, 40:80] = 1.25 * logits[2].max()
    scratch = DrawScratch.empty(rows=3, vocabulary=VOCABULARY, device=device, tile=TILE)
    rows = rows_of([Row(rules, i) for i in range(3)], [0] * 3, device, bucket=3)
    out = drawn_on(device, logits, rows, table, scratch=scratch)
    assert out.ids.tolist() == [9, 9, 9]
    for count in (1, 20):
        top = TopLogprobs.empty(rows=3, count=count, device=device)
        top_logprobs(logits.to(device), rows, table, drawn=out, scratch=scratch, out=top)
        host = log_probabilities(logits, out.ids.cpu().long(), top_counts=[count] * 3)
        assert top.tokens.tolist() == host.top_ids.tolist()
        torch.testing.assert_close(top.values.cpu(), host.top, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(top.chosen.cpu(), host.chosen, rtol=1e-5, atol=1e-5)
    assert out.ids.tolist() == [9, 9, 9]


def test_confidence_of_greedy_rows(device: str) -> None:
    rules = Rules(temperature=0)
    table = SlotRules.empty(slots=1, vocabulary=VOCABULARY, device=device)
    table.open(0, rules)
    logits = logits_of(2)
    rows = rows_of([Row(rules, 0), Row(rules, 1)], [0, 0], device, bucket=2)
    out = drawn_on(device, logits, rows, table, confidence=True)
    torch.testing.assert_close(out.probabilities.cpu(), torch.softmax(logits, 1).amax(1), rtol=1e-5, atol=0)


def test_noise_keys_of_many_rows() -> None:
    seeds, positions = (0, -1, 2**63, 2**80 + 7, 12345), (0, 1, 262_143, 5, 1 << 30)
    first = torch.tensor([first_mix(seed) for seed in seeds])
    keys = noise_keys(first, torch.tensor(positions, dtype=torch.int32))
    assert [tuple(key) for key in keys.tolist()] == [
        noise_key(seed, position) for seed, position in zip(seeds, positions, strict=True)
    ]


def test_kinds_and_refusals(device: str) -> None:
    kinds = {"greedy": GREEDY, "free": FREE, "top-k-64": TOP, "nucleus": WIDE, "top-k-large": WIDE, "top-p-0": GREEDY}
    assert {name: kind_of(RULES[name], VOCABULARY) for name in kinds} == kinds
    assert kind_of(replace(RULES["free"], top_k=VOCABULARY), VOCABULARY) == FREE
    table = SlotRules.empty(slots=1, vocabulary=VOCABULARY, device=device)
    with pytest.raises(ValueError, match="the vocabulary has 150"):
        table.open(0, Rules(logit_bias=((150, 1.0),)))
    with pytest.raises(ValueError, match="at most 16"):
        table.open(0, Rules(), stops=range(17))
