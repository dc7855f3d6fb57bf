"""Experts change their homes between windows: the policy as tables, and every expert found after every step."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from appliance.model.qwen4exp.device.experts import LayerExperts
from appliance.model.qwen4exp.device.homes import Routing
from appliance.model.qwen4exp.device.hotness import HALF_LIFE_WINDOWS, Heat, Move
from appliance.model.qwen4exp.device.store import ExpertStore, StoreLayer
from appliance.model.qwen4exp.device.swaps import AtOnce, Beside, SideStream, Swapper
from kernels.experts import ExpertKind, ExpertLayout, pack_expert
from kernels.planes import pack
from tests.kernels.test_quant import random_rows

ON_CARD = torch.cuda.is_available()
DEVICE = torch.device("cuda:0" if ON_CARD else "cpu")
LAYERS, EXPERTS = 2, 6


def heat_of(rows: list[list[float]], *, every: int = 4) -> Heat:
    return Heat(np.array(rows, np.float32), every=every)


@pytest.mark.parametrize(
    ("heat", "resident", "most", "moves"),
    [
        ([[9, 0, 5, 20]], [[1, 1, 0, 0]], 8, [Move(0, 3, 1)]),
        ([[9, 8, 10, 11]], [[1, 1, 0, 0]], 8, []),
        ([[0, 0, 0, 0]], [[1, 1, 0, 0]], 8, []),
        ([[0, 9], [0, 30], [0, 5]], [[1, 0]] * 3, 2, [Move(1, 1, 0), Move(0, 1, 0)]),
        ([[0, 9]], [[1, 1]], 8, []),
        ([[0, 9]], [[0, 0]], 8, []),
        ([[0, 9]], [[1, 0]], 0, []),
    ],
    ids=["hottest-for-coldest", "not-worth-it", "nothing-routed", "best-layers-first", "all-here", "none-here", "none"],
)
def test_policy(heat: list[list[float]], resident: list[list[int]], most: int, moves: list[Move]) -> None:
    assert heat_of(heat).moves(np.array(resident, bool), most=most) == moves


def test_an_exchange_is_not_undone_by_the_next_look() -> None:
    heat = heat_of([[10.0, 16.0, 17.5]])
    assert heat.moves(np.array([[True, True, False]]), most=8) == [Move(0, 2, 0)]
    assert heat.moves(np.array([[False, True, True]]), most=8) == []


@pytest.mark.parametrize(
    ("before", "now", "added"),
    [(5, 9, 4), (-2, 3, 5), (2**31 - 1, -(2**31), 1), (7, 7, 0)],
    ids=["more", "past-zero", "past-the-largest", "still"],
)
def test_counts_wrap_around(before: int, now: int, added: int) -> None:
    heat, resident = heat_of([[0.0, 0.0]], every=HALF_LIFE_WINDOWS), np.array([[True, False]])
    heat.add(np.array([[before, 0]], np.int32), resident)
    rows, hits, warm = heat.rows, heat.hits, float(heat.heat[0, 0])
    heat.add(np.array([[now, 3]], np.int32), resident)
    assert (heat.rows - rows, heat.hits - hits) == (added + 3, added)
    assert heat.heat[0, 0] == pytest.approx(warm / 2 + added, rel=1e-6)


@dataclass
class Held:
    """Does work when it is told; stands for copies that take their time."""

    waiting: list[Callable[[], None]] = field(default_factory=list)
    begun: int = 0

    def run(self, work: Callable[[], None]) -> Later:
        self.waiting.append(work)
        self.begun += 1
        return Later(self, self.begun)

    def land(self) -> None:
        self.waiting.pop(0)()


@dataclass(frozen=True)
class Later:
    held: Held
    number: int

    @property
    def done(self) -> bool:
        return self.held.begun - len(self.held.waiting) >= self.number


class Model:
    """A store of two layers of IQ3_S experts, one in two forms and one in one, and what each expert must look like."""

    def __init__(self, resident: list[int], beside: Beside) -> None:
        anchor = torch.zeros(4, dtype=torch.int32, device=DEVICE)
        self.routing = Routing.empty(layers=LAYERS, experts=EXPERTS, device=DEVICE)
        self.words: list[dict[str, torch.Tensor]] = []
        layers = []
        for number, host_form in enumerate(("iq3", "i4")):
            card = ExpertKind(gate_up="i4", down="lut4", hidden=256, ff=32)
            host = ExpertKind(gate_up=host_form, down="lut4", hidden=256, ff=32)
            layout = ExpertLayout(experts=EXPERTS, used=2, kind=card, host_kind=host, shared_kind=card)
            forms = {"card": card, "host": host}
            self.words.append(
                {f: torch.stack([made(number, e, kind) for e in range(EXPERTS)]) for f, kind in forms.items()}
            )
            row = self.routing.layer(number)
            router = pack("F32", torch.zeros((32, 4 * 256), dtype=torch.uint8, device=DEVICE), columns=256)
            shared = torch.zeros(4, dtype=torch.int32, device=DEVICE)
            experts = LayerExperts(
                layout=layout,
                router=router,
                gate_column=0,
                table=row.table,
                anchor=anchor,
                shared=shared,
                counts=row.counts,
            )
            layers.append(StoreLayer(f"blk.{number}", experts, resident))
        self.anchor = anchor
        self.store = ExpertStore(layers, routing=self.routing, device=DEVICE)
        self.store.fill(self._homes_of)
        heat = Heat(np.zeros((LAYERS, EXPERTS), np.float32), every=1)
        self.swapper = Swapper(self.store, heat, every=1, beside=beside, device=DEVICE)

    def _homes_of(self, layer: StoreLayer, host: bool, count: int) -> torch.Tensor:
        number = int(layer.block.removeprefix("blk."))
        homes = self.store.homes[number]
        held = homes.place if host else homes.slot
        return self.words[number]["host" if host else "card"][[e for e in range(EXPERTS) if held[e] >= 0]]

    def route(self, layer: int, rows: dict[int, int]) -> None:
        """As a window does that routes so many rows to these experts."""
        for expert, count in rows.items():
            self.routing.counts[layer, expert] += count

    def check(self) -> None:
        """Every entry of the tables leads to its expert, in the form that its bit says; the host knows the same."""
        for number in range(LAYERS):
            entries = self.routing.layer(number).table[:-1].tolist()
            assert entries == self.store.entries(number).tolist()
            for expert, entry in enumerate(entries):
                wanted = self.words[number]["host" if entry & 1 else "card"][expert]
                in_ram = bool(self.store.homes[number].place[expert] >= 0)
                found = read(self.anchor.data_ptr() + (entry >> 1) * 16, wanted, in_ram=in_ram)
                assert torch.equal(found, wanted.cpu()), expert

    def on_card(self, layer: int) -> list[int]:
        return np.flatnonzero(self.store.homes[layer].resident).tolist()


def read(address: int, like: torch.Tensor, *, in_ram: bool) -> torch.Tensor:
    """The words at an address of the card or of the host."""
    if ON_CARD and not in_ram:
        torch.cuda.synchronize()
        out = torch.empty(like.shape, dtype=torch.int32)
        code = ctypes.CDLL("libcuda.so.1").cuMemcpyDtoH_v2(
            ctypes.c_void_p(out.data_ptr()), ctypes.c_uint64(address), ctypes.c_size_t(like.nbytes)
        )
        assert code == 0
        return out
    return torch.frombuffer(bytearray(ctypes.string_at(address, like.nbytes)), dtype=torch.int32)


def made(layer: int, expert: int, kind: ExpertKind) -> torch.Tensor:
    blocks = []
    for part, (name, rows, columns) in enumerate((("IQ3_S", 32, 256), ("IQ3_S", 32, 256), ("IQ4_NL", 256, 32))):
        seed = (layer * EXPERTS + expert) * 3 + part
        blocks.append((name, torch.from_numpy(random_rows(name, rows=rows, columns=columns, seed=seed)).to(DEVICE)))
    return pack_expert(blocks[0], blocks[1], blocks[2], kind=kind)


def settled(model: Model) -> None:
    for _ in range(8):
        model.swapper.between()
        if ON_CARD:
            torch.cuda.synchronize()
        model.check()


def test_hot_experts_come_onto_the_card_step_by_step() -> None:
    model = Model([0, 1, 2], SideStream(DEVICE) if ON_CARD else AtOnce())
    model.check()
    model.route(0, {5: 40, 0: 9, 1: 2, 2: 9})
    model.route(1, {4: 30, 2: 9, 1: 9})
    settled(model)
    assert [model.on_card(layer) for layer in range(LAYERS)] == [[0, 2, 5], [1, 2, 4]]
    assert model.swapper.swaps == 2
    assert model.swapper.hit_share == pytest.approx(38 / 108)
    model.route(0, {5: 10})
    settled(model)
    assert model.swapper.swaps == 2
    assert model.swapper.hit_share == pytest.approx(48 / 118)


def test_a_table_entry_changes_only_after_its_copy_has_landed() -> None:
    """The next step begins when the copies of the one before are there, however many windows pass meanwhile."""
    held = Held()
    model = Model([0, 1, 2], held)
    model.route(0, {5: 40})
    stages = []
    for _ in range(4):  # counts, then three copies
        before = model.routing.tables.clone()
        for _ in range(3):
            model.swapper.between()
            if len(held.waiting) < 1:
                break
        assert len(held.waiting) == 1
        held.land()
        stages.append(not torch.equal(before, model.routing.tables))
        model.check()
    model.swapper.between()
    model.check()
    assert stages == [False, False, True, True]
    assert model.on_card(0) == [1, 2, 5]


@pytest.mark.parametrize("resident", [[], list(range(EXPERTS))], ids=["none-here", "all-here"])
def test_nothing_to_exchange(resident: list[int]) -> None:
    model = Model(resident, SideStream(DEVICE) if ON_CARD else AtOnce())
    model.route(0, {5: 40})
    settled(model)
    assert model.swapper.swaps == 0
    assert model.swapper.hit_share == (1.0 if resident else 0.0)


def test_many_rounds_lose_no_expert() -> None:
    """MEM-08: after every step of many forced exchanges each expert's words are compared, wherever it lies."""
    model = Model([0, 1, 2], SideStream(DEVICE) if ON_CARD else AtOnce())
    random = np.random.default_rng(3)
    for _ in range(10):
        for layer in range(LAYERS):
            model.route(layer, {int(e): int(random.integers(1, 200)) for e in random.integers(0, EXPERTS, 2)})
        settled(model)
    assert model.swapper.swaps >= 3
