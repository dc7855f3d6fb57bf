"""Experts: routing with ties and padding, entries of up to 8 rows, products of both forms and of the shared expert."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from kernels.experts import (
    ExpertBuffers,
    ExpertKind,
    ExpertLayout,
    down,
    gate_up,
    make_buffers,
    pack_expert,
    route,
    split_expert,
    table_entry,
)
from kernels.experts.op import gate_up_options
from kernels.experts.reference import best_experts, experts_reference
from kernels.planes import from_operand, to_operand, unpack
from kernels.quant import dequantise
from tests.builders.blocks import model_rows

ON_CARD = torch.cuda.is_available()
NONE = -9223372036854775807


@dataclass(frozen=True)
class Layer:
    """A layer's experts, packed, and their float64 weights; every second expert in its host form."""

    layout: ExpertLayout
    anchor: torch.Tensor
    table: torch.Tensor
    words: list[torch.Tensor]
    weights: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def make_layer(device: str, kind: str) -> Layer:
    """Types are of the routed gate and up rows (IQ3_S has two forms) and of their down rows; shared: Q8_0."""
    (hidden, ff, shared_ff, experts, used), types = LAYERS[kind]
    host = "iq3" if types[0] == "IQ3_S" else None
    first = split_kind(hidden, ff, types)
    second = ExpertKind(gate_up=host or first.gate_up, down=first.down, hidden=hidden, ff=ff)
    shared = ExpertKind(gate_up="q8", down="q8", hidden=hidden, ff=shared_ff)
    layout = ExpertLayout(experts=experts, used=used, kind=first, host_kind=second, shared_kind=shared)
    anchor = torch.zeros(4, dtype=torch.int32, device=device)
    table, every, weights = [], [], []
    for expert in range(experts + 1):
        last = expert == experts
        kind = shared if last else second if expert % 2 else first
        gate_type, down_type = ("Q8_0", "Q8_0") if last else types
        parts = []
        sides = ((gate_type, kind.ff, hidden), (gate_type, kind.ff, hidden), (down_type, hidden, kind.ff))
        for at, (name, rows, columns) in enumerate(sides):
            raw = model_rows(name, rows=rows, columns=columns, seed=3 * expert + at, device=device)
            parts.append((name, raw))
        words = pack_expert(*parts, kind=kind)
        if kind is second and device == "cuda":
            words = words.cpu().pin_memory()
        every.append(words)
        table.append(table_entry(words, anchor, host=kind is second and second != first))
        gate, up = (dequantise(raw, name, columns=hidden).double() for name, raw in parts[:2])
        weights.append((gate, up, dequantise(parts[2][1], down_type, columns=kind.ff).double()))
    return Layer(layout, anchor, torch.tensor(table, device=device), every, weights)


def split_kind(hidden: int, ff: int, types: tuple[str, str]) -> ExpertKind:
    forms = {
        "IQ3_S": "i4",
        "IQ4_NL": "lut4",
        "Q8_0": "q8",
        "Q4_K": "q4k",
        "Q5_0": "q5",
        "IQ2_XXS": "lut2",
        "Q2_0": "q2",
    }
    return ExpertKind(gate_up=forms[types[0]], down=forms[types[1]], hidden=hidden, ff=ff)


def partial_logits(rows: int, experts: int, device: str, *, seed: int = 0) -> torch.Tensor:
    """[2, rows, columns]: routed experts, a gap, then the shared expert's column."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, rows, experts + 5, generator=generator).to(device)


def poisoned(layout: ExpertLayout, rows: int, exact: bool, device: str) -> ExpertBuffers:
    buffers = make_buffers(layout, rows=rows, exact=exact, device=torch.device(device))
    for tensor in (buffers.weights, buffers.entry_share, buffers.hidden):
        tensor.fill_(float("nan"))
    for tensor in (buffers.ids, buffers.entry_rows, buffers.entry_out):
        tensor.fill_(-12345)
    return buffers


def run(
    layer: Layer, x: torch.Tensor, logits: torch.Tensor, *, exact: bool, rows_used: int | None = None
) -> torch.Tensor:
    """[rows, used + 1, hidden] from poisoned buffers."""
    rows = x.shape[0]
    buffers = poisoned(layer.layout, rows, exact, str(x.device))
    used = None if rows_used is None else torch.tensor([rows_used], dtype=torch.int32, device=x.device)
    out = torch.full((rows, layer.layout.used + 1, x.shape[1]), float("nan"), device=x.device)
    gate = logits.shape[2] - 1
    route(logits, layer.table, layout=layer.layout, buffers=buffers, gate_column=gate, rows_used=used)
    gate_up(to_operand(x, exact=exact), layer.anchor, layout=layer.layout, buffers=buffers, exact=exact)
    down(layer.anchor, layout=layer.layout, buffers=buffers, out=out, exact=exact)
    return out


def difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


LAYERS = {
    "two-forms": ((2560, 640, 640, 32, 10) if ON_CARD else (256, 64, 32, 2, 2), ("IQ3_S", "IQ4_NL")),
    "one-form": ((2560, 640, 320, 16, 10) if ON_CARD else (96, 32, 64, 3, 2), ("Q8_0", "Q5_0")),
    # A row alone has all words of a strip before it begins: three chunks of them, the last not full.
    "three-chunks": ((2560, 352, 64, 4, 2) if ON_CARD else (64, 288, 32, 2, 1), ("Q8_0", "IQ4_NL")),
}


# The interpreter is slow: there, each layer in one mode.
CASES = [("two-forms", False), ("one-form", True)] + ([("two-forms", True), ("one-form", False)] if ON_CARD else [])


@pytest.mark.parametrize(
    ("kind", "exact"), CASES, ids=[f"{kind}-{'exact' if exact else 'fast'}" for kind, exact in CASES]
)
def test_mixture_against_float64(device: str, kind: str, exact: bool) -> None:
    (hidden, _, _, experts, used), _ = LAYERS[kind]
    layer = make_layer(device, kind)
    for rows in (1, 2, 5, 16, 40) if ON_CARD else (2,):
        x = torch.randn(rows, hidden, generator=torch.Generator().manual_seed(rows)).to(device)
        logits = partial_logits(rows, experts, device, seed=rows)
        seen = from_operand(to_operand(x, exact=exact), columns=hidden).double()
        total = logits.sum(0)[:, [*range(experts), -1]].double()
        wanted = experts_reference(seen, total, layer.weights, used=used)
        found = run(layer, x, logits, exact=exact)
        assert difference(found, wanted) < (3e-6 if exact else 2e-3)
        assert torch.equal(found, run(layer, x, logits, exact=exact)) or not ON_CARD


@pytest.mark.parametrize("kind", ["one-form", "three-chunks"])
def test_a_row_has_the_same_bits_in_any_company_and_padding_routes_nowhere(device: str, kind: str) -> None:
    (hidden, _, _, experts, _), _ = LAYERS[kind]
    layer = make_layer(device, kind)
    rows = 40 if ON_CARD else 3
    x = torch.randn(rows, hidden, generator=torch.Generator().manual_seed(5)).to(device)
    logits = partial_logits(rows, experts, device)
    found = run(layer, x, logits, exact=False, rows_used=rows - 1)
    alone = run(layer, x[1:2], logits[:, 1:2].contiguous(), exact=False)
    assert torch.equal(found[1:2], alone)
    assert found[-1].isnan().all()
    assert not found[:-1].isnan().any()


def routed(
    rows: int, experts: int, used: int, logits: torch.Tensor, *, rows_used: int, device: str
) -> tuple[ExpertBuffers, torch.Tensor, torch.Tensor]:
    kind = ExpertKind(gate_up="q8", down="q8", hidden=32, ff=32)
    layout = ExpertLayout(experts=experts, used=used, kind=kind, host_kind=kind, shared_kind=kind)
    buffers = poisoned(layout, rows, True, device)
    counts = torch.zeros(experts, dtype=torch.int32, device=device)
    table = torch.arange(experts + 1, device=device) * 10 + 3
    count = torch.tensor([rows_used], dtype=torch.int32, device=device)
    route(
        logits, table, layout=layout, buffers=buffers, gate_column=logits.shape[2] - 1, rows_used=count, counts=counts
    )
    return buffers, counts, table


@pytest.mark.parametrize(
    ("rows", "experts", "used", "rows_used", "levels"),
    [(1, 7, 3, 1, 0), (5, 512, 10, 5, 0), (11, 4, 2, 11, 2), (40, 16, 10, 37, 3), (8, 1, 1, 8, 1), (2, 5, 5, 2, 0)],
    ids=["one-row", "real-sizes", "shared-by-more-than-8", "SPEC-padded-40", "one-expert", "all-experts"],
)
def test_routing_and_entries(device: str, rows: int, experts: int, used: int, rows_used: int, levels: int) -> None:
    """With `levels` the logits take few values, so most are equal and the lower id decides."""
    logits = partial_logits(rows, experts, device, seed=rows)
    if levels:
        logits = (logits * levels).round() / levels
    buffers, counts, table = routed(rows, experts, used, logits, rows_used=rows_used, device=device)
    total = logits[0] + logits[1]
    pairs: dict[int, tuple[int, float]] = {}
    hits = [0] * experts
    for row in range(rows_used):
        ids, share = best_experts(total[row, :experts].cpu(), used=used)
        assert buffers.ids[row, : used + 1].tolist() == [*ids, experts]
        shared = (experts, torch.sigmoid(total[row, -1]))
        for slot, (expert, weight) in enumerate([*zip(ids, share, strict=True), shared]):
            pairs[row * (used + 1) + slot] = (expert, float(weight))
            if expert < experts:
                hits[expert] += 1
    assert counts.tolist() == hits
    assert (buffers.ids[rows_used:] == -1).all()
    seen, entries_of = {}, [0] * (experts + 1)
    lists = (buffers.base, buffers.entry_rows, buffers.entry_out, buffers.entry_share)
    for base, lanes, outs, shares in zip(*(one.tolist() for one in lists), strict=True):
        if base == NONE:
            continue
        expert = table.tolist().index(base)
        entries_of[expert] += 1
        assert outs[0] >= 0
        for row, out, weight in zip(lanes, outs, shares, strict=True):
            assert 0 <= row < rows
            if out >= 0:
                assert row == out // (used + 1)
                assert out not in seen
                seen[out] = (expert, weight)
    assert seen.keys() == pairs.keys()
    assert all(seen[out][0] == pairs[out][0] and abs(seen[out][1] - pairs[out][1]) < 1e-6 for out in pairs)
    assert entries_of == [-(-count // 8) for count in [*hits, rows_used]]


def special_rows(experts: int) -> torch.Tensor:
    """[6, experts + 5]: few values, zeros of both signs, infinities of both, only -inf, one above, at last NaN."""
    generator = torch.Generator().manual_seed(experts)
    rows = torch.randn(6, experts + 5, generator=generator)
    rows[0] = (rows[0] * 2).round() / 2
    rows[1] = torch.where(rows[1] > 0, 0.0, -0.0)
    rows[2, :experts:3], rows[2, 1:experts:7] = -float("inf"), float("inf")
    rows[3, :experts] = -float("inf")
    rows[4, :experts] = -float("inf")
    rows[4, experts - 1] = 1.5
    rows[5, :experts:2] = float("nan")
    rows[5, :experts:4].view(torch.int32).fill_(-1)  # the least of all bits as whole numbers
    return rows


@pytest.mark.filterwarnings("ignore:invalid value")  # of the interpreter, where all logits are -inf
@pytest.mark.parametrize(
    ("experts", "used"),
    [(512, 10), (512, 31), (300, 20), (130, 10), (129, 1), (33, 31), (16, 16), (5, 5), (2, 1), (1, 1)],
)
def test_which_experts_are_best(device: str, experts: int, used: int) -> None:
    """Equal logits, of zeros too: the lower id. Warps with fewer experts than they give candidates, or with none."""
    logits = special_rows(experts)
    rows = logits.shape[0]
    parts = torch.stack((logits, torch.full_like(logits, -0.0))).to(device)
    buffers, counts, _ = routed(rows, experts, used, parts, rows_used=rows, device=device)
    ids, weights = buffers.ids.cpu(), buffers.weights.cpu()
    assert (ids[:, used] == experts).all()
    torch.testing.assert_close(weights[:, used], torch.sigmoid(logits[:, -1]))
    for row in range(rows - 1):
        wanted, share = best_experts(logits[row, :experts], used=used)
        assert ids[row, :used].tolist() == wanted
        if not share.isnan().any():
            torch.testing.assert_close(weights[row, :used], share)
    # NaN is no order, but there is an expert in every slot, and no expert twice.
    assert len(set(ids[-1, :used].tolist())) == used
    assert 0 <= int(ids[-1, :used].min()) <= int(ids[-1, :used].max()) < experts
    assert counts.cpu().equal(torch.bincount(ids[:, :used].flatten(), minlength=experts).int())
    alone, _, _ = routed(1, experts, used, parts[:, :1].contiguous(), rows_used=1, device=device)
    assert torch.equal(alone.ids[0, : used + 1].cpu(), ids[0, : used + 1])
    assert torch.equal(alone.weights[0, : used + 1].cpu(), weights[0, : used + 1])


@pytest.mark.parametrize(
    ("forms", "rows", "exact", "capped"),
    [
        (("i4", "i4"), 4, False, True),
        (("i4", "i4"), 40, False, True),
        (("i4", "i4"), 3, False, False),  # all programs run at once
        (("i4", "i4"), 1, False, False),
        (("i4", "i4"), 4, True, False),
        (("i4", "iq3"), 4, False, True),
        (("iq3", "iq3"), 4, False, False),  # too many values, as of those below
        (("q8", "q8"), 4, False, False),
    ],
)
def test_which_products_give_up_registers(forms: tuple[str, str], rows: int, exact: bool, capped: bool) -> None:
    first, host = (ExpertKind(gate_up=form, down="lut4", hidden=256, ff=64) for form in forms)
    layout = ExpertLayout(experts=4, used=2, kind=first, host_kind=host, shared_kind=first)
    assert gate_up_options(layout, rows=rows, exact=exact) == ({"maxnreg": 96} if capped else {})


@pytest.mark.skipif(not ON_CARD, reason="needs a CUDA card: registers are of compiled kernels")
def test_a_row_has_the_same_bits_whatever_the_registers(device: str) -> None:
    layer = make_layer(device, "two-forms")
    x = torch.randn(8, 2560, generator=torch.Generator().manual_seed(7)).to(device)
    logits = partial_logits(8, 32, device)
    found = run(layer, x, logits, exact=False)
    for row in range(8):
        alone = run(layer, x[row : row + 1], logits[:, row : row + 1].contiguous(), exact=False)
        assert torch.equal(found[row], alone[0])


def test_expert_words_hold_both_matrices(device: str) -> None:
    kind = ExpertKind(gate_up="i4", down="lut4", hidden=256, ff=64)
    raws = [model_rows("IQ3_S", rows=64, columns=256, seed=at, device=device) for at in (0, 1)]
    last = model_rows("IQ4_NL", rows=256, columns=64, device=device)
    words = pack_expert(("IQ3_S", raws[0]), ("IQ3_S", raws[1]), ("IQ4_NL", last), kind=kind)
    assert words.shape == (kind.words,)
    both, lower = split_expert(words, kind)
    halves = unpack(both).view(-1, 2, 16, 256)
    for half, raw in enumerate(raws):
        assert torch.equal(halves[:, half].reshape(-1, 256)[:64], dequantise(raw, "IQ3_S", columns=256))
    assert torch.equal(unpack(lower), dequantise(last, "IQ4_NL", columns=64))


def test_refusals_are_sentences(device: str) -> None:
    kind = ExpertKind(gate_up="q8", down="q8", hidden=32, ff=32)
    with pytest.raises(ValueError, match="8 used of 4; allowed: 1 to 31"):
        ExpertLayout(experts=4, used=8, kind=kind, host_kind=kind, shared_kind=kind)
    other = ExpertKind(gate_up="q8", down="q8", hidden=32, ff=64)
    with pytest.raises(ValueError, match="kinds differ in width"):
        ExpertLayout(experts=4, used=1, kind=kind, host_kind=other, shared_kind=kind)
    layout = ExpertLayout(experts=4, used=1, kind=kind, host_kind=kind, shared_kind=kind)
    buffers = make_buffers(layout, rows=2, exact=False, device=torch.device(device))
    table = torch.zeros(5, dtype=torch.int64, device=device)
    with pytest.raises(ValueError, match=r"logits are float32 \[parts, 2, more than 4\], found .* \[1, 2, 4\]"):
        route(torch.zeros(1, 2, 4, device=device), table, layout=layout, buffers=buffers, gate_column=4)
    with pytest.raises(ValueError, match=r"table is int64 \[5\], found torch.int64 \[4\]"):
        route(torch.zeros(1, 2, 5, device=device), table[:4], layout=layout, buffers=buffers, gate_column=4)
    with pytest.raises(ValueError, match=r"buffers are for 2 rows and torch\.float16, wanted 1"):
        gate_up(torch.zeros(1, 128, device=device), table.int(), layout=layout, buffers=buffers, exact=True)
    words = torch.zeros(9, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match="not 16-byte aligned"):
        table_entry(words[1:], words, host=False)
