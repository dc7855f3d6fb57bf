"""The compiled greedy choice against torch: odd sizes, equal logits, rows that are no numbers, poisoned padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels.greedy import reference
from kernels.greedy.op import likeliest


@pytest.mark.parametrize("columns", [1, 7, 16, 31, 448, 8192])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_greedy_choices(rows: int, columns: int) -> None:
    generator = torch.Generator().manual_seed(columns + rows)
    logits = torch.randn(rows, columns, generator=generator) * 5
    padded = torch.full((rows, columns + 9), float("nan"))
    padded[:, :columns] = logits
    wanted = reference.likeliest(logits)
    ids, shares, finite = likeliest(padded.numpy(), columns)
    assert np.array_equal(ids, wanted[0].numpy())
    assert np.allclose(shares, wanted[1].numpy(), rtol=2e-6)
    assert finite.all()
    for row in range(rows):
        alone = likeliest(padded[row : row + 1].numpy(), columns)
        assert np.array_equal(alone[1], shares[row : row + 1])


def test_of_equal_logits_the_first_is_chosen() -> None:
    logits = torch.zeros(3, 100)
    logits[0, [40, 17, 99]] = 2.0
    logits[1, [33, 32]] = 1.0
    assert likeliest(logits.numpy(), 100)[0].tolist() == [17, 32, 0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_rows_that_are_no_numbers_are_told_apart(value: float) -> None:
    logits = torch.randn(2, 50)
    logits[1, 20] = value
    ids, _, finite = likeliest(logits.numpy(), 50)
    assert finite.tolist() == [True, False]
    assert 0 <= ids[1] < 50
