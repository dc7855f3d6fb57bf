"""An n-gram table that stays on storage: the host's hash is the device's, and a window gets the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from appliance.gguf.reader import open_set
from appliance.model.qwen4exp.device.ngram_storage import StoredRows
from appliance.model.qwen4exp.footprint import NGRAM_TABLE
from appliance.model.qwen4exp.hyperparameters import NgramSpec
from appliance.model.qwen4exp.spec import ModelSpec, read_spec
from appliance.model.qwen4exp.tensors import raw_bytes
from kernels.ngram.reference import hash_rows
from tests.builders.gguf import tiny_model
from tests.device.models import ON_CARD, load, open_slot, window

RESET = 3


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    path: Path = tiny_model().key("qwen4exp.ple.eos_token_id", RESET).write(tmp_path_factory.mktemp("m") / "m.gguf")
    return read_spec(open_set(path))


def expected(ngram: NgramSpec, past: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
    """By the reference, from the tokens before."""
    numbers = hash_rows(
        [*past, *tokens],
        reset=ngram.reset_token_id,
        multipliers=ngram.multipliers,
        head_rows=ngram.head_rows,
        head_offsets=ngram.head_offsets,
    )
    return np.array(numbers[len(past) :], dtype=np.int64)


@pytest.mark.parametrize(
    "parts",
    [[[5]], [[5, 6, 7]], [[5], [6], [7], [8]], [[5, RESET, 7], [8, RESET], [9]], [list(range(4, 44)), [50], [51, 52]]],
    ids=["one", "window", "rows", "resets", "chunk-then-rows"],
)
def test_numbers_are_the_references(spec: ModelSpec, parts: list[list[int]]) -> None:
    assert spec.ngram is not None
    stored = StoredRows(spec.tensors[NGRAM_TABLE], spec.ngram, home="mmap", slots=2)
    stored.numbers(0, 0, [9] * 20)  # another slot's tokens, and those of a conversation before
    stored.numbers(1, 0, [8] * 20)
    past: list[int] = []
    for tokens in parts:
        found = stored.numbers(1, len(past), tokens)
        assert np.array_equal(found, expected(spec.ngram, past, tokens))
        past += tokens


def test_a_rejected_draft_is_written_over(spec: ModelSpec) -> None:
    assert spec.ngram is not None
    stored = StoredRows(spec.tensors[NGRAM_TABLE], spec.ngram, home="mmap", slots=1)
    stored.numbers(0, 0, [5, 6, 40, 41])
    assert np.array_equal(stored.numbers(0, 2, [7, 8]), expected(spec.ngram, [5, 6], [7, 8]))


@pytest.mark.parametrize("home", ["mmap", "direct"])
@pytest.mark.parametrize("count", [1, 7, 300], ids=str)
def test_rows_are_those_of_the_file(spec: ModelSpec, home: str, count: int) -> None:
    assert spec.ngram is not None
    info = spec.tensors[NGRAM_TABLE]
    stored = StoredRows(info, spec.ngram, home=home, slots=1)
    numbers = np.random.default_rng(1).integers(0, info.shape[0], (count, 2))
    out = torch.zeros((2 * count, info.row_bytes), dtype=torch.uint8)
    stored.fetch(numbers, out)
    assert torch.equal(out, raw_bytes(info)[torch.from_numpy(numbers.reshape(-1))])


def test_a_window_has_the_same_bits_from_storage() -> None:
    """Two windows of one conversation, so that the second hashes tokens of the first."""
    outs = []
    for home in ("vram", "mmap", "direct") if ON_CARD else ("vram", "direct"):
        model = load("base4", draft_max=0, ngram_home=home)
        open_slot(model, 1)
        window(model, 1, [7], following=9)
        outs.append(window(model, 1, [9], following=10)[0])
        model.close()
    assert all(np.array_equal(out, outs[0]) for out in outs)


@pytest.mark.skipif(not ON_CARD, reason="needs a CUDA card: minutes in the interpreter")
def test_a_prompt_chunk_has_the_same_bits_from_storage() -> None:
    """A chunk, then a window whose rows hash the chunk's last tokens."""
    outs = []
    tokens = [(7 * place + 3) % 250 for place in range(40)]
    for home in ("vram", "mmap", "direct"):
        model = load("base4", draft_max=0, ngram_home=home, chunk_rows=64)
        open_slot(model, 1)
        first, _ = window(model, 1, tokens, following=9, logits_from=len(tokens) - 1)
        outs.append((first, window(model, 1, [9], following=10)[0]))
        model.close()
    for first, after in outs:
        assert np.array_equal(first, outs[0][0])
        assert np.array_equal(after, outs[0][1])
