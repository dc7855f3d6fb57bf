"""The second pass: what a rig means on this machine with this model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from appliance.errors import ExitCode, MachineError
from appliance.rig.judge import choose_device, judge, machine_differences, split_problem
from appliance.rig.load import load_text
from appliance.rig.machine import Machine
from appliance.rig.size import GIB
from tests.builders.machines import machine


@dataclass(frozen=True)
class Facts:
    trunk_layers: int = 48
    context_tokens: int = 4096


@pytest.mark.parametrize(
    ("cards", "split", "corrected"),
    [
        pytest.param(2, [24, 24], "write [24]", id="CFG-01 two cards"),
        pytest.param(4, [12, 12, 12, 12], "write [12, 24, 36]", id="CFG-01 four cards"),
        pytest.param(2, [30, 18], "write [30]", id="CFG-02 uneven counts"),
    ],
)
def test_counts_per_card_are_refused_with_the_corrected_value(cards: int, split: list[int], corrected: str) -> None:
    loaded = load_text(f"[cards]\nlayer_split = {split}\n")
    (problem,) = judge(loaded, machine(cards=cards), Facts())
    sentence = problem.sentence()
    assert sentence.startswith(f"rig.toml:2: cards.layer_split: found {split}")
    assert "not a count per card" in sentence
    assert corrected in sentence


@pytest.mark.parametrize(
    ("cards", "split"),
    [
        pytest.param(2, (0,), id="CFG-02 zero"),
        pytest.param(2, (48,), id="CFG-02 beyond the last layer"),
        pytest.param(2, (-1,), id="CFG-02 negative"),
        pytest.param(3, (24, 24), id="CFG-02 not rising"),
        pytest.param(3, (30, 18), id="CFG-02 falling"),
        pytest.param(2, (24, 36), id="CFG-02 too many"),
        pytest.param(4, (24,), id="CFG-02 too few"),
    ],
)
def test_split_out_of_range_names_value_and_range(cards: int, split: tuple[int, ...]) -> None:
    wrong = split_problem(split, cards=cards, layers=48)
    assert wrong is not None
    says, allowed, _ = wrong
    assert str(list(split)) in says
    assert "1 to 47, strictly rising" in allowed


@pytest.mark.parametrize(("cards", "split"), [(2, (24,)), (2, (1,)), (2, (47,)), (4, (12, 24, 36))])
def test_right_split_is_accepted(cards: int, split: tuple[int, ...]) -> None:
    """CFG-02"""
    assert split_problem(split, cards=cards, layers=48) is None


def test_split_without_two_cards() -> None:
    wrong = split_problem((24,), cards=1, layers=48)
    assert wrong is not None
    assert "two cards" in wrong[2]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        pytest.param('[cards]\nvram_reserve = "1 GiB"\n', "cards.vram_reserve", id="reserve"),
        pytest.param('[model]\nvision_path = "x"\n', "model.vision_path", id="vision"),
        pytest.param('[experts]\nram = "file"\n', "experts.ram", id="experts"),
        pytest.param('[context]\nkv = "int8"\n', "context.kv", id="number format"),
        pytest.param('[context]\nrope_scaling = "yarn"\n', "context.rope_scaling", id="stretched positions"),
        pytest.param('[ngram]\nhome = "vram"\n', "ngram.home", id="table on a card"),
        pytest.param('[serving]\nconversation_cache_ram = "1 GiB"\n', "serving.conversation_cache_ram", id="cache"),
        pytest.param("[serving]\nbatch_groups = 2\n", "serving.batch_groups", id="groups"),
    ],
)
def test_keys_before_their_time(text: str, key: str) -> None:
    (problem,) = judge(load_text(text), machine(), Facts())
    assert problem.key == key
    assert "not available in this version" in problem.says


def test_their_defaults_written_out_are_accepted() -> None:
    text = '[cards]\nvram_reserve = "700 MiB"\ndevices = "cpu"\n[experts]\nadapt_every = 4\n[context]\nkv = "f32"\n'
    assert judge(load_text(text), machine(), Facts()) == []


def test_context_beyond_the_trained_length() -> None:
    (problem,) = judge(load_text("[context]\nmax_tokens = 8192\n"), machine(), Facts())
    assert "found 8192" in problem.says
    assert "4096" in problem.hint


def test_built_in_model_runs_on_the_cpu_and_says_so() -> None:
    """CTR-03"""
    device = choose_device(load_text(""), machine())
    assert device.name == "cpu"
    assert "no card" in device.note


def old(capability: str) -> Machine:
    """A machine with one card of that capability."""
    here = machine(cards=1)
    (one,) = here.cards.cards
    return replace(here, cards=replace(here.cards, cards=(replace(one, capability=capability),)))


@pytest.mark.parametrize("here", [machine(), old("7.5")], ids=["no card", "card too old"])
def test_another_model_never_runs_silently_on_the_cpu(here: Machine) -> None:
    """CTR-03"""
    loaded = load_text('[model]\npath = "/models/a.gguf"\n')
    with pytest.raises(MachineError) as caught:
        choose_device(loaded, here)
    assert caught.value.exit_code is ExitCode.MACHINE
    assert 'devices = "cpu"' in str(caught.value)


@pytest.mark.parametrize(
    ("devices", "cards", "index"),
    [('"auto"', 1, 0), ('"auto"', 3, 0), ("[1]", 3, 1), ('["GPU-00000002"]', 3, 2)],
    ids=["the only one", "one of several", "by number", "by UUID"],
)
def test_a_card_computes(devices: str, cards: int, index: int) -> None:
    here = machine(cards=cards)
    loaded = load_text(f"[cards]\ndevices = {devices}\n")
    assert judge(loaded, here, Facts()) == []
    device = choose_device(loaded, here)
    assert device.name == "cuda:0"
    assert device.card is not None
    assert device.card.index == index
    assert ("stay idle" in device.note) == (devices == '"auto"' and cards > 1)


@pytest.mark.parametrize(
    ("devices", "cards", "says"),
    [("[0]", 0, "no card 0"), ('["GPU-9"]', 1, "no card GPU-9"), ("[0, 1]", 2, "several cards are not available")],
)
def test_cards_that_cannot_be_had(devices: str, cards: int, says: str) -> None:
    (problem,) = judge(load_text(f"[cards]\ndevices = {devices}\n"), machine(cards=cards), Facts())
    assert problem.key == "cards.devices"
    assert says in problem.says


@pytest.mark.parametrize("text", ['[context]\nkv = "int8"\n', '[cards]\nvram_reserve = "2 GiB"\n'])
def test_some_keys_are_honoured_on_a_card_only(text: str) -> None:
    assert judge(load_text(text), machine(cards=1), Facts()) == []
    assert judge(load_text(text), machine(), Facts()) != []


def test_another_model_runs_on_the_cpu_when_told_so() -> None:
    loaded = load_text('[model]\npath = "/models/a.gguf"\n[cards]\ndevices = "cpu"\n')
    assert choose_device(loaded, machine()).note == ""


def test_changes_of_the_machine_that_matter() -> None:
    text = '[machine]\nram_limit = "64 GiB"\n[[machine.card]]\nuuid = "GPU-00000000"\n'
    lines = machine_differences(load_text(text), machine(ram_bytes=32 * GIB))
    assert len(lines) == 2
    assert "64 GiB" in lines[0]
    assert "GPU-00000000" in lines[1]
    assert machine_differences(load_text(text), machine(ram_bytes=64 * GIB, cards=1)) == []
