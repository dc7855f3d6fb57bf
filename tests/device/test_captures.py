"""Which windows are captured before they come: each once, a usual office's first, the scheduler's among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
import torch

from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.chunk_shapes import ChunkShape, ChunkShapes
from appliance.model.qwen4exp.device.captures import Captures, beside, coming
from appliance.model.qwen4exp.device.shapes import StepShape
from appliance.model.qwen4exp.device.tables import bucket_of


def plan(slots: int, draft_max: int, *, chunk_rows: int = 512, most: int = 40) -> LoadPlan:
    return LoadPlan(
        device="cpu",
        slots=slots,
        pages=64,
        page_tokens=16,
        max_tokens=256,
        max_window_rows=most,
        draft_max=draft_max,
        chunk_rows=chunk_rows,
    )


@pytest.mark.parametrize(("slots", "draft_max"), [(1, 4), (2, 3), (8, 4), (8, 0), (16, 4)])
def test_every_shape_once_and_none_that_cannot_be(slots: int, draft_max: int) -> None:
    found = list(coming(plan(slots, draft_max), drafts=draft_max > 0))
    assert len(set(found)) == len(found)
    assert all(shape.spans <= bucket_of(slots) and shape.spans <= shape.rows <= 40 for shape in found)
    assert all(shape.steps <= draft_max for shape in found)
    assert any(shape.chunk for shape in found)


def test_the_likeliest_come_first() -> None:
    found = list(coming(plan(8, 4), drafts=True))
    alone, ends, short, most = found[:3], found[3:6], found[6:9], found[21:24]
    assert {(shape.rows, shape.spans, shape.steps, shape.chunk) for shape in alone} == {(6, 1, 4, False)}
    assert {(shape.rows, shape.spans, shape.steps, shape.chunk) for shape in ends} == {(1, 1, 4, True)}
    assert {(shape.rows, shape.spans, shape.steps, shape.chunk) for shape in short} == {(16, 1, 4, False)}
    assert {(shape.rows, shape.spans) for shape in most} == {(40, 8)}
    assert len({shape.draws for shape in alone}) == 3


class Counting:
    """A launcher that captures at once."""

    def __init__(self) -> None:
        self.shapes: list[StepShape | ChunkShape] = []

    def chunk_shapes(self) -> Iterator[ChunkShape]:
        return ChunkShapes((64,), dense=100, most=256).all()

    def missing(self, shape: StepShape | ChunkShape) -> bool:
        return shape not in self.shapes

    def prepare(self, shape: StepShape | ChunkShape) -> None:
        self.shapes.append(shape)


@pytest.mark.parametrize("chunk_rows", [512, 0], ids=["chunks", "no chunks"])
def test_before_serving_comes_what_a_first_conversation_needs_and_no_more(
    chunk_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where capturing takes no time."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda card: (1 << 40, 1 << 40))
    launcher = Counting()
    captures = Captures(replace(plan(8, 4, chunk_rows=chunk_rows), device="cuda:0"), launcher, drafts=True)  # type: ignore[arg-type]
    captures.first()
    needed = {(6, 1, False), (1, 1, True) if chunk_rows else (16, 1, False)}
    found = [shape for shape in launcher.shapes if isinstance(shape, StepShape)]
    assert len(found) == len(launcher.shapes) == 6
    assert {(shape.rows, shape.spans, shape.chunk) for shape in found} == needed
    assert all(
        len({shape.draws for shape in found if shape.chunk == chunk}) == 3 for chunk in {c for _, _, c in needed}
    )
    assert captures.one()


def test_what_decoding_and_reading_conversations_make_is_among_them() -> None:
    slots, drafts = 8, 4
    found = {(shape.rows, shape.spans, shape.steps) for shape in coming(plan(slots, drafts), drafts=True)}
    for decoding, reading in product(range(slots + 1), (0, 1)):
        spans = decoding + reading
        if not 0 < spans <= slots:
            continue
        rows = decoding * (1 + drafts)
        for prompt in range(1, 14) if reading else (0,):
            assert (bucket_of(min(40, rows + prompt)), bucket_of(spans), drafts) in found or rows + prompt > 40


def test_a_model_without_drafts_has_no_chain() -> None:
    assert {shape.steps for shape in coming(plan(4, 4), drafts=False)} == {0}


def test_small_windows_and_no_chunks() -> None:
    found = list(coming(plan(2, 4, chunk_rows=0, most=12), drafts=True))
    assert max(shape.rows for shape in found) == 12
    assert not any(shape.chunk for shape in found)


@pytest.mark.parametrize("rows", [(), (64, 128)], ids=["no chunks", "chunks"])
def test_chunks_come_between_windows(rows: tuple[int, ...]) -> None:
    """None before what a first conversation needs, and every shape once."""
    windows, chunks = list(coming(plan(4, 4), drafts=True)), list(ChunkShapes(rows, dense=100, most=256).all())
    found = list(beside(iter(windows), iter(chunks)))
    assert [isinstance(shape, ChunkShape) for shape in found[:9]] == [False] * 7 + [bool(rows), False]
    assert [shape for shape in found if isinstance(shape, ChunkShape)] == chunks
    assert [shape for shape in found if not isinstance(shape, ChunkShape)] == windows
