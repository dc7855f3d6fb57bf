"""Planes: every ggml type packed and unpacked again, odd shapes, joining, gate and up rows of two types, refusals."""

from __future__ import annotations

import pytest
import torch

from kernels.planes import (
    FORMATS,
    FORMATS_OF_TYPE,
    choose_format,
    common_format,
    formats_of,
    from_operand,
    join,
    operand_columns,
    pack,
    pack_gate_up,
    stored_bits,
    to_operand,
    unpack,
    word_count,
)
from kernels.quant import SUPPORTED, dequantise
from kernels.quant.table import FORMATS as BLOCKS
from tests.builders.blocks import model_rows

# Bits a weight as stored; the file's own are in the comments where they differ by more than a quarter.
STORED = {
    "F32": 32, "F16": 16, "BF16": 16, "Q8_0": 8.5, "Q6_K": 6.625, "Q5_K": 5.75, "Q5_1": 6, "Q5_0": 5.5,
    "Q4_K": 4.75, "Q4_1": 5, "Q4_0": 4.5, "Q3_K": 3.625, "Q2_K": 2.75, "Q2_0": 2.5, "IQ4_NL": 4.5, "IQ4_XS": 4.375,
    "IQ3_S": 4.25,  # 3.4375; compact 3.5
    "IQ3_XXS": 4.25,  # 3.0625
    "IQ2_S": 3.375,  # 2.5625
    "IQ2_XS": 3.375,  # 2.3125
    "IQ2_XXS": 3.25,  # 2.0625
    "IQ1_S": 3.25,  # 1.5625
    "IQ1_M": 3.375,  # 1.75
}  # fmt: skip
EXACT = [(name, form.name) for name in FORMATS_OF_TYPE for form in formats_of(name) if form.name != "wide"]
WIDE = [name for name in FORMATS_OF_TYPE if formats_of(name)[-1].name == "wide"]
SHAPES = [(5, 768), (70, 256), (33, 640), (32, 320), (1, 160), (2, 64), (3, 32)]


def shapes_of(name: str) -> list[tuple[int, int]]:
    return [(rows, columns) for rows, columns in SHAPES if columns % BLOCKS[name].block_weights == 0]


def test_every_type_has_planes() -> None:
    assert tuple(FORMATS_OF_TYPE) == tuple(sorted(SUPPORTED, key=list(FORMATS_OF_TYPE).index))
    assert {name: stored_bits(choose_format(name)) for name in SUPPORTED} == STORED


@pytest.mark.parametrize(("name", "form"), EXACT)
def test_unpacked_planes_equal_the_blocks(device: str, name: str, form: str) -> None:
    for rows, columns in shapes_of(name):
        raw = model_rows(name, rows=rows, columns=columns, seed=columns, device=device)
        planes = pack(name, raw, columns=columns, form=form)
        assert planes.words.shape == (word_count(FORMATS[form], rows=rows, columns=columns),)
        assert torch.equal(unpack(planes), dequantise(raw, name, columns=columns)), (rows, columns)


@pytest.mark.parametrize("name", WIDE)
def test_wide_rounds_scales_and_offsets_to_half(device: str, name: str) -> None:
    rows, columns = 40, 512
    raw = model_rows(name, rows=rows, columns=columns, device=device)
    values = dequantise(raw, name, columns=columns)
    found = unpack(pack(name, raw, columns=columns, form="wide"))
    largest = values.abs().amax()
    assert (found - values).abs().amax() <= 1.2e-3 * largest
    assert (found - values).norm() <= 1e-3 * values.norm()


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K", "IQ3_S", "BF16"])
def test_slices_of_strips_equal_the_whole(device: str, name: str) -> None:
    rows, columns = 3 * 32 + 7, 512
    raw = model_rows(name, rows=rows, columns=columns, device=device)
    whole = pack(name, raw, columns=columns)
    words = torch.full_like(whole.words, -1)
    strip = whole.form.strip_words(columns)
    for first, last in ((0, 32), (32, 96), (96, rows)):
        part = words[first // 32 * strip : -(-last // 32) * strip]
        pack(name, raw[first:last], columns=columns, out=part)
    assert torch.equal(words, whole.words)


def test_rows_of_very_different_size_keep_their_bits(device: str) -> None:
    raw = model_rows("Q8_0", rows=32, columns=256, device=device).clone()
    blocks = raw.view(32, 8, 34)
    for row in range(32):  # 2^-14 to 2^3 or so
        scale = torch.tensor([2.0 ** (row / 2 - 14) * 1.3], dtype=torch.float16).view(torch.uint8)
        blocks[row, :, :2] = scale.to(device)
    assert torch.equal(unpack(pack("Q8_0", raw, columns=256)), dequantise(raw, "Q8_0", columns=256))


@pytest.mark.parametrize(
    ("gate", "up", "form"),
    [("IQ3_S", "IQ3_S", "i4"), ("Q4_K", "Q4_K", "q4k"), ("IQ2_S", "IQ2_XS", "lut2s"), ("IQ1_S", "IQ2_XXS", "wide"),
     ("Q4_K", "Q6_K", "wide"), ("BF16", "F32", "full"), ("F16", "BF16", "half")],
)  # fmt: skip
def test_gate_and_up_rows_take_turns(device: str, gate: str, up: str, form: str) -> None:
    ff, columns = 48, 256
    raws = [model_rows(name, rows=ff, columns=columns, seed=at, device=device) for at, name in enumerate((gate, up))]
    planes = pack_gate_up((gate, raws[0]), (up, raws[1]), columns=columns)
    assert planes.format == form == common_format(gate, up).name
    assert planes.rows == 256
    halves = unpack(planes).view(8, 2, 16, columns)
    for half, (name, raw) in enumerate(zip((gate, up), raws, strict=True)):
        values = dequantise(raw, name, columns=columns)
        found = halves[:, half].reshape(128, columns)
        assert not found[ff:].any()
        assert (found[:ff] - values).norm() <= (1e-3 if form == "wide" else 0) * values.norm()


def test_joined_matrices_lie_below_each_other(device: str) -> None:
    raws = [model_rows("Q8_0", rows=rows, columns=160, seed=rows, device=device) for rows in (40, 1, 32)]
    joined, starts = join([pack("Q8_0", raw, columns=160) for raw in raws])
    assert (joined.rows, starts) == (128, (0, 64, 96))
    values = unpack(joined)
    for raw, start in zip(raws, starts, strict=True):
        assert torch.equal(values[start : start + raw.shape[0]], dequantise(raw, "Q8_0", columns=160))
    assert not values[40:64].any()


@pytest.mark.parametrize("columns", [640, 160, 32])
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "fast"])
def test_operand_rows_come_back(device: str, columns: int, exact: bool) -> None:
    x = torch.randn(3, columns, device=device)
    rows = to_operand(x, exact=exact)
    assert rows.shape == (3, operand_columns(columns))
    wanted = x if exact else x.to(torch.float16).to(torch.float32)
    assert torch.equal(from_operand(rows, columns=columns), wanted)
    assert rows.float().abs().sum(1).allclose(wanted.abs().sum(1))


def test_refusals_are_sentences(device: str) -> None:
    raw = model_rows("Q4_K", rows=2, columns=256, device=device)
    with pytest.raises(ValueError, match=r"Q4_K does not fit format i4; allowed: q4k, wide"):
        pack("Q4_K", raw, columns=256, form="i4")
    with pytest.raises(ValueError, match=r"TQ1_0 has no planes; supported: F32"):
        pack("TQ1_0", raw, columns=256)
    with pytest.raises(ValueError, match=r"shape \[rows, 288\], found \[2, 144\]"):
        pack("Q4_K", raw, columns=512)
    with pytest.raises(ValueError, match=r"out is int32"):
        pack("Q4_K", raw, columns=256, out=torch.zeros(3, dtype=torch.int32, device=device))
    with pytest.raises(ValueError, match=r"no plane format .* holds both F32 and Q4_K"):
        common_format("F32", "Q4_K")
    with pytest.raises(ValueError, match=r"differ in format or columns"):
        join([pack("Q4_K", raw, columns=256), pack("Q4_K", raw, columns=256, form="wide")])
