"""Experts over many rows against float64: both forms, odd rows, idle and busy experts, tiles that are not full."""

from __future__ import annotations

import pytest
import torch

from kernels.experts.prompt import (
    ChunkExperts,
    ExpertPass,
    choose_experts,
    run_experts_chunk,
    shared_matrices,
    sort_pairs,
    tile_rows,
)
from kernels.experts.reference import best_experts, experts_reference
from kernels.linear.prompt import Room, room_halves
from tests.kernels.test_experts import CASES, LAYERS, Layer, difference, make_layer

ON_CARD = torch.cuda.is_available()


def parts_of(layer: Layer) -> ChunkExperts:
    layout = layer.layout
    passes = [ExpertPass(layer.table, form) for form in ((0,) if layout.kind == layout.host_kind else (0, 1))]
    return ChunkExperts(layout=layout, anchor=layer.anchor, shared=layer.words[-1], passes=passes)


def logits_of(rows: int, experts: int, device: str, *, skew: float = 0.0) -> torch.Tensor:
    """[rows, columns]; with skew, the first expert is busy and the last idle."""
    found = torch.randn(rows, experts + 5, generator=torch.Generator().manual_seed(rows))
    found[:, 0] += skew
    found[:, experts - 1] -= skew
    return found.to(device)


@pytest.mark.parametrize(
    ("kind", "exact"), CASES, ids=[f"{kind}-{'exact' if exact else 'fast'}" for kind, exact in CASES]
)
@pytest.mark.parametrize("rows", [513, 37, 3000] if ON_CARD else [19], ids=str)
@pytest.mark.parametrize("skew", [0.0, 30.0], ids=["even", "skewed"])
def test_mixture_against_float64(device: str, kind: str, exact: bool, rows: int, skew: float) -> None:
    (hidden, _, _, experts, used), _ = LAYERS[kind]
    layer = make_layer(device, kind)
    parts = parts_of(layer)
    x = torch.randn(rows, hidden, generator=torch.Generator().manual_seed(rows)).to(device)
    x = x if exact else x.to(torch.float16)
    logits = logits_of(rows, experts, device, skew=skew)
    counts = torch.zeros(experts, dtype=torch.int32, device=device)
    choice = choose_experts(logits, layout=layer.layout, gate_column=experts + 4, counts=counts)
    total = logits[:, [*range(experts), -1]].double()
    best = torch.tensor([best_experts(row, used=used)[0] for row in total[:, :-1].cpu()])
    assert torch.equal(choice.ids[:, :used].long().cpu(), best)
    assert torch.equal(counts.long().cpu(), torch.bincount(best.flatten(), minlength=experts))
    room = Room(room_halves(shared_matrices(parts), exact=exact), device=device)
    found = torch.full((rows, used + 1, hidden), float("nan"), dtype=x.dtype, device=device)
    run_experts_chunk(x, choice, experts=parts, room=room, exact=exact, out=found)
    wanted = experts_reference(x.double(), total, layer.weights, used=used)
    assert difference(found, wanted) < (3e-6 if exact else 2e-3)


def test_logits_may_lie_apart(device: str) -> None:
    layout = make_layer(device, "one-form").layout
    logits = logits_of(9, layout.experts, device)
    wide = torch.full((9, 2 * logits.shape[1] + 1), float("nan"), device=device)
    wide[:, : logits.shape[1]] = logits
    together, apart = (
        choose_experts(some, layout=layout, gate_column=layout.experts + 4)
        for some in (logits, wide[:, : logits.shape[1]])
    )
    assert torch.equal(together.ids, apart.ids)
    used = layout.used + 1
    assert torch.equal(together.weights[:, :used], apart.weights[:, :used])


@pytest.mark.parametrize("rows", [1, 16, 33], ids=str)
def test_pairs_are_sorted_and_every_tile_has_one_expert(device: str, rows: int) -> None:
    layout = make_layer(device, "one-form").layout
    choice = choose_experts(
        logits_of(rows, layout.experts, device, skew=2.0), layout=layout, gate_column=layout.experts + 4
    )
    tiles = sort_pairs(choice, layout=layout, size=16)
    flat = choice.ids[:, : layout.used].flatten()
    order = torch.sort(flat, stable=True).indices
    assert torch.equal(tiles.row.long(), order // layout.used)
    assert torch.equal(tiles.out.long(), order // layout.used * (layout.used + 1) + order % layout.used)
    assert torch.equal(tiles.share, choice.weights[:, : layout.used].flatten()[order])
    wanted = []
    for expert, count in enumerate(torch.bincount(flat, minlength=layout.experts).tolist()):
        first = int((flat < expert).sum())
        wanted += [(expert, start) for start in range(first, first + count, 16)]
    listed = tiles.tile_expert.tolist()
    assert list(zip(listed, tiles.tile_first.tolist(), strict=True))[: len(wanted)] == wanted
    assert set(listed[len(wanted) :]) <= {-1}


def test_rows_of_nobody_choose_nobody(device: str) -> None:
    """They are in no tile and counted nowhere, and their results are not written."""
    layer = make_layer(device, "one-form")
    layout, rows, live = layer.layout, 20, 13
    logits = logits_of(rows, layout.experts, device, skew=2.0)
    x = torch.randn(rows, layout.kind.hidden, generator=torch.Generator().manual_seed(3)).to(device)
    x[live:] = float("nan")
    outs, counted = [], []
    for count in (live, rows):
        counts = torch.zeros(layout.experts, dtype=torch.int32, device=device)
        used = torch.tensor([live], dtype=torch.int32, device=device)
        some = logits[:count].contiguous()
        choice = choose_experts(some, layout=layout, gate_column=layout.experts + 4, counts=counts, used=used)
        assert (choice.ids[live:] == -1).all()
        out = torch.full((count, layout.used + 1, layout.kind.hidden), 7.5, device=device)
        room = Room(room_halves(shared_matrices(parts_of(layer)), exact=True), device=device)
        run_experts_chunk(x[:count], choice, experts=parts_of(layer), room=room, exact=True, out=out)
        assert (out[live:, : layout.used] == 7.5).all()
        outs.append(out[:live, : layout.used])
        counted.append(counts)
    assert torch.equal(*outs)
    assert torch.equal(*counted)
    assert int(counted[0].sum()) == live * layout.used


def test_tiles_grow_with_the_rows() -> None:
    layout = make_layer("cpu", "one-form").layout
    assert [tile_rows(rows, layout, exact=False) for rows in (16, 40, 4000)] == [16, 32, 64]
    assert tile_rows(4000, layout, exact=True) == 16


def test_refusals_are_sentences(device: str) -> None:
    layer = make_layer(device, "one-form")
    layout, hidden = layer.layout, layer.layout.kind.hidden
    last, shape = layout.experts - 1, rf"\[2, {layout.used + 1}, {hidden}\]"
    few = torch.zeros(2, last, device=device)
    with pytest.raises(ValueError, match=rf"more than {last}\] of adjacent values, found torch.float32 \[2, {last}\]"):
        choose_experts(few, layout=layout, gate_column=last)
    choice = choose_experts(torch.zeros(2, last + 1, device=device), layout=layout, gate_column=last)
    common = {"experts": parts_of(layer), "room": Room(8, device=device), "exact": False}
    x = torch.zeros(2, hidden, device=device)
    out = torch.zeros(2, layout.used + 1, hidden, dtype=torch.float16, device=device)
    with pytest.raises(ValueError, match=rf"x is torch.float16 \[2, {hidden}\], found torch.float32 \[2, {hidden}\]"):
        run_experts_chunk(x, choice, out=out, **common)
    with pytest.raises(ValueError, match=rf"out is contiguous torch.float16 {shape}"):
        run_experts_chunk(x.half(), choice, out=out[:, 1:], **common)
