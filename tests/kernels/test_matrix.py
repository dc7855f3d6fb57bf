"""Products from codes against plain float32: every ggml type, odd sizes, poisoned outputs, rows in any company."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.compiled.vector import TILE
from kernels.compiled.whole import GROUP, MOST_INPUTS
from kernels.matrix import Matrix, Part, group_sums, join, multiply, multiply_tiles, reference, stack, stored
from kernels.quant import dequantise
from kernels.quant.table import FORMATS

PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@pytest.fixture(params=["as the processor likes", "in float32"], autouse=True)
def product(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with the products that the processor likes best, and with those that each of them has."""
    if request.param == "in float32":
        monkeypatch.setattr("kernels.matrix.part.whole_kernel", lambda: 0)


def blocks(type_name: str, rows: int, columns: int, seed: int = 3) -> torch.Tensor:
    """Random blocks whose scales are finite and of ordinary size."""
    generator = torch.Generator().manual_seed(seed)
    form = FORMATS[type_name]
    if type_name in PLAIN:
        return torch.randn(rows, columns, generator=generator).to(PLAIN[type_name]).view(torch.uint8).view(rows, -1)
    shape = (rows * columns // form.block_weights, form.block_bytes)
    raw = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    for at in form.scale_offsets:
        raw[:, at + 1] = (raw[:, at + 1] & 0x87) | 0x20
    if type_name == "IQ1_M":  # its scale is spread over the upper nibbles of four words
        raw[:, 55] = (raw[:, 55] & 0x0F) | 0x20
    return raw.view(rows, -1)


def near(found: np.ndarray, wanted: torch.Tensor) -> None:
    assert np.isfinite(found).all()
    assert np.abs(found - wanted.numpy()).max() <= 2e-6 * float(wanted.abs().max())


@pytest.mark.parametrize("type_name", FORMATS)
def test_every_type_is_taken_apart_exactly(type_name: str) -> None:
    raw = blocks(type_name, 37, 512)
    part = stored(type_name, raw, columns=512)
    assert torch.equal(part.floats(), dequantise(raw, type_name, columns=512))
    assert (part.values.dtype == torch.int8) == (type_name not in PLAIN)


@pytest.mark.parametrize("type_name", FORMATS)
@pytest.mark.parametrize("rows", [1, 13])
def test_products_of_every_type(type_name: str, rows: int) -> None:
    raw = blocks(type_name, 70, 256)
    x = torch.randn(rows, 256)
    found = multiply(x.numpy(), join([stored(type_name, raw, columns=256)]))
    near(found[:, :70], reference.multiply(x, type_name, raw))
    assert not found[:, 70:].any()


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 31])
@pytest.mark.parametrize("kind", ["codes", "lows", "floats"])
def test_a_row_is_the_same_in_any_company(rows: int, kind: str) -> None:
    type_name = {"codes": "Q8_0", "lows": "Q5_1", "floats": "F32"}[kind]
    matrix = join([stored(type_name, blocks(type_name, 40, 64), columns=64)])
    x = torch.randn(rows, 64).numpy()
    whole = multiply(x, matrix)
    assert whole.shape == (rows, 2 * TILE)
    for row in range(rows):
        assert np.array_equal(multiply(x[row : row + 1], matrix)[0], whole[row])


@pytest.mark.parametrize("inputs", [32, 48, 7])
def test_inputs_that_are_no_power_of_two(inputs: int) -> None:
    weights, x = torch.randn(5, inputs), torch.randn(3, inputs)
    near(multiply(x.numpy(), join([Part(weights)]))[:, :5], x @ weights.t())


def test_some_tiles_overwrite_what_was_there() -> None:
    part = stored("Q4_K", blocks("Q4_K", 4 * TILE, 256), columns=256)
    x = torch.randn(6, 256)
    out = np.full((6, 2 * TILE), np.nan, np.float32)
    matrix = join([part])
    multiply_tiles(x.numpy(), group_sums(x.numpy(), matrix), matrix, 1, 3, out)
    near(out, x @ part.floats()[TILE : 3 * TILE].t())


def coded(matrix: Matrix) -> int:
    return matrix.codes.shape[0]


MIXED = {
    "codes then floats": ([("Q8_0", 64), ("F32", 9)], 2),
    "one scale group": ([("Q8_0", 32), ("Q4_0", 32), ("Q8_0", 5)], 3),
    "codes end inside a tile": ([("Q8_0", 40), ("F32", 3)], 0),
    "with and without lows": ([("Q8_0", 32), ("Q5_1", 32)], 2),
    "another group": ([("Q8_0", 32), ("Q6_K", 32), ("Q2_K", 7)], 3),
    "floats first": ([("F32", 32), ("Q8_0", 32)], 0),
}


@pytest.mark.parametrize(("kinds", "tiles"), MIXED.values(), ids=MIXED)
def test_joined_matrices_follow_each_other_without_gaps(kinds: list[tuple[str, int]], tiles: int) -> None:
    parts = [stored(kind, blocks(kind, rows, 256, seed=n), columns=256) for n, (kind, rows) in enumerate(kinds)]
    matrix, x = join(parts), torch.randn(4, 256)
    assert coded(matrix) == tiles
    wanted = x @ torch.cat([part.floats() for part in parts]).t()
    near(multiply(x.numpy(), matrix)[:, : wanted.shape[1]], wanted)


@pytest.mark.parametrize("kind", ["Q5_1", "F32"])
def test_parts_are_cut_divided_and_filled(kind: str) -> None:
    part = stored(kind, blocks(kind, 12, 128), columns=128)
    whole = part.floats()
    index = torch.tensor([7, 0, 11])
    assert torch.equal(part.rows(index).floats(), whole[index])
    assert torch.equal(part.inputs(64, 128).floats(), whole[:, 64:])
    assert torch.equal(part.inputs(5, 50).floats(), whole[:, 5:50])
    assert torch.equal(part.over(4).floats(), whole / 4)
    filled = part.filled(6).floats().view(2, TILE, 128)
    assert torch.equal(filled[:, :6], whole.view(2, 6, 128))
    assert not filled[:, 6:].any()
    woven = stack([part, part.over(2)], runs=3).floats().view(3, 8, 128)
    assert torch.equal(woven, torch.cat((whole.view(3, 4, 128), whole.view(3, 4, 128) / 2), 1))


@pytest.mark.parametrize(("other", "kept"), [("Q6_K", torch.int8), ("Q2_K", torch.int8), ("F16", torch.float32)])
def test_unlike_parts_are_stacked(other: str, kept: torch.dtype) -> None:
    parts = [stored(kind, blocks(kind, 2, 256), columns=256) for kind in ("Q8_0", other)]
    stacked = stack(parts, runs=1)
    assert torch.equal(stacked.floats(), torch.cat([part.floats() for part in parts]))
    assert stacked.values.dtype == kept


@pytest.mark.parametrize("size", [1e-24, 1e-3, 1.0, 1e6, 1e30])
def test_products_are_as_near_as_float32_whatever_the_size(size: float) -> None:
    part = stored("Q5_1", blocks("Q5_1", 64, 1024), columns=1024)
    x = torch.randn(9, 1024) * torch.logspace(-3, 3, 1024) * size
    found = torch.from_numpy(multiply(x.numpy(), join([part]))).double()
    weights, exact = part.floats().double(), x.double()
    wanted, most = exact @ weights.t(), exact.abs() @ weights.abs().t()
    assert float(((found - wanted).abs() / most).max()) < 3e-7


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 31, 70])
def test_what_is_no_number_stays_none_and_in_its_row(value: float, at: int) -> None:
    matrix = join([stored("Q8_0", blocks("Q8_0", 64, 96), columns=96)])
    x = torch.randn(3, 96).numpy()
    wanted = multiply(x, matrix)
    x[1, at] = value
    found = multiply(x, matrix)
    assert not np.isfinite(found[1]).any()
    assert np.array_equal(found[[0, 2]], wanted[[0, 2]])


@pytest.mark.parametrize("inputs", [MOST_INPUTS, MOST_INPUTS + GROUP])
def test_rows_too_long_for_whole_numbers(inputs: int) -> None:
    part, x = stored("Q8_0", blocks("Q8_0", 5, inputs), columns=inputs), torch.randn(2, inputs)
    near(multiply(x.numpy(), join([part]))[:, :5], x @ part.floats().t())


def test_zeros_give_zeros() -> None:
    matrix = join([stored("Q8_0", blocks("Q8_0", 64, 64), columns=64)])
    assert not multiply(np.zeros((2, 64), np.float32), matrix).any()


def test_long_matrices_are_taken_apart_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = blocks("Q4_K", 9, 256)
    whole = stored("Q4_K", raw, columns=256)
    monkeypatch.setattr("kernels.matrix.part._SLICE_WEIGHTS", 512)
    sliced = stored("Q4_K", raw, columns=256)
    assert torch.equal(sliced.floats(), whole.floats())
    assert sliced.values.dtype == torch.int8
