"""Products with planes against float64 on the dequantised blocks: every format, odd sides, any company of rows."""

from __future__ import annotations

import pytest
import torch

from kernels.linear import linear, linear_pair, splits
from kernels.linear.op import holds_words
from kernels.linear.reference import linear_reference
from kernels.planes import FORMATS, FORMATS_OF_TYPE, Planes, formats_of, from_operand, join, pack, to_operand
from kernels.quant import dequantise
from kernels.quant.table import FORMATS as BLOCKS
from tests.builders.blocks import model_rows

ON_CARD = torch.cuda.is_available()
MODES = pytest.mark.parametrize("exact", [True, False], ids=["exact", "fast"])
# The first type that is stored in each format.
FIRST = {form.name: name for name in reversed(FORMATS_OF_TYPE) for form in formats_of(name)} | {"wide": "Q4_K"}
# Relative to the product's norm: fp16 weights and activations in the fast mode, float32 sums in the exact one.
BOUND = {True: 2e-6, False: 1e-3}


def product(planes: Planes, x: torch.Tensor, *, exact: bool, rows_used: int | None = None) -> torch.Tensor:
    """float32 [rows, N], from poisoned partial sums."""
    count = splits(planes.rows, planes.columns)
    out = torch.full((count, x.shape[0], planes.rows), float("nan"), device=x.device)
    used = None if rows_used is None else torch.tensor([rows_used], dtype=torch.int32, device=x.device)
    linear(to_operand(x, exact=exact), planes, out=out, exact=exact, rows_used=used)
    total = out[0].clone()
    for part in out[1:]:
        total += part
    return total


def difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


def inputs(rows: int, columns: int, device: str) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows + columns)).to(device)


# Exact products are slow in the interpreter, and to compile for a card: each way to read scales once.
EVERY = [(form, False) for form in FORMATS] + [
    (form, True) for form in ("q8", "q6k", "q5k", "q2k", "lut2s", "iq3", "full")
]


@pytest.mark.parametrize(
    ("form", "exact"), EVERY, ids=[f"{form}-{'exact' if exact else 'fast'}" for form, exact in EVERY]
)
def test_every_format_against_float64(device: str, form: str, exact: bool) -> None:
    name = FIRST[form]
    rows, columns, count = (
        (1000, 1024 if exact else 2560, 5) if ON_CARD else (32, max(BLOCKS[name].block_weights, 128), 2)
    )
    raw = model_rows(name, rows=rows, columns=columns, device=device)
    planes = pack(name, raw, columns=columns, form=form)
    x = inputs(count, columns, device)
    seen = from_operand(to_operand(x, exact=exact), columns=columns)
    wanted = seen.double() @ dequantise(raw, name, columns=columns).double().T
    found = product(planes, x, exact=exact)
    assert difference(found, wanted) < (5e-4 if form == "wide" and exact else BOUND[exact])
    if exact:
        assert difference(linear_reference(to_operand(x, exact=True), planes), found.double()) < BOUND[True]


@MODES
@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [("Q8_0", 1, 32), ("IQ4_NL", 33, 160), ("Q5_0", 32, 320), ("Q2_0", 8, 64), ("F32", 4, 96)],
)
def test_odd_sides(device: str, name: str, rows: int, columns: int, exact: bool) -> None:
    raw = model_rows(name, rows=rows, columns=columns, device=device)
    x = inputs(1, columns, device)
    seen = from_operand(to_operand(x, exact=exact), columns=columns)
    wanted = seen.double() @ dequantise(raw, name, columns=columns).double().T
    found = product(pack(name, raw, columns=columns), x, exact=exact)
    assert difference(found, wanted) < BOUND[exact]
    if ON_CARD or columns <= 64:
        assert torch.equal(found, product(pack(name, raw, columns=columns), x, exact=exact))


LARGE = [(form, shape, False) for form in ("q8", "q4k", "lut4", "full") for shape in ((16512, 2560), (10240, 320))]
LARGE += [
    (form, shape, exact) for form in ("q8", "full") for shape in ((2560, 6144), (544, 2560)) for exact in (False, True)
]
# The last: up to eight rows have all words of a program at once, three chunks of them.
SMALL = [("q8", (33, 128), True), ("q8", (33, 128), False), ("q4k", (32, 2688), False)]
COMPANY = LARGE if ON_CARD else SMALL


@pytest.mark.parametrize(
    ("form", "shape", "exact"),
    COMPANY,
    ids=[f"{form}-{shape[0]}x{shape[1]}-{'exact' if exact else 'fast'}" for form, shape, exact in COMPANY],
)
def test_a_row_has_the_same_bits_in_any_company(device: str, form: str, shape: tuple[int, int], exact: bool) -> None:
    rows, columns = shape
    name = {"q8": "Q8_0", "q4k": "Q4_K", "lut4": "IQ4_NL", "full": "F32"}[form]
    if name == "Q4_K" and columns % 256:
        name, form = "Q5_0", "q5"
    planes = pack(name, model_rows(name, rows=rows, columns=columns, device=device), columns=columns, form=form)
    x = inputs(40, columns, device)
    alone = {row: product(planes, x[row : row + 1], exact=exact) for row in ((0, 3, 39) if ON_CARD else (0, 39))}
    for count in (2, 4, 8, 16, 24, 32, 40) if ON_CARD else (9,):
        window = x[:count].clone()
        window[count - 1] = x[39]
        found = product(planes, window, exact=exact)
        assert torch.equal(found[:1], alone[0])
        assert torch.equal(found[count - 1 :], alone[39])
        if count > 4 and 3 in alone:
            assert torch.equal(found[3:4], alone[3])


@pytest.mark.parametrize(
    ("form", "sides", "rows", "exact", "holds"),
    [
        ("q8", (2560, 6144), 1, False, True),  # the out-projection of the model's layers: 12 splits of four chunks
        ("q8", (2560, 6144), 8, False, True),
        ("q8", (2560, 6144), 9, False, False),
        ("q8", (2560, 6144), 1, True, False),
        ("full", (513, 2560), 1, False, False),  # too many registers
        ("q8", (16512, 2560), 1, False, False),  # enough programs
        ("q8", (33, 128), 1, False, False),  # one chunk
        ("q8", (32, 12800), 1, False, False),  # ten chunks
        ("q4k", (32, 6400), 1, False, True),  # five
    ],
)
def test_which_products_hold_their_words(
    form: str, sides: tuple[int, int], rows: int, exact: bool, holds: bool
) -> None:
    planes = Planes(form, *sides, torch.empty(0, dtype=torch.int32))
    assert holds_words(planes, rows=rows, exact=exact) is holds


@pytest.mark.parametrize("name", ["Q8_0", "IQ3_S", "BF16"])
def test_held_words_of_other_forms(device: str, name: str) -> None:
    raw = model_rows(name, rows=32, columns=1792, device=device)
    planes, x = pack(name, raw, columns=1792), inputs(2, 1792, device)
    assert holds_words(planes, rows=2, exact=False)
    seen = from_operand(to_operand(x, exact=False), columns=1792)
    wanted = seen.double() @ dequantise(raw, name, columns=1792).double().T
    assert difference(product(planes, x, exact=False), wanted) < BOUND[False]
    assert not product(planes, x, exact=False, rows_used=1)[1].any()


def test_padded_rows_are_zero_and_touch_nothing(device: str) -> None:
    planes = pack("Q8_0", model_rows("Q8_0", rows=32, columns=128, device=device), columns=128)
    x = inputs(3, 128, device)
    x[2] = float("nan")
    found = product(planes, x, exact=True, rows_used=2)
    assert torch.equal(found[:2], product(planes, x[:2], exact=True))
    assert not found[2].any()


def test_matrices_that_share_their_input_are_one_launch(device: str) -> None:
    raws = [model_rows("F32", rows=rows, columns=256, seed=rows, device=device) for rows in (33, 1)]
    parts = [pack("F32", raw, columns=256) for raw in raws]
    joined, starts = join(parts)
    x = inputs(2, 256, device)
    found = product(joined, x, exact=False)
    wanted = from_operand(to_operand(x, exact=False), columns=256).double() @ raws[1].view(torch.float32).double().T
    assert difference(found[:, starts[1]], wanted[:, 0]) < 2e-6  # float32 weights stay so in the fast mode


@pytest.mark.parametrize(
    ("x", "out", "exact", "words"),
    [
        (torch.zeros(1, 128), torch.zeros(1, 1, 32), False, r"contiguous torch.float16 \[rows, 128\]"),
        (torch.zeros(1, 96), torch.zeros(1, 1, 32), True, r"\[rows, 128\], found .* \[1, 96\]"),
        (torch.zeros(41, 128), torch.zeros(1, 41, 32), True, "1 to 40 rows, found 41"),
        (torch.zeros(2, 128), torch.zeros(1, 1, 32), True, r"float32 \[1, 2, 32\], found .* \[1, 1, 32\]"),
    ],
    ids=["wrong-type", "not-padded", "too-many-rows", "wrong-out"],
)
def test_refusals_are_sentences(x: torch.Tensor, out: torch.Tensor, exact: bool, words: str) -> None:
    planes = pack("Q8_0", model_rows("Q8_0", rows=32, columns=128), columns=128)
    with pytest.raises(ValueError, match=words):
        linear(x, planes, out=out, exact=exact)


@MODES
def test_a_pair_in_one_launch_equals_two(device: str, exact: bool) -> None:
    columns, rows = 256, 3
    large = pack("Q8_0", model_rows("Q8_0", rows=96, columns=columns, device=device), columns=columns)
    small = pack("F32", model_rows("F32", rows=40, columns=columns, device=device), columns=columns)
    x = inputs(rows, columns, device)
    outs = [
        torch.full((splits(one.rows, columns), rows, one.rows), float("nan"), device=device) for one in (large, small)
    ]
    used = torch.tensor([2], dtype=torch.int32, device=device)
    linear_pair(to_operand(x, exact=exact), large, small, out=outs[0], small_out=outs[1], exact=exact, rows_used=used)
    for one, out in zip((large, small), outs, strict=True):
        torch.testing.assert_close(out.sum(0), product(one, x, exact=exact, rows_used=2), rtol=1e-6, atol=1e-6)
        assert out[:, 2].eq(0).all()


def test_a_pair_has_one_operand(device: str) -> None:
    large, small = (pack("F32", model_rows("F32", rows=4, columns=n, device=device), columns=n) for n in (128, 256))
    out = torch.zeros(1, 1, 4, device=device)
    with pytest.raises(ValueError, match="128 and 256 inputs"):
        linear_pair(to_operand(inputs(1, 128, device), exact=False), large, small, out=out, small_out=out, exact=False)
