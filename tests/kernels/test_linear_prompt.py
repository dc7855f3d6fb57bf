"""Products of many rows with planes against float64: every format, odd sides, joined views, poisoned rooms."""

from __future__ import annotations

import pytest
import torch

from kernels.linear.prompt import Room, multiply, room_halves
from kernels.planes import FORMATS, FORMATS_OF_TYPE, Planes, formats_of, pack
from kernels.quant import dequantise
from kernels.quant.table import FORMATS as BLOCKS
from tests.builders.blocks import model_rows

ON_CARD = torch.cuda.is_available()
FIRST = {form.name: name for name in reversed(FORMATS_OF_TYPE) for form in formats_of(name)} | {"wide": "Q4_K"}
# Relative to the product's norm: fp16 weights and results in the fast mode, float32 in the exact one.
BOUND = {True: 2e-6, False: 1e-3}


def poisoned(planes: Planes, *, exact: bool) -> Room:
    """A room that holds NaN, and a little more than it must."""
    room = Room(room_halves([planes], exact=exact) + 6, device=planes.words.device)
    for part in room.take(planes, exact=exact, aligned=True):
        if part is not None:
            part.fill_(float("nan"))
    return room


def difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


def inputs(rows: int, columns: int, device: str, *, exact: bool) -> torch.Tensor:
    """Rows of a wider tensor, as a joined product leaves them."""
    whole = torch.randn(rows, columns + 3, generator=torch.Generator().manual_seed(rows + columns))
    return whole.to(torch.float32 if exact else torch.float16).to(device)[:, :columns]


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "fast"])
@pytest.mark.parametrize("form", FORMATS)
def test_every_format_against_float64(device: str, form: str, exact: bool) -> None:
    name = FIRST[form]
    rows, columns, count = (1000, 2560, 515) if ON_CARD else (40, max(BLOCKS[name].block_weights, 128), 17)
    raw = model_rows(name, rows=rows, columns=columns, device=device)
    planes = pack(name, raw, columns=columns, form=form)
    x = inputs(count, columns, device, exact=exact)
    wanted = x.double() @ dequantise(raw, name, columns=columns).double().T
    found = multiply(x, planes, room=poisoned(planes, exact=exact), exact=exact)
    assert found.dtype == (torch.float32 if exact or form == "full" else torch.float16)
    bound = 5e-4 if form == "wide" and exact else 2e-6 if form == "full" else BOUND[exact]
    assert difference(found, wanted) < bound


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "fast"])
@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [("Q8_0", 1, 32), ("IQ4_NL", 33, 160), ("Q5_0", 130, 320), ("Q2_0", 8, 64), ("F32", 5, 96)],
)
def test_odd_sides(device: str, name: str, rows: int, columns: int, exact: bool) -> None:
    raw = model_rows(name, rows=rows, columns=columns, device=device)
    planes = pack(name, raw, columns=columns)
    x = inputs(3, columns, device, exact=exact)
    wanted = x.double() @ dequantise(raw, name, columns=columns).double().T
    found = multiply(x, planes, room=poisoned(planes, exact=exact), exact=exact, dtype=torch.float32)
    assert found.dtype == torch.float32
    assert difference(found, wanted) < BOUND[exact]


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "fast"])
@pytest.mark.parametrize(
    ("name", "rows"),
    [("F32", 513 if ON_CARD else 33), ("F32", 5), ("F32", 64), ("Q8_0", 17)],
    ids=["one row more", "few rows", "whole", "codes"],
)
def test_rows_apart_are_the_same_product_between_zeros(device: str, name: str, rows: int, exact: bool) -> None:
    columns = 2560 if ON_CARD else 96
    planes = pack(name, model_rows(name, rows=rows, columns=columns, device=device), columns=columns)
    x, width = inputs(19, columns, device, exact=exact), -(-rows // 16) * 16
    room = poisoned(planes, exact=exact)
    together = multiply(x, planes, room=room, exact=exact)
    for _ in range(2):
        found = multiply(x, planes, room=room, exact=exact, apart=True)
        assert (found.shape, found.stride(), found.dtype) == ((19, rows), (width, 1), together.dtype)
        assert difference(found, together.double()) < BOUND[exact or name == "F32"]
        assert not found.as_strided((19, width), (width, 1))[:, rows:].any()


@pytest.mark.parametrize(
    ("x", "halves", "words"),
    [
        (torch.zeros(2, 128), 4096, r"float16 \[rows, 128\] of adjacent values, found torch.float32"),
        (torch.zeros(2, 96, dtype=torch.float16), 4096, r"found torch.float16 \[2, 96\]"),
        (torch.zeros(128, 2, dtype=torch.float16).t(), 4096, r"with strides \(1, 2\)"),
        (torch.zeros(2, 128, dtype=torch.float16), 4095, r"\[32, 128\] of q8 does not fit a room of 4095"),
    ],
    ids=["wrong-type", "wrong-width", "columns-apart", "room-too-small"],
)
def test_refusals_are_sentences(x: torch.Tensor, halves: int, words: str) -> None:
    planes = pack("Q8_0", model_rows("Q8_0", rows=32, columns=128), columns=128)
    with pytest.raises(ValueError, match=words):
        multiply(x, planes, room=Room(halves, device="cpu"), exact=False)
