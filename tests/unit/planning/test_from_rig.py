"""A rig as it stands becomes a plan: stated values are kept, the others are recommended."""

from __future__ import annotations

import pytest
import tomlkit

from appliance.model.qwen4exp.spec import ModelSpec
from appliance.models.catalogue import read_catalogue
from appliance.models.outline import outline
from appliance.planning.advise import recommend
from appliance.planning.alternatives import rig_values
from appliance.planning.from_rig import cards_of, plan_rig, wish_of
from appliance.planning.plan import difference
from appliance.rig.load import load_text
from appliance.rig.size import GIB
from tests.builders.machines import BOXES

TWO = BOXES["two 24 GB cards, one on x4"]


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return outline(read_catalogue().size("iq3-s"))


def test_the_recommended_rig_is_its_own_plan(spec: ModelSpec) -> None:
    advice = recommend(TWO, spec)
    assert advice is not None
    assert advice.plan is not None
    loaded = load_text(tomlkit.dumps(rig_values(advice, TWO, "/m.gguf")))
    found = plan_rig(loaded, TWO, spec)
    assert found.sketch is not None
    assert found.sketch.bars == advice.plan.sketch.bars  # type: ignore[union-attr]
    assert found.speed == advice.plan.speed


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        pytest.param("[context]\nmax_tokens = 262144", "max_tokens", 262144, id="CFG-19 context is kept"),
        pytest.param("[serving]\nparallel = 7", "parallel", 7, id="conversations"),
        pytest.param('[context]\nkv = "bf16"', "kv", "bf16", id="number format"),
        pytest.param("[context]\nmax_tokens = 8192", "kv", "bf16", id="automatic format follows the context"),
        pytest.param("[serving]\ndraft_max = 0", "draft", False, id="no drafts"),
        pytest.param('[experts]\ncache = ["10 GiB", "2 GiB"]', "cache_bytes", 12 * GIB, id="cache per card"),
        pytest.param('[cards]\nvram_reserve = ["1 GiB", "2 GiB"]', "reserve_bytes", 2 * GIB, id="reserve per card"),
        pytest.param("[cards]\nlayer_split = [30]", "layer_split", (30,), id="split"),
        pytest.param('[ngram]\nhome = "mmap"', "ngram_home", "mmap", id="table"),
        pytest.param("[serving]\nprompt_chunk = 4096", "prompt_chunk", 4096, id="chunk"),
    ],
)
def test_stated_values_are_kept(spec: ModelSpec, text: str, key: str, value: object) -> None:
    assert getattr(wish_of(load_text(f"schema = 1\n{text}\n"), TWO, spec), key) == value


@pytest.mark.parametrize(
    ("devices", "found"),
    [
        pytest.param('"auto"', (0, 1), id="all"),
        pytest.param('"cpu"', (), id="none"),
        pytest.param("[1, 0]", (1, 0), id="by number, in stage order"),
        pytest.param(f'["{TWO.cards.cards[1].uuid}"]', (1,), id="CFG-10 by UUID"),
        pytest.param("[7]", (), id="one that is not here"),
    ],
)
def test_cards(devices: str, found: tuple[int, ...]) -> None:
    loaded = load_text(f"schema = 1\n[cards]\ndevices = {devices}\n")
    assert tuple(card.index for card in cards_of(loaded, TWO)) == found


def test_a_change_is_priced_at_once(spec: ModelSpec) -> None:
    four, one = (
        plan_rig(load_text(f"schema = 1\n[serving]\nparallel = {n}\n[context]\nmax_tokens = 65536\n"), TWO, spec)
        for n in (4, 1)
    )
    assert "less cache" in difference(one, four)
    assert "slower" in difference(one, four)


def test_recorded_speeds_are_shown_instead(spec: ModelSpec) -> None:
    loaded = load_text("schema = 1\n[machine.bench]\nusers_1 = 61.0\n")
    found = plan_rig(loaded, TWO, spec)
    assert (found.source, found.speed.users[0].middle) == ("measured", 61.0)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param('[cards]\ndevices = "cpu"', "no card to plan for", id="CPU"),
        pytest.param("[cards]\nlayer_split = [10, 20]", "2 boundaries for 2 cards", id="CFG-01 a count per card"),
    ],
)
def test_what_cannot_be_planned_is_a_refusal(spec: ModelSpec, text: str, words: str) -> None:
    assert words in plan_rig(load_text(f"schema = 1\n{text}\n"), TWO, spec).refusal
