"""Unpacking of every ggml type: against stored blocks, against the independent gguf package, odd shapes, refusals."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from kernels.quant import SUPPORTED, count_nonfinite, dequantise, gather_rows, row_bytes
from kernels.quant.table import FORMATS

ORACLE = Path(__file__).parent.parent / "oracle" / "quants"
PLAIN = ("F32", "F16", "BF16")
BLOCKED = tuple(name for name in SUPPORTED if name not in PLAIN)
# gguf 0.19 does not know type 42.
KNOWN_TO_GGUF = tuple(name for name in SUPPORTED if name != "Q2_0")
ROW_LENGTHS = (640, 320, 160)


def random_rows(name: str, *, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """uint8 [rows, row bytes] of random blocks whose scales are finite."""
    form = FORMATS[name]
    generator = np.random.default_rng(seed)
    raw = generator.integers(0, 256, (rows * columns // form.block_weights, form.block_bytes), dtype=np.uint8)
    for at in form.scale_offsets:
        raw[:, at + 1] &= 0xBB  # clears the top exponent bit among others: never NaN or infinite
    if name in ("BF16", "F32"):
        raw[:, -1] &= 0xBF
    if name == "IQ1_M":
        raw[:, 55] &= 0xBF  # d's upper nibble is the top nibble of the last scale word
    return raw.reshape(rows, row_bytes(name, columns))


def same_bits(found: torch.Tensor, expected: np.ndarray) -> bool:
    return found.dtype == torch.float32 and found.numpy().tobytes() == np.ascontiguousarray(expected).tobytes()


@pytest.mark.parametrize("name", BLOCKED)
def test_equals_stored_blocks(name: str) -> None:
    with np.load(ORACLE / "blocks.npz") as data:
        raw, expected = data[f"{name}_bytes"], data[f"{name}_f32"]
    found = dequantise(torch.from_numpy(raw), name, columns=expected.shape[1])
    assert np.array_equal(found.numpy(), expected)  # zeros of Q2_0 differ in sign


@pytest.mark.parametrize("rows", [0, 1, 7, 64], ids=["no-rows", "single-row", "odd-rows", "many-rows"])
@pytest.mark.parametrize("name", KNOWN_TO_GGUF)
def test_equals_gguf_package(name: str, rows: int) -> None:
    columns = 768
    raw = random_rows(name, rows=rows, columns=columns, seed=rows)
    found = dequantise(torch.from_numpy(raw), name, columns=columns)
    assert found.shape == (rows, columns)
    if rows:
        assert same_bits(found, gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name]))


@pytest.mark.parametrize(
    ("name", "columns"),
    [(name, length) for name in KNOWN_TO_GGUF for length in ROW_LENGTHS if length % FORMATS[name].block_weights == 0],
)
def test_row_lengths_that_are_not_multiples_of_256(name: str, columns: int) -> None:
    raw = random_rows(name, rows=3, columns=columns)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
    assert same_bits(dequantise(torch.from_numpy(raw), name, columns=columns), expected)


def test_q2_0_against_a_loop() -> None:
    raw = random_rows("Q2_0", rows=3, columns=640)
    blocks = raw.reshape(-1, 18)
    expected = np.empty((len(blocks), 64), np.float32)
    for number, block in enumerate(blocks):
        scale = block[:2].view(np.float16).astype(np.float32)[0]
        for j in range(64):
            expected[number, j] = scale * np.float32(int(block[2 + j // 4] >> 2 * (j % 4) & 3) - 1)
    assert same_bits(dequantise(torch.from_numpy(raw), "Q2_0", columns=640), expected.reshape(3, 640))


@pytest.mark.parametrize("name", ["Q4_K", "IQ4_NL", "Q8_0"])
def test_slices_join_without_a_seam(name: str) -> None:
    columns = 256 * 5
    raw = torch.from_numpy(random_rows(name, rows=431, columns=columns))
    whole = dequantise(raw, name, columns=columns)
    single = torch.cat([dequantise(raw[row : row + 1], name, columns=columns) for row in (0, 204, 205, 430)])
    assert torch.equal(whole[[0, 204, 205, 430]], single)


@pytest.mark.parametrize("name", SUPPORTED)
def test_block_sizes_equal_gguf_package(name: str) -> None:
    form = FORMATS[name]
    if name != "Q2_0":
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]] == (form.block_weights, form.block_bytes)
    assert row_bytes(name, 768) == 768 // form.block_weights * form.block_bytes


@pytest.mark.parametrize("name", ["IQ4_NL", "Q8_0", "BF16", "F32"])
def test_gather_unpacks_only_the_chosen_rows(name: str) -> None:
    raw = torch.from_numpy(random_rows(name, rows=11, columns=160))
    rows = torch.tensor([[10, 0, 3], [3, 3, 7]])
    whole = dequantise(raw, name, columns=160)
    assert torch.equal(gather_rows(raw, rows, name, columns=160), whole[rows])
    assert gather_rows(raw, rows[:0], name, columns=160).shape == (0, 3, 160)


def test_raw_bytes_may_be_a_view_at_an_odd_offset() -> None:
    raw = random_rows("Q5_1", rows=2, columns=64)
    shifted = torch.zeros(raw.size + 1, dtype=torch.uint8)
    shifted[1:] = torch.from_numpy(raw.reshape(-1))
    found = dequantise(shifted[1:].view(2, -1), "Q5_1", columns=64)
    assert torch.equal(found, dequantise(torch.from_numpy(raw), "Q5_1", columns=64))


@pytest.mark.parametrize("name", ["F32", "BF16", "F16"])
def test_plain_types_never_share_memory_with_the_file(name: str) -> None:
    raw = torch.zeros((1, row_bytes(name, 4)), dtype=torch.uint8)
    found = dequantise(raw, name, columns=4)
    found.fill_(1.0)
    assert not raw.any()


@pytest.mark.parametrize("name", SUPPORTED)
def test_nonfinite_scales_are_counted(name: str) -> None:
    columns = 256
    raw = random_rows(name, rows=2, columns=columns)
    assert count_nonfinite(torch.from_numpy(raw), name, columns=columns) == 0
    blocks = raw.reshape(-1, FORMATS[name].block_bytes)
    at = FORMATS[name].scale_offsets[-1] + 1 if FORMATS[name].scale_offsets else -1
    if name == "IQ1_M":
        blocks[0, 49::2] |= 0xF0
    elif name in ("BF16", "F32"):
        blocks[0, -2:] = (0x80, 0x7F)
    else:
        blocks[0, at] = 0x7C
    assert count_nonfinite(torch.from_numpy(raw), name, columns=columns) >= 1


@pytest.mark.parametrize(
    ("shape", "dtype", "name", "columns", "words"),
    [
        ((1, 144), torch.uint8, "Q4_K", 250, "multiples of 256 weights, found 250"),
        ((1, 143), torch.uint8, "Q4_K", 256, r"\[rows, 144\], found \[1, 143\]"),
        ((144,), torch.uint8, "Q4_K", 256, r"found \[144\]"),
        ((1, 144), torch.int8, "Q4_K", 256, "uint8, found torch.int8"),
        ((1, 144), torch.uint8, "TQ1_0", 256, "TQ1_0 cannot be unpacked; supported: F32"),
    ],
    ids=["GGUF-07-row-not-whole-blocks", "wrong-row-bytes", "one-dimension", "wrong-dtype", "GGUF-07-no-kernel"],
)
def test_refusals_are_sentences(
    shape: tuple[int, ...], dtype: torch.dtype, name: str, columns: int, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        dequantise(torch.zeros(shape, dtype=dtype), name, columns=columns)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
@pytest.mark.parametrize("name", SUPPORTED)
def test_cuda_equals_cpu(name: str) -> None:
    raw = torch.from_numpy(random_rows(name, rows=37, columns=768))
    on_card = dequantise(raw.cuda(), name, columns=768).cpu()
    assert same_bits(on_card, dequantise(raw, name, columns=768).numpy())
