"""The second pass: what a rig means on this machine with this model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from appliance.errors import ExitCode, MachineError
from appliance.rig.card_facts import CardProcess
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


REAL = '[model]\npath = "/models/a.gguf"\n'


@pytest.mark.parametrize(
    ("text", "cards", "found"),
    [
        pytest.param("", 1, (0,), id="the only one"),
        pytest.param("", 3, (0,), id="the built-in model takes one of several"),
        pytest.param(REAL, 3, (0, 1, 2), id="all for a model of one's own"),
        pytest.param("[cards]\ndevices = [1]\n", 3, (1,), id="by number"),
        pytest.param('[cards]\ndevices = ["GPU-00000002"]\n', 3, (2,), id="CFG-10 by UUID"),
        pytest.param("[cards]\ndevices = [2, 0]\n", 3, (2, 0), id="SPLIT-02 a stated order is kept"),
    ],
)
def test_cards_compute(text: str, cards: int, found: tuple[int, ...]) -> None:
    here = machine(cards=cards)
    loaded = load_text(text)
    assert judge(loaded, here, Facts()) == []
    device = choose_device(loaded, here)
    assert device.name == "cuda:0"
    assert tuple(card.index for card in device.cards) == found
    assert ("stay idle" in device.note) == (text == "" and cards > 1)


@pytest.mark.parametrize(
    ("text", "cards", "key", "says"),
    [
        pytest.param("[cards]\ndevices = [0]\n", 0, "cards.devices", "no card 0", id="SPLIT-04 none here"),
        pytest.param(
            '[cards]\ndevices = ["GPU-00000000", "GPU-9"]\n',
            1,
            "cards.devices",
            "no card GPU-9",
            id="SPLIT-04 one of two",
        ),
        pytest.param(
            '[cards]\ndevices = ["MIG-9", 0]\n', 1, "cards.devices", "no card MIG-9", id="SPLIT-04 a MIG slice"
        ),
        pytest.param(
            '[cards]\ndevices = [0, "GPU-00000000"]\n', 2, "cards.devices", "names one card twice", id="SPLIT-04 twice"
        ),
        pytest.param(
            '[cards]\nvram_reserve = ["1 GiB", "2 GiB"]\n', 1, "cards.vram_reserve", "2 sizes for 1 card", id="reserves"
        ),
        pytest.param('[experts]\ncache = ["1 GiB"]\n', 2, "experts.cache", "1 sizes for 2 cards", id="caches"),
        pytest.param("[serving]\nbatch_groups = 2\n", 1, "serving.batch_groups", "found 2 with 1 card", id="groups"),
    ],
)
def test_cards_that_cannot_be_had(text: str, cards: int, key: str, says: str) -> None:
    (problem,) = judge(load_text(REAL + text), machine(cards=cards), Facts())
    assert problem.key == key
    assert says in problem.says
    if key == "cards.devices":
        assert "GPU-00000000" in problem.allowed or cards == 0 or "once" in problem.allowed


def test_more_cards_than_layers_leave_a_card_without_any() -> None:
    (problem,) = judge(load_text(REAL + "[cards]\ndevices = [0, 1, 2]\n"), machine(cards=3), Facts(trunk_layers=2))
    assert "3 cards for 2 layers, and every card needs one" in problem.says


def test_two_slices_of_cards_are_refused() -> None:
    """SPLIT-04: CUDA shows a process one MIG slice, whatever the rig names."""
    here = machine(cards=2)
    slices = tuple(replace(one, uuid=f"MIG-{one.index}", mig=True) for one in here.cards.cards)
    here = replace(here, cards=replace(here.cards, cards=slices))
    (problem,) = judge(load_text(REAL + '[cards]\ndevices = ["MIG-0", "MIG-1"]\n'), here, Facts())
    assert "one MIG slice only" in problem.says


GENERATIONS = ("6.1", "7.0", "8.6", "12.0")


def mixed() -> Machine:
    """A card of each generation."""
    here = machine(cards=len(GENERATIONS))
    cards = tuple(
        replace(one, capability=capability) for one, capability in zip(here.cards.cards, GENERATIONS, strict=True)
    )
    return replace(here, cards=replace(here.cards, cards=cards))


def test_mixed_generations_compute_together_and_old_ones_are_left_out_with_the_reason() -> None:
    """SPLIT-07"""
    device = choose_device(load_text(REAL), mixed())
    assert [card.capability for card in device.cards] == ["8.6", "12.0"]
    for index, capability in ((0, "6.1"), (1, "7.0")):
        assert f"card {index} (NVIDIA Test 32G) cannot be used: its compute capability is {capability}" in device.note
    with pytest.raises(MachineError, match=r"card 1 .*cannot be used.*7\.0"):
        choose_device(load_text(REAL + "[cards]\ndevices = [3, 1]\n"), mixed())


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


def test_memory_that_others_hold_is_said() -> None:
    """MEM-04: the cache is smaller then, and who made it so is named; a desktop's few MiB are not worth a word."""
    here = machine(cards=2)
    first, last = here.cards.cards
    held = (CardProcess(pid=7, name="python3", used_bytes=8 * GIB), CardProcess(pid=9, name="", used_bytes=GIB))
    few = (CardProcess(pid=1, name="Xorg", used_bytes=GIB // 10),)
    cards = (replace(first, processes=few), replace(last, processes=held))
    here = replace(here, cards=replace(here.cards, cards=cards))
    (line,) = machine_differences(load_text(""), here)
    assert line == "card 1: others hold 9 GiB of its memory (process 7 python3, process 9): less for experts"
    assert machine_differences(load_text("[cards]\ndevices = [0]\n"), here) == []
