"""Cards as the driver tells them, and as it does not."""

from __future__ import annotations

import ctypes
import dataclasses
from types import SimpleNamespace

import pytest

from appliance.rig.cards import CAP_BYTES, Card, Cards, probe_cards
from appliance.rig.cuda_driver import CudaMemory, cuda_memory
from appliance.rig.rates import CardRates, Reading
from appliance.rig.size import GIB
from appliance.rig.warnings import card_warnings, driver_problem, link_warnings
from tests.builders.machines import RTX_4090, real_card
from tests.builders.nvml import FakeCard, FakeNvml, NVMLError

RAM = 64 * GIB


def look(*cards: FakeCard, second: CudaMemory | None = None) -> Cards:
    return probe_cards(FakeNvml(list(cards)), ram_bytes=RAM, second_opinion=lambda bus_id: second)


def one(card: FakeCard, *, second: CudaMemory | None = None) -> Card:
    (found,) = look(card, second=second).cards
    return found


def test_everything_that_a_plan_depends_on() -> None:
    found = one(FakeCard(processes=((7, 3 * GIB), (9, None))))
    assert (found.vram_bytes, found.free_bytes, found.capability) == (24 * GIB, 23 * GIB, "8.9")
    assert (found.display, found.power_limit_w, found.unified, found.mig) == (True, 450.0, False, False)
    assert found.link is not None
    assert found.link.advertised_gbps == pytest.approx(31.5, abs=0.1)
    assert [(process.pid, process.used_bytes) for process in found.processes] == [(7, 3 * GIB), (9, None)]
    assert found.peak_gbps == pytest.approx(1008, abs=1)
    assert found.peak_tflops == pytest.approx(165, abs=1)
    cards = look(FakeCard())
    assert (cards.driver, cards.cuda, cards.note) == ("580.65.06", "13.0", None)


def test_a_driver_that_does_not_know_is_no_reason_to_fail() -> None:
    from tests.builders.nvml import ANSWERS

    kept = {"nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetPciInfo"}
    found = one(FakeCard(unknown=frozenset(ANSWERS) - kept))
    assert found.uuid == "GPU-1"
    assert (found.link, found.display, found.power_limit_w, found.peak_gbps, found.capability) == (None,) * 5


@pytest.mark.parametrize(
    ("memory", "second", "expected"),
    [
        pytest.param(None, None, (None, None, False, ""), id="CFG-12 not supported, nobody knows"),
        pytest.param((0, 0), None, (None, None, False, ""), id="CFG-12 zero is not a size"),
        pytest.param(None, CudaMemory(20 * GIB, False), (20 * GIB, None, False, "cuda"), id="CFG-12 CUDA knows"),
        pytest.param((RAM, 9 * GIB), None, (RAM, 9 * GIB, True, "nvml"), id="CFG-12 total is the RAM"),
        pytest.param(
            (RAM, 9 * GIB), CudaMemory(RAM, True), (RAM, 9 * GIB, True, "nvml"), id="CFG-12 unified, CUDA agrees"
        ),
        pytest.param(
            (RAM, RAM), CudaMemory(RAM, False), (RAM, RAM, False, "nvml"), id="CFG-12 a card as large as the RAM"
        ),
        pytest.param(
            (CAP_BYTES, GIB), CudaMemory(24 * GIB, False), (24 * GIB, None, False, "cuda"), id="CFG-12 capped at 4 GB"
        ),
        pytest.param((CAP_BYTES, GIB), None, (CAP_BYTES, GIB, False, "nvml"), id="CFG-12 really 4 GB"),
    ],
)
def test_memory_that_cannot_be_right(
    memory: tuple[int, int] | None, second: CudaMemory | None, expected: tuple[object, ...]
) -> None:
    found = one(FakeCard(memory=memory), second=second)
    assert (found.vram_bytes, found.free_bytes, found.unified, found.memory_source) == expected
    if found.vram_bytes is None:
        assert any("nobody says how much memory it has" in line for line in card_warnings(found, None))
    if found.unified:
        assert any("counted once" in line for line in card_warnings(found, None))


def test_the_cuda_driver_is_asked_by_bus_id() -> None:
    """CFG-10: the two libraries number cards differently; the bus id is the same in both."""
    asked: list[bytes] = []

    def set_value(pointer: object, value: int) -> int:
        pointer._obj.value = value  # type: ignore[attr-defined]
        return 0

    def by_bus(pointer: object, bus_id: bytes) -> int:
        asked.append(bus_id)
        return set_value(pointer, 5)

    library = SimpleNamespace(
        cuInit=lambda flags: 0,
        cuDeviceGetByPCIBusId=by_bus,
        cuDeviceTotalMem_v2=lambda pointer, device: set_value(pointer, 16 * GIB),
        cuDeviceGetAttribute=lambda pointer, attribute, device: set_value(pointer, 1),
    )
    assert cuda_memory("00000000:09:00.0", library) == CudaMemory(16 * GIB, True)
    assert asked == [b"00000000:09:00.0"]
    library.cuInit = lambda flags: 999
    assert cuda_memory("00000000:09:00.0", library) is None
    assert ctypes.sizeof(ctypes.c_size_t) == 8


def test_cards_keep_the_order_of_the_bus_and_their_uuids() -> None:
    """CFG-10: shuffled between two starts, the same card is found by its UUID."""
    first, second = FakeCard(uuid="GPU-a", bus_id="1"), FakeCard(uuid="GPU-b", bus_id="2", name="other")
    for order in ((first, second), (second, first)):
        found = {card.uuid: card for card in look(*order).cards}
        assert (found["GPU-a"].bus_id, found["GPU-b"].bus_id) == ("1", "2")
        assert [card.index for card in look(*order).cards] == [0, 1]


def test_slices_take_the_place_of_their_card() -> None:
    cards = look(FakeCard(slices=(("MIG-1", 10 * GIB, 9 * GIB), ("MIG-2", 10 * GIB, 10 * GIB)))).cards
    assert [(card.uuid, card.vram_bytes, card.mig) for card in cards] == [
        ("MIG-1", 10 * GIB, True),
        ("MIG-2", 10 * GIB, True),
    ]
    assert [card.uuid for card in look(FakeCard(slices=())).cards] == ["GPU-1"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        pytest.param(NVMLError("Driver Not Loaded", 9), "driver not loaded", id="no driver"),
        pytest.param(
            NVMLError("Driver/library version mismatch", 18),
            "reboot the host, or restart the container",
            id="CTR-04 updated under our feet",
        ),
    ],
)
def test_a_driver_that_does_not_answer(error: NVMLError, words: str) -> None:
    found = probe_cards(FakeNvml(broken=error), ram_bytes=RAM)
    assert found.cards == ()
    assert words in (found.note or "")


@pytest.mark.parametrize(
    ("driver", "cuda", "problem"),
    [
        pytest.param("535.104.05", 12020, True, id="CTR-04 driver 535"),
        pytest.param("575.57.08", 12090, True, id="CTR-04 one major too old"),
        pytest.param("580.65.06", 13000, False, id="just new enough"),
        pytest.param("600.10", 13040, False, id="newer"),
    ],
)
def test_a_driver_that_is_too_old(driver: str, cuda: int, problem: bool) -> None:
    found = probe_cards(FakeNvml([FakeCard()], driver=driver, cuda=cuda), ram_bytes=RAM)
    sentence = driver_problem(found)
    assert (sentence is not None) is problem
    if sentence is not None:
        for words in (driver, "needs CUDA 13.0", "580.65.06 or newer"):
            assert words in sentence


@pytest.mark.parametrize(
    ("generation", "measured", "warned"),
    [
        pytest.param(5, 3.0, True, id="CFG-11 gen 5 x16 advertised, 3 GB/s measured"),
        pytest.param(4, 25.0, False, id="CFG-11 asleep at gen 1, 25 GB/s measured"),
        pytest.param(4, None, False, id="CFG-11 not measured, so nothing is concluded"),
    ],
)
def test_the_measured_copy_counts_and_not_what_a_sleeping_card_says(
    generation: int, measured: float | None, warned: bool
) -> None:
    card = real_card(0, dataclasses.replace(RTX_4090, generation=generation))
    assert card.link is not None
    assert card.link.generation == 1
    rates = CardRates(uuid=card.uuid, to_card_gbps=Reading() if measured is None else Reading.of(measured))
    lines = link_warnings(card, rates)
    assert bool(lines) is warned
    if warned:
        assert "3 GB/s measured" in lines[0]
        assert "63.0 GB/s of PCIe 5 x16" in lines[0]


def test_others_on_the_card_are_named() -> None:
    """MEM-04"""
    card = real_card(0, RTX_4090, free_gib=0.9)
    assert any("process 4242 (python3) holds 23.09 GiB" in line for line in card_warnings(card, None))
