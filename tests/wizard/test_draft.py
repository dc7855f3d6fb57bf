"""The draft: answers, the text they make, what `check` says of it, and what a change costs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from appliance.errors import ApplianceError, RigError, UsageError
from appliance.models.catalogue import read_catalogue
from appliance.models.outline import outline
from appliance.planning.bars import Part
from appliance.planning.measured import subject_of
from appliance.rig.load import load_rig, load_text
from appliance.rig.size import GIB, MIB
from setup_wizard.draft import Answer, Draft, Model, judged
from setup_wizard.fields import options, parse, question
from setup_wizard.headless import begin, read_answers, set_up_with
from setup_wizard.models import builtin, read_model
from setup_wizard.recommend import best, offers, recommended
from setup_wizard.words import bar, change, changes, explained, plan_lines
from tests.builders.machines import BOXES, RTX_4090, Kind, box, machine

HAND = '# ours\n[server]\nport = 9090 # the proxy expects it\ncors_origins = ["https://chat.example"]\n'


def draft(present: str | None = None, **options_: Any) -> Draft:
    return Draft(path=Path("/r/rig.toml"), present=present, machine=machine(**options_), model=builtin())


def large(name: str = "24 GB card", size: str = "ud-q4-k-xl") -> Draft:
    found = read_catalogue().size(size)
    model = Model(path="/m/x.gguf", spec=outline(found))
    return Draft(path=Path("/r/rig.toml"), present=None, machine=BOXES[name], model=model).serve(model)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        pytest.param("serving.parallel", "4", 4, id="number"),
        pytest.param("serving.parallel", "auto", "auto", id="word"),
        pytest.param("serving.parallel", "", None, id="nothing"),
        pytest.param("experts.cache", "14.5 GiB", "14.5 GiB", id="size"),
        pytest.param("server.allowed_hosts", '["a.lan"]', ["a.lan"], id="list"),
        pytest.param("model.name", "8080", "8080", id="text stays text"),
        pytest.param("serving.batch_mtp", "false", False, id="truth"),
        pytest.param("serving.parallel", "four", "four", id="nonsense is for the rig's rules"),
    ],
)
def test_what_is_typed(key: str, text: str, value: object) -> None:
    assert parse(key, text) == value


@pytest.mark.parametrize(
    ("key", "card_", "expected"),
    [
        pytest.param("context.kv", False, {"auto": True, "f32": True, "bf16": False, "int8": False}, id="CPU"),
        pytest.param("context.kv", True, {"auto": True, "f32": True, "bf16": True, "int8": True}, id="card"),
        pytest.param("serving.batch_mtp", True, {"true": True, "false": True}, id="truth"),
        pytest.param("serving.parallel", True, {}, id="no list of words"),
    ],
)
def test_what_this_version_cannot_do_is_shown_as_such(key: str, card_: bool, expected: dict[str, bool]) -> None:
    found = options(key, card=card_)
    assert {one.value: one.available for one in found} == expected
    assert all(("not available in this version" in one.label()) != one.available for one in found)


def test_help_is_the_schemas_sentence() -> None:
    assert "Conversations decoded together." in question("serving.parallel").help()


def test_only_answered_keys_change() -> None:
    """CFG-08"""
    found = draft(HAND).answer(Answer("context.max_tokens", 2048)).text()
    for line in HAND.splitlines():
        assert line in found
    assert load_text(found).rig.context.max_tokens == 2048


def test_an_answer_keeps_the_comment_beside_it_and_none_takes_the_key_out() -> None:
    """CFG-08"""
    base = draft(HAND)
    assert "port = 8000 # the proxy expects it" in base.answer(Answer("server.port", 8000)).text()
    gone = base.answer(Answer("server.cors_origins", None))
    assert "cors_origins" not in gone.text()
    assert gone.value("server.cors_origins") is None
    assert base.has("server.port")
    assert not base.has("server.host")
    assert "-port = 9090 # the proxy expects it" in changes(HAND, base.answer(Answer("server.port", 8000)).text())


def test_a_new_rig_has_its_tables_in_the_schemas_order() -> None:
    text = draft().answer(Answer("ngram.home", "ram"), Answer("experts.ram", "auto")).text()
    heads = [line for line in text.splitlines() if line.startswith("[")]
    assert heads == ["[model]", "[cards]", "[experts]", "[context]", "[ngram]", "[serving]", "[server]", "[machine]"]
    assert "  # TCP port." in explained(text)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param(Answer("server.port", 70000), "server.port: found 70000", id="out of bounds"),
        pytest.param(Answer("server.host", "0.0.0.0"), "there are no API keys", id="CTR-11 open without keys"),
        pytest.param(Answer("context.kv", "int8"), "not available in this version", id="not on the CPU"),
        pytest.param(Answer("cards.devices", [3]), "no card 3", id="no such card"),
        pytest.param(Answer("context.max_tokens", 262144), "trained for", id="longer than trained"),
    ],
)
def test_what_check_refuses_the_draft_refuses(answer: Answer, words: str) -> None:
    found = judged(draft().answer(answer))
    assert not found.accepted
    assert any(words in problem for problem in found.problems)
    assert any(line.startswith("REFUSED: ") and words in line for line in plan_lines(found))


@pytest.mark.parametrize("name", ["two 16 GB cards on x8", "two 24 GB cards, one on x4", "four 24 GB cards, 64 GB RAM"])
def test_several_cards_are_recommended_and_accepted(name: str) -> None:
    base = large(name)
    found = recommended(base)
    assert found.judged.accepted, found.judged.problems
    devices = next(answer.value for answer in found.answers if answer.key == "cards.devices")
    assert sorted(devices) == [card.uuid for card in BOXES[name].cards.cards]
    assert found.judged.placement is not None
    assert len(found.judged.placement.stages) == len(devices)
    assert found.judged.plan is not None
    assert found.judged.plan.bars  # the same placement as bars: there is one truth
    assert found.judged.plan.placement == found.judged.placement
    assert any(f"{len(devices)} cards against card" in reason for reason in found.reasons)


@pytest.mark.parametrize(
    ("gib", "used", "reason"),
    [
        pytest.param(79.6, 1, "card 1 (NVIDIA Slow 8G) left idle", id="80 GB that hold everything"),
        pytest.param(31.8, 2, "2 cards against card 0 alone: ", id="32 GB that gain by every expert elsewhere"),
    ],
)
def test_the_better_subset_is_recommended_and_who_names_both_gets_both(gib: float, used: int, reason: str) -> None:
    """SPLIT-06: a fast card beside 8 GB slow; the reason is among the recommendation's."""
    fast = Kind("NVIDIA Fast", gib, "12.0", 1792, 210, 5)
    slow = Kind("NVIDIA Slow 8G", 8, "8.6", 224, 20, 4)
    base = dataclasses.replace(large(size="iq3-s"), machine=box((fast, 16), (slow, 4), ram_gib=128))
    found = recommended(base)
    cards = base.machine.cards.cards
    assert len(next(answer.value for answer in found.answers if answer.key == "cards.devices")) == used
    assert any(reason in one for one in found.reasons)
    both = recommended(base.answer(Answer("cards.devices", [card.uuid for card in cards])))
    assert both.judged.accepted, both.judged.problems
    assert both.judged.placement is not None
    assert len(both.judged.placement.stages) == 2


def test_one_of_several_cards_is_planned_alone() -> None:
    base = large("two 24 GB cards, one on x4").answer(Answer("cards.devices", [1]))
    found = recommended(base)
    assert found.judged.placement is not None
    assert [stage.card.index for stage in found.judged.placement.stages] == [1]


def test_a_driver_that_is_too_old_is_refused() -> None:
    """CTR-04"""
    base = large()
    old = dataclasses.replace(base.machine.cards, driver="535.10", cuda="12.2")
    found = judged(dataclasses.replace(base, machine=dataclasses.replace(base.machine, cards=old)))
    assert any("535.10" in problem and "580" in problem for problem in found.problems)


@pytest.mark.parametrize("name", BOXES)
def test_what_is_recommended_is_accepted(name: str) -> None:
    """CFG-19: nothing it promises is refused at start, whatever the machine."""
    base = Draft(path=Path("/r/rig.toml"), present=None, machine=BOXES[name], model=builtin())
    found = recommended(base)
    assert found.judged.accepted, found.judged.problems


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("24 GB card", "ud-q4-k-xl", id="24 GB card"),
        pytest.param("48 GB card", "ud-q4-k-xl", id="48 GB card"),
        pytest.param("no card", None, id="no card"),
        pytest.param("32 GB limit on a 128 GB host", None, id="CFG-19 nothing fits in the limit"),
    ],
)
def test_of_the_catalogue_the_best_that_check_accepts_is_offered(name: str, expected: str | None) -> None:
    base = Draft(path=Path("/r/rig.toml"), present=None, machine=BOXES[name], model=builtin())
    offered = offers(base, read_catalogue(), "/m")
    chosen = best(offered)
    assert (None if chosen is None else chosen.size.id) == expected
    assert chosen is None or "tokens a second" in chosen.sentence()
    assert chosen is not None or any("short" in offer.sentence() for offer in offered)


def test_more_than_recommended_is_kept_with_its_price_or_refused_with_the_numbers() -> None:
    """CFG-19"""
    base = large()
    advice = recommended(base)
    now = judged(base.answer(*advice.answers, Answer("serving.parallel", 8)))
    assert now.accepted
    assert "less cache" in change(advice.judged, now)
    assert "slower" in change(advice.judged, now)
    assert now.placement is not None
    assert now.placement.parallel == 8
    small = dataclasses.replace(base, machine=box((RTX_4090, 16), ram_gib=32))
    refused = judged(small.answer(Answer("context.max_tokens", 262144)))
    assert not refused.accepted
    assert any("GiB short" in problem for problem in refused.problems)


def test_on_the_cpu_the_price_is_ram() -> None:
    base = draft()
    advice = recommended(base)
    now = judged(base.answer(Answer("serving.parallel", 2)))
    assert "conversations 8 to 2" in change(advice.judged, now)
    assert "less RAM" in change(advice.judged, now)
    assert any("not estimated" in line for line in plan_lines(now))


def recorded(base: Draft, **changes: str) -> Draft:
    """A draft over a rig that holds recorded speeds of itself."""
    first = judged(base)
    assert first.loaded is not None
    assert first.placement is not None
    subject = dataclasses.asdict(subject_of(first.loaded, base.machine, base.model.spec, first.placement))
    lines = [f'{name} = "{words}"' for name, words in (subject | changes).items()]
    bench = "\n".join(["[machine.bench]", "users_1 = 61.0", "users_8 = 210.0", "prompt = 1800.0", *lines])
    return dataclasses.replace(base, present=f"{first.text}\n{bench}\n")


@pytest.mark.parametrize("base", [draft(), large()], ids=["CPU", "card"])
def test_recorded_speeds_are_shown_until_something_changes(base: Draft) -> None:
    known = recorded(base)
    assert any("1: 61" in line for line in plan_lines(judged(known)))
    other = judged(known.answer(Answer("serving.draft_max", 2)))
    assert not any("1: 61" in line for line in plan_lines(other))
    assert any("the rig has changed since" in line for line in plan_lines(other))


def test_a_bar_has_a_letter_for_every_part_and_no_colour() -> None:
    parts = [Part("dense", GIB), Part("KV", MIB), Part("free", GIB)]
    assert bar(parts, 2 * GIB, width=10) == "[DDDDDK....]"


def test_a_model_that_cannot_be_read_is_a_problem_and_not_a_crash(tmp_path: Path) -> None:
    model = read_model("gone.gguf", folder=tmp_path)
    found = judged(dataclasses.replace(draft(), model=model))
    assert any("gone.gguf" in problem for problem in found.problems)


def test_answers_give_a_rig_and_leave_the_rest_to_the_recommendation(tmp_path: Path) -> None:
    """CFG-14, CFG-08"""
    rig, file = tmp_path / "rig.toml", tmp_path / "answers.toml"
    rig.write_text(HAND)
    file.write_text("[context]\nmax_tokens = 1024\n")
    set_up_with(rig, machine(), read_answers(file), reset=False, say=lambda line: None)
    loaded = load_rig(rig, environment={})
    assert loaded.rig.context.max_tokens == 1024
    assert loaded.rig.server.port == 9090
    assert "# the proxy expects it" in rig.read_text()


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        pytest.param("[serving]\nparalel = 2\n", RigError, "parallel", id="misspelt"),
        pytest.param("[machine]\ndriver = '1'\n", UsageError, "measured", id="measured"),
        pytest.param('[model]\npath = "gone.gguf"\n', ApplianceError, "gone.gguf", id="no such model"),
    ],
)
def test_answers_that_are_refused_write_nothing(tmp_path: Path, text: str, error: type[Exception], words: str) -> None:
    rig, file = tmp_path / "rig.toml", tmp_path / "answers.toml"
    file.write_text(text)
    with pytest.raises(error, match=words):
        set_up_with(rig, machine(), read_answers(file), reset=False, say=lambda line: None)
    assert not rig.exists()


def test_an_incomplete_set_is_not_pointed_at(tmp_path: Path) -> None:
    """CFG-20"""
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(b"GGUF")
    answers = (Answer("model.path", "m-00001-of-00002.gguf"),)
    with pytest.raises(ApplianceError, match="m-00002-of-00002"):
        set_up_with(tmp_path / "rig.toml", machine(), answers, reset=False, say=lambda line: None)
    assert not (tmp_path / "rig.toml").exists()


def test_a_rig_that_is_not_toml_is_left_alone() -> None:
    with pytest.raises(RigError, match="--reset"):
        begin(Path("/r/rig.toml"), machine(), "not [ TOML")
