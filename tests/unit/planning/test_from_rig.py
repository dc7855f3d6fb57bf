"""A rig as it stands becomes a plan: the placement that a start would make, with its speeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
import tomlkit

from appliance.model.qwen4exp.spec import ModelSpec
from appliance.models.catalogue import read_catalogue
from appliance.models.outline import outline
from appliance.planning.advise import recommend
from appliance.planning.alternatives import rig_values
from appliance.planning.from_rig import plan_rig
from appliance.planning.measured import subject_of
from appliance.planning.plan import difference
from appliance.rig.load import LoadedRig, load_text
from appliance.rig.size import GIB
from tests.builders.machines import BOXES

TWO = BOXES["two 24 GB cards, one on x4"]


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return outline(read_catalogue().size("iq3-s"))


def rig(text: str) -> LoadedRig:
    return load_text(f'schema = 1\n[model]\npath = "/m.gguf"\n{text}\n')


def test_the_recommended_rig_is_its_own_plan(spec: ModelSpec) -> None:
    advice = recommend(TWO, spec)
    assert advice is not None
    assert advice.plan is not None
    loaded = load_text(tomlkit.dumps(rig_values(advice, TWO, "/m.gguf")))
    found = plan_rig(loaded, TWO, spec)
    assert found.bars == advice.plan.bars
    assert found.speed == advice.plan.speed


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        pytest.param("[context]\nmax_tokens = 262144", "max_tokens", 262144, id="CFG-19 context is kept"),
        pytest.param("[serving]\nparallel = 7", "parallel", 7, id="conversations"),
        pytest.param('[context]\nkv = "bf16"', "kv_type", "bf16", id="number format"),
        pytest.param("[context]\nmax_tokens = 8192", "kv_type", "bf16", id="automatic format follows the context"),
        pytest.param("[serving]\ndraft_max = 0", "draft_max", 0, id="no drafts"),
        pytest.param("[cards]\nlayer_split = [30]", "layer_split", (30,), id="split"),
        pytest.param('[ngram]\nhome = "ram"', "ngram_home", "ram", id="table"),
        pytest.param("[serving]\nbatch_groups = 1", "groups", 1, id="groups"),
    ],
)
def test_stated_values_are_kept(spec: ModelSpec, text: str, key: str, value: object) -> None:
    found = plan_rig(rig(text), TWO, spec).placement
    assert getattr(found, key) == value


def test_sizes_per_card_are_kept(spec: ModelSpec) -> None:
    text = '[cards]\nvram_reserve = ["1 GiB", "2 GiB"]\n[experts]\ncache = ["10 GiB", "2 GiB"]'
    bars = plan_rig(rig(text), TWO, spec).bars
    assert [bar.size("reserve") for bar in bars] == [1 * GIB, 2 * GIB]
    assert [bar.size("cache") for bar in bars] == [10 * GIB, 2 * GIB]


@pytest.mark.parametrize(
    ("devices", "found"),
    [
        pytest.param('"cpu"', (), id="none"),
        pytest.param("[1, 0]", (1, 0), id="SPLIT-02 by number, in stage order"),
        pytest.param(f'["{TWO.cards.cards[1].uuid}"]', (1,), id="CFG-10 by UUID"),
        pytest.param("[7]", (), id="one that is not here"),
    ],
)
def test_cards(spec: ModelSpec, devices: str, found: tuple[int, ...]) -> None:
    assert tuple(card.index for card in plan_rig(rig(f"[cards]\ndevices = {devices}"), TWO, spec).cards) == found


def test_automatic_cards_are_all_that_help(spec: ModelSpec) -> None:
    """SPLIT-02: in the order that is quicker."""
    assert sorted(card.index for card in plan_rig(rig(""), TWO, spec).cards) == [0, 1]


def test_a_change_is_priced_at_once(spec: ModelSpec) -> None:
    four, one = (plan_rig(rig(f"[serving]\nparallel = {n}\n[context]\nmax_tokens = 65536"), TWO, spec) for n in (4, 1))
    assert "less cache" in difference(one, four)
    assert "slower" in difference(one, four)


BENCH = {"users_1": 61.0, "users_2": 98.0, "users_4": 150.0, "users_8": 210.0, "prompt": 1800.0, "hit_share": 0.81}


def benched(spec: ModelSpec, *, settings: str = "", model: str = "", numbers: Mapping[str, float] = BENCH) -> LoadedRig:
    """A rig whose [machine.bench] is of this machine, and of this model and these settings unless others are given."""
    placement = plan_rig(rig(""), TWO, spec).placement
    assert placement is not None
    subject = dataclasses.asdict(subject_of(rig(""), TWO, spec, placement)) | ({"model": model} if model else {})
    lines = [f'{name} = "{words}"' for name, words in subject.items()]
    lines += [f"{name} = {number}" for name, number in numbers.items()]
    return rig("\n".join([settings, "[machine.bench]", *lines]))


def test_recorded_speeds_are_shown_instead(spec: ModelSpec) -> None:
    found = plan_rig(benched(spec), TWO, spec)
    assert found.speed is not None
    assert (found.source, found.speed.users[0].middle, found.speed.hits.most) == ("measured", 61.0, 0.81)


def test_what_was_not_recorded_stays_an_estimate(spec: ModelSpec) -> None:
    found = plan_rig(benched(spec, numbers={"users_1": 61.0}), TWO, spec)
    assert found.speed is not None
    assert found.source == "measured, ranges are estimates"
    assert found.speed.users[1].least < found.speed.users[1].most


DRAFTS = "[serving]\ndraft_max = 2"


@pytest.mark.parametrize(
    ("settings", "model", "words"),
    [
        pytest.param("", "another, 7 bytes", "the model has changed", id="another file"),
        pytest.param(DRAFTS, "", "the rig has changed", id="other settings"),
        pytest.param(DRAFTS, "another, 7 bytes", "the model and the rig have changed", id="both"),
    ],
)
def test_stale_records_are_left_out_with_a_sentence(spec: ModelSpec, settings: str, model: str, words: str) -> None:
    found = plan_rig(benched(spec, settings=settings, model=model), TWO, spec)
    assert found.speed is not None
    assert found.source.startswith("estimate from")
    assert words in found.source
    assert found.speed.users[0].middle != 61.0


def test_who_may_ask_changes_no_speed(spec: ModelSpec) -> None:
    assert plan_rig(benched(spec, settings="[server]\nport = 9000"), TWO, spec).source == "measured"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param('[cards]\ndevices = "cpu"', "the CPU computes", id="CPU"),
        pytest.param("[cards]\nlayer_split = [10, 20]", "1 number for 2 cards", id="CFG-01 one boundary too many"),
        pytest.param("[cards]\ndevices = [7]", "no card 7", id="SPLIT-04 a card that is not here"),
    ],
)
def test_what_cannot_be_planned_is_a_refusal(spec: ModelSpec, text: str, words: str) -> None:
    found = plan_rig(rig(text), TWO, spec)
    assert not found.fits
    assert words in found.refusal
