"""Prompt chunks of recorded shapes: filled up with rows of nobody, replayed anywhere, with the bits of launches."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from appliance.model.qwen4exp import prompt_footprint
from appliance.model.qwen4exp.chunk_shapes import ChunkShape, ChunkShapes
from appliance.model.qwen4exp.device import prompt
from appliance.model.qwen4exp.device.model import DeviceModel
from appliance.model.qwen4exp.prompt_footprint import kept_bytes
from kernels.attention import prompt as attention
from kernels.qsa import prompt as selection
from tests.device.models import ON_CARD, load, open_slot, window
from tests.device.test_oracle_device import expected, near

ROWS = (16, 64, 256) if ON_CARD else (16, 20)
LONGEST = 300


@cache
def loaded(*, plain: bool = True, split: tuple[int, ...] = (), recorded: bool = True) -> DeviceModel:
    return load(
        "base4",
        tokens=LONGEST + 20 if ON_CARD else 48,
        chunk_rows=ROWS[-1],
        recorded_rows=ROWS if recorded else (),
        layer_split=split,
        plain=plain,
    )


def read(model: DeviceModel, ids: list[int], parts: tuple[int, ...], *, slot: int = 1) -> list[NDArray[np.float32]]:
    """Logits of every part's last row, and of a window after them."""
    open_slot(model, slot)
    found, done = [], 0
    for size in (*parts, 1):
        some, done = ids[done : done + size], done + size
        found.append(window(model, slot, some, following=ids[done], logits_from=len(some) - 1)[0])
    return found


def prompt_of(longest: int) -> list[int]:
    return [int(t) for t in expected("base4")[f"p{longest}_ids"]]


@pytest.mark.parametrize("split", [(), (2,)], ids=str)
@pytest.mark.parametrize("parts", [(14, 5), (16, 3)] if ON_CARD else [(14, 4)], ids=str)
def test_a_chunk_that_is_filled_up_and_windows_after_it(parts: tuple[int, ...], split: tuple[int, ...]) -> None:
    arrays = expected("base4")
    ends = [parts[0] - 1, sum(parts) - 1]
    found = read(loaded(split=split), prompt_of(20), (parts[0], parts[1] - 1))
    near(found[0], arrays["p20_logits"][ends[:1]])
    near(found[-1], arrays["p20_logits"][ends[1:]])


def test_rows_of_nobody_are_never_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their tokens are, and whatever memory held before."""
    ids, model, found = prompt_of(20), loaded(), []
    words_of = prompt.words_of
    for token in (0, 5):

        def filled(*, rows: int, token: int = token, **given: object) -> torch.Tensor:
            words = words_of(rows=rows, **given)  # type: ignore[arg-type]
            words[8 + len(given["tokens"]) :] = token  # type: ignore[arg-type]
            return words

        monkeypatch.setattr(prompt, "words_of", filled)
        found.append(read(model, ids, (14,)))
    for a, b in zip(*found, strict=True):
        assert np.array_equal(a, b)


def test_stages_give_the_bits_of_one() -> None:
    ids = prompt_of(20)
    for a, b in zip(read(loaded(), ids, (15,)), read(loaded(split=(1, 3)), ids, (15,)), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.skipif(not ON_CARD, reason="needs a CUDA card")
@pytest.mark.parametrize("split", [(), (2,)], ids=str)
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "halves"])
def test_graphs_give_the_bits_of_launches(split: tuple[int, ...], exact: bool) -> None:
    """At several places of several slots, with texts that are seen whole and such that are not."""
    model = load(
        "base4", tokens=LONGEST + 20, chunk_rows=ROWS[-1], recorded_rows=ROWS, layer_split=split, plain=False,
        exact=exact, kv_type="f32" if exact else "bf16",
    )  # fmt: skip
    prompts = model.launcher.prompts
    assert prompts is not None
    shapes = list(prompts.shapes())
    for shape in shapes:
        prompts.record(shape)
        assert not prompts.missing(shape)
    assert prompts.captured == len(shapes) * (1 + len(split))
    ids = prompt_of(300)
    for slot, parts in enumerate([(256, 16, 20), (64, 64, 17, 100), (200, 64), (15, 14, 230)]):
        found = []
        for replaying in (True, False):
            prompts.replaying = replaying
            found.append(read(model, ids, parts, slot=slot % 2))
        for a, b in zip(*found, strict=True):
            assert np.isfinite(a).all()
            assert np.array_equal(a, b)
    model.close()


@pytest.mark.skipif(not ON_CARD, reason="needs a CUDA card")
def test_shapes_are_recorded_while_nobody_waits() -> None:
    model = loaded(plain=False)
    while model.prepare():
        pass
    prompts = model.launcher.prompts
    assert prompts is not None
    assert prompts.captured == len(list(prompts.shapes()))


def test_what_cannot_be_recorded_is_launched(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    prompts = loaded().launcher.prompts
    assert prompts is not None
    shape, one = next(prompts.shapes()), prompts._passes[0]

    def fail(shape: ChunkShape) -> None:
        raise torch.OutOfMemoryError(f"out of memory for {shape.rows} rows\nand much more")

    monkeypatch.setattr(one, "_recording", True)
    monkeypatch.setattr(one, "_record", fail)
    assert prompts.missing(shape)
    prompts.record(shape)
    assert not prompts.missing(shape)
    assert "event=chunks_not_recorded device=" in caplog.text
    assert f"reason='out of memory for {shape.rows} rows'" in caplog.text
    read(loaded(), prompt_of(20), (14,))


def test_experts_in_ram_are_launched_one_by_one() -> None:
    """And chunks are then no longer than they are."""
    whole = loaded(recorded=False)
    store = whole.parts.stages[0].store
    assert store is not None
    part = load(
        "base4", tokens=48, chunk_rows=16, recorded_rows=(16,), expert_pool_bytes=round(store.pool.nbytes * 0.5)
    )
    assert part.launcher.prompts is not None
    assert not list(part.launcher.prompts.shapes())
    part.close()


def test_the_placement_knows_what_is_kept() -> None:
    """Tokens and streams of the longest shape, and the kernels' own bounds."""
    model, none = loaded(), loaded(recorded=False)
    sizes = [one.launcher.prompts.size_bytes for one in (model, none) if one.launcher.prompts is not None]
    assert sizes[0] - sizes[1] == kept_bytes(model.spec, rows=ROWS[-1])
    bounds = (prompt_footprint.LINE_BYTES, prompt_footprint.SCORE_VALUES, prompt_footprint.LIST_BLOCKS)
    assert bounds == (attention.LINE_BYTES, selection.SCORE_VALUES, selection.LIST)


@pytest.mark.parametrize(
    ("start", "count", "found"),
    [
        pytest.param(0, 14, ChunkShape(16, 35), id="filled up"),
        pytest.param(0, 16, ChunkShape(16, 35), id="just right"),
        pytest.param(19, 16, ChunkShape(16, 35), id="the longest text seen whole"),
        pytest.param(20, 16, ChunkShape(16, 70), id="the next step"),
        pytest.param(60, 17, ChunkShape(64, 100), id="the last step"),
        pytest.param(84, 16, ChunkShape(16, 100), id="to the end"),
        pytest.param(0, 65, None, id="longer than any"),
    ],
)
def test_the_shape_of_a_chunk(start: int, count: int, found: ChunkShape | None) -> None:
    shapes = ChunkShapes((64, 16), dense=35, most=100)
    assert shapes.of(start=start, count=count) == found
    assert found is None or found in list(shapes.all())


def test_shapes_that_cannot_come_are_not_among_them() -> None:
    assert list(ChunkShapes((16, 64, 256), dense=40, most=80).all()) == [
        ChunkShape(16, 40), ChunkShape(64, 40), ChunkShape(16, 80), ChunkShape(64, 80), ChunkShape(256, 80),
    ]  # fmt: skip
    assert list(ChunkShapes((), dense=40, most=80).all()) == []
