"""The strict interpreter finds what a card would call an illegal access."""

# mypy: ignore-errors

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from tests.builders.strict import strict


@triton.jit
def copy(p_from, p_to, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(p_to + at, tl.load(p_from + at, mask=at < COUNT, other=0), mask=at < COUNT)


@triton.jit
def follow(p_index, p_to):
    tl.atomic_add(p_to + tl.load(p_index), 1)


def test_what_lies_inside_is_left_alone() -> None:
    values, found = torch.arange(7), torch.zeros(7, dtype=torch.int64)
    with strict() as launches:
        copy[(1,)](values.to("cpu"), found, COUNT=7, BLOCK=8)
    assert torch.equal(found, values)
    assert launches == ["copy"]


@pytest.mark.parametrize(("read", "written"), [(7, 8), (8, 7)], ids=["load", "store"])
def test_one_past_the_end_is_named(read: int, written: int) -> None:
    values, found = torch.zeros(read, dtype=torch.int64), torch.zeros(written, dtype=torch.int64)
    name = "load of 1 addresses outside, one 56 bytes" if read < written else "store of 1 addresses outside"
    with strict(), pytest.raises(Exception, match=f"copy: {name}"):
        copy[(1,)](values, found, COUNT=8, BLOCK=8)


def test_new_memory_leads_far_away() -> None:
    found = torch.zeros(4, dtype=torch.int32)
    with strict(), pytest.raises(Exception, match="follow: atomic"):
        follow[(1,)](torch.empty(1, dtype=torch.int32), found)
    assert not found.any()


def test_what_tables_reach_may_be_touched() -> None:
    values, found = torch.arange(7, 9), torch.zeros(1, dtype=torch.int32)
    far = torch.tensor([(values.data_ptr() - found.data_ptr()) // 4])
    with strict([values]):
        follow[(1,)](far, found)
    assert values.tolist() == [8, 8]
    with strict(), pytest.raises(Exception, match="follow: atomic"):
        follow[(1,)](far, found)
