"""The recommendation for ten machines, as a table that a person has reviewed."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

import pytest
import tomlkit

from appliance.models.catalogue import read_catalogue
from appliance.models.outline import outline
from appliance.placement import place
from appliance.planning.advise import Advice, Offer, best_offer, least, offers, recommend, usable_cards, wish_for
from appliance.planning.alternatives import alternatives, rig_values
from appliance.planning.plan import view
from appliance.rig.judge import choose_device, judge
from appliance.rig.load import load_text
from appliance.rig.machine import Machine
from appliance.rig.size import GIB
from tests.builders.machines import BOXES, RTX_4090, box


@dataclass(frozen=True)
class Row:
    """What is recommended: the size, how many conversations of what length, formats and homes, first layers.

    hits and one_user are the estimate's middle, in percent and tokens a second; sizes: how many of the five fit;
    order: of the cards, where it is not the bus's.
    """

    size: str | None
    parallel: int = 0
    tokens: int = 0
    kv: str = ""
    ngram: str = ""
    split: tuple[int, ...] = ()
    hits: int = 0
    one_user: int = 0
    sizes: int = 0
    order: tuple[int, ...] = ()


TABLE = {
    "12 GB card, 64 GB RAM": Row("iq3-s", 4, 32768, "int8", "mmap", (), 5, 26, 4),
    "24 GB card": Row("ud-q4-k-xl", 4, 16384, "int8", "ram", (), 70, 27, 5),
    "48 GB card": Row("ud-q4-k-xl", 4, 32768, "int8", "ram", (), 96, 122, 5),
    "two 16 GB cards on x8": Row("ud-q4-k-xl", 4, 32768, "int8", "ram", (25,), 80, 27, 5),
    "two 24 GB cards, one on x4": Row("ud-q4-k-xl", 4, 16384, "int8", "ram", (29,), 91, 52, 5),
    "four 24 GB cards, 64 GB RAM": Row("ud-q4-k-xl", 8, 65536, "int8", "ram", (14, 28, 43), 99, 104, 5),
    "no card": Row(None),
    "a card that is full": Row(None),
    "32 GB limit on a 128 GB host": Row(None),
    "spinning disk": Row("ud-q4-k-xl", 4, 16384, "int8", "ram", (), 70, 27, 5),
}


@functools.cache
def offers_for(name: str) -> tuple[Offer, ...]:
    return offers(BOXES[name], read_catalogue())


@functools.cache
def advice_for(name: str) -> Advice:
    return best_offer(BOXES[name], offers_for(name))


def test_the_table_is_of_all_machines() -> None:
    assert TABLE.keys() == BOXES.keys()


@pytest.mark.parametrize("name", TABLE)
def test_recommended(name: str) -> None:
    found, row = advice_for(name), TABLE[name]
    assert (found.size.id if found.size else None) == row.size
    assert found.reasons
    if found.wish is None or found.plan is None or found.plan.placement is None or found.plan.speed is None:
        assert row == Row(None)
        return
    wish, speed = found.wish, found.plan.speed
    assert (wish.parallel, wish.max_tokens, wish.kv, wish.ngram_home) == (row.parallel, row.tokens, row.kv, row.ngram)
    assert found.plan.placement.layer_split == pytest.approx(row.split, abs=1)
    order = tuple(card.index for card in found.cards)
    assert order == (row.order or tuple(range(len(order))))
    assert speed.hits.middle * 100 == pytest.approx(row.hits, abs=2)
    assert speed.users[0].middle == pytest.approx(row.one_user, rel=0.05)
    assert found.plan.source == "estimate from measured speeds"
    assert sum(offer.advice is not None for offer in offers_for(name)) == row.sizes


@pytest.mark.parametrize("name", TABLE)
def test_every_byte_is_accounted_for(name: str) -> None:
    plan = advice_for(name).plan
    if plan is None or plan.placement is None:
        return
    for bar in plan.bars:
        assert sum(part.size_bytes for part in bar.parts) == bar.card.vram_bytes
        assert min(part.size_bytes for part in bar.parts) >= 0
        assert bar.size("reserve") == 700 * 1024**2
        assert {part.name for part in bar.parts} >= {"dense", "cache", "slots", "KV", "buffers", "reserve"}
    assert plan.placement.fits
    assert plan.bars[0].layers[0] == 0
    assert plan.bars[-1].layers[1] == 48


@pytest.mark.parametrize("name", TABLE)
def test_check_accepts_the_rig(name: str) -> None:
    """CFG-10: the cards stand in it by UUID. What is promised is what a start makes, to the byte."""
    found, machine = advice_for(name), BOXES[name]
    loaded = load_text(tomlkit.dumps(rig_values(found, machine, "/models/m.gguf")))
    spec = outline(found.size) if found.size else None
    assert judge(loaded, machine, spec) == []
    if found.plan is None or spec is None:
        if name != "12 GB card, 64 GB RAM":  # a card that is too small for the models runs the built-in one
            assert choose_device(loaded, machine).name == "cpu" or name == "32 GB limit on a 128 GB host"
        return
    assert loaded.rig.cards.devices == tuple(card.uuid for card in found.cards)
    placed = place(machine, spec, loaded.rig, device=choose_device(loaded, machine))
    assert placed == found.plan.placement


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("no card", "the NVIDIA driver does not answer", id="CTR-03 no card"),
        pytest.param("a card that is full", "process 4242 python3 holds the rest", id="MEM-04 a full card"),
        pytest.param(
            "32 GB limit on a 128 GB host", "limit in /sys/fs/cgroup/memory.max", id="MEM-01 the limit counts"
        ),
    ],
)
def test_what_cannot_fit_is_refused_with_the_numbers(name: str, words: str) -> None:
    for offer in offers_for(name):
        assert offer.advice is None
        assert words in offer.refusal
    if name.startswith("32"):
        refusal = offers_for(name)[0].refusal
        for part in ("this process may use 32 GiB", "short", "experts", "buffers", "runtime", "headroom"):
            assert part in refusal


def test_a_disk_that_is_no_use_for_the_table_refuses_it() -> None:
    """CFG-17: the table fits in no RAM here, and the disk turns."""
    small = box((RTX_4090, 16), ram_gib=64, rotational=True, rows_per_s=160)
    spec = outline(read_catalogue().size("iq3-s"))
    assert recommend(small, spec) is None
    assert "not usable here" in least(small, spec).refusal
    large = BOXES["spinning disk"]
    found = recommend(large, spec)
    assert found is not None
    assert found.wish is not None
    assert found.wish.ngram_home == "ram"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"unified": True}, "the machine's RAM", id="CFG-12 unified memory is not counted twice"),
        pytest.param({"vram_bytes": None, "free_bytes": None}, "nobody says how much", id="CFG-12 unknown memory"),
        pytest.param({"capability": "7.0"}, "compute capability is 7.0", id="too old for the kernels"),
    ],
)
def test_cards_that_do_not_help_are_left_out_and_said(change: dict[str, object], reason: str) -> None:
    machine = BOXES["24 GB card"]
    (card,) = machine.cards.cards
    changed = dataclasses.replace(
        machine,
        cards=dataclasses.replace(machine.cards, cards=(dataclasses.replace(card, **change),)),  # type: ignore[arg-type]
    )
    kept, left = usable_cards(changed)
    assert kept == ()
    assert reason in left[0]


def test_each_alternative_says_what_it_costs() -> None:
    """CFG-19: what is slower is kept and told, what cannot fit is refused with the numbers."""
    found = advice_for("24 GB card")
    assert found.size is not None
    others = {one.title: one for one in alternatives(BOXES["24 GB card"], outline(found.size), found)}
    assert "GiB less cache" in others["parallel 8"].says
    assert "one user" in others["parallel 8"].says
    assert "slower" in others["parallel 8"].says
    assert "faster" in others["parallel 1"].says
    assert "short; " in others["context 262,144"].says
    assert "the largest that fits: max_tokens = " in others["context 262,144"].says
    assert "short; " in others["n-gram table vram"].says
    assert not others["n-gram table vram"].plan.fits
    for one in others.values():
        assert one.wish.parallel == (int(one.title.split()[1]) if one.title.startswith("parallel") else 4)
    two = advice_for("two 24 GB cards, one on x4")
    assert two.size is not None
    machine: Machine = BOXES["two 24 GB cards, one on x4"]
    assert (
        "slower" in next(one for one in alternatives(machine, outline(two.size), two) if one.title == "one card").says
    )


def test_a_card_on_a_slow_link_holds_fewer_layers() -> None:
    plan = advice_for("two 24 GB cards, one on x4").plan
    assert plan is not None
    first, second = (bar.layers[1] - bar.layers[0] for bar in plan.bars)
    assert first > second


def test_vram_that_was_taken_shrinks_the_cache() -> None:
    """MEM-04: taken between set-up and start; the plan is made from what is free now."""
    spec = outline(read_catalogue().size("iq3-s"))
    boxes = [box((RTX_4090, 16), ram_gib=128, free_gib=gib) for gib in (23.4, 15.4)]
    wish = wish_for(spec, parallel=2, tokens=16384)
    found = [view(one, spec, one.cards.cards, wish).placement for one in boxes]
    taken = [one.stages[0].budget_bytes for one in found if one is not None]
    assert taken[0] - taken[1] == pytest.approx(8 * GIB, rel=0.001)
    caches = [one.stages[0].expert_bytes for one in found if one is not None]
    assert caches[0] - caches[1] > 7 * GIB  # prompts take some less on a card with less
