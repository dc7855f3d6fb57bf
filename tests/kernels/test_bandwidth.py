"""Reading in place touches every word once; in the interpreter where there is no card."""

from __future__ import annotations

import pytest
import torch

from kernels.bandwidth import read_in_place
from kernels.bandwidth.op import BLOCK, PER_PROGRAM

PROGRAM = BLOCK * PER_PROGRAM
CUDA = torch.cuda.is_available()


@pytest.mark.parametrize(
    "count",
    [pytest.param(1, id="one word"), pytest.param(PROGRAM, id="one program"), pytest.param(PROGRAM + 3, id="past it")],
)
@pytest.mark.parametrize("pinned", [False, True], ids=["card", "pinned RAM"])
def test_every_word_is_read(count: int, pinned: bool) -> None:
    words = torch.randint(-(2**31), 2**31 - 1, (count,), dtype=torch.int64).to(torch.int32)
    place = (words.pin_memory() if pinned else words.cuda()) if CUDA else words
    found = read_in_place(place)
    assert found.numel() == -(-count // PROGRAM)
    wrapped = found.to(torch.int64).sum().item() - words.to(torch.int64).sum().item()
    assert wrapped % 2**32 == 0


def test_nothing_to_read() -> None:
    empty = torch.empty(0, dtype=torch.int32, device="cuda" if CUDA else "cpu")
    assert read_in_place(empty).numel() == 0


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(torch.zeros(4), id="another type"),
        pytest.param(torch.zeros(4, 4, dtype=torch.int32).t()[1:], id="not contiguous"),
    ],
)
def test_what_it_refuses(words: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="contiguous int32"):
        read_in_place(words)
