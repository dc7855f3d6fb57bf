"""Rotary tables of prompt chunks: equal to those of decode windows, pictures before the chunk included."""

from __future__ import annotations

import pytest
import torch

from kernels.chunk import Chunk
from kernels.rope import rope_tables
from kernels.rope.frequencies import frequencies
from kernels.rope.prompt import rope_chunk

SECTIONS, DIMS, THETA = (11, 11, 10), 64, 1e7


def tables(axes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The host's tables of positions [3, rows]."""
    cos, sin = rope_tables(axes.long(), dims=DIMS, theta=THETA, sections=SECTIONS)
    return cos[:, 0, : DIMS // 2], sin[:, 0, DIMS // 2 :]


@pytest.mark.parametrize("offset", [0, -7], ids=["text", "after-a-picture"])
@pytest.mark.parametrize(("start", "rows"), [(0, 1), (0, 70), (2, 21), (13, 3), (262_001, 40)], ids=str)
def test_rows_and_the_blocks_they_complete(start: int, rows: int, offset: int, device: str) -> None:
    generator = torch.Generator().manual_seed(start)
    ring = torch.randint(0, 5000, (3, 16, 3), generator=generator, dtype=torch.int32)
    before = ring.clone()
    offsets = torch.tensor([5, offset, 9], dtype=torch.int32)
    noted = ring.to(device)
    out = rope_chunk(
        Chunk.of(1, start, torch.zeros(rows, dtype=torch.int32, device=device)),
        frequencies=frequencies(dims=DIMS, theta=THETA, sections=SECTIONS, device=device),
        block_tokens=4, axis_offset=offsets.to(device), axis_ring=noted,
    )  # fmt: skip
    positions = torch.arange(start, start + rows)
    firsts = torch.stack([
        before[1, p % 16] if 0 <= p < start else torch.full((3,), p + offset, dtype=torch.int32)
        for p in (positions - 3).tolist()
    ]).t()  # fmt: skip
    for which, axes in enumerate(((positions + offset).expand(3, rows), firsts)):
        cos, sin = tables(axes)
        torch.testing.assert_close(out.cos[which].cpu(), cos, atol=2e-7, rtol=0)
        torch.testing.assert_close(out.sin[which].cpu(), sin, atol=2e-7, rtol=0)
    for position in positions[-16:].tolist():
        before[1, position % 16] = position + offset
    assert torch.equal(noted.cpu(), before)


def test_rows_of_nobody_leave_the_ring(device: str) -> None:
    tables = frequencies(dims=DIMS, theta=THETA, sections=SECTIONS, device=device)
    rings = [torch.zeros(3, 16, 3, dtype=torch.int32, device=device) for _ in range(2)]
    found = [
        rope_chunk(
            Chunk.of(1, 9, torch.zeros(rows, dtype=torch.int32, device=device), count=5), frequencies=tables,
            block_tokens=4, axis_offset=torch.zeros(3, dtype=torch.int32, device=device), axis_ring=ring,
        )
        for rows, ring in zip((5, 40), rings, strict=True)
    ]  # fmt: skip
    assert torch.equal(*rings)
    assert torch.equal(found[0].cos, found[1].cos[:, :5])
    assert torch.equal(found[0].sin, found[1].sin[:, :5])


def test_refusals(device: str) -> None:
    with pytest.raises(ValueError, match="blocks of 17 tokens"):
        rope_chunk(
            Chunk.of(0, 0, torch.zeros(1, dtype=torch.int32, device=device)),
            frequencies=frequencies(dims=DIMS, theta=THETA, sections=SECTIONS, device=device),
            block_tokens=17, axis_offset=torch.zeros(2, dtype=torch.int32, device=device),
            axis_ring=torch.zeros(2, 16, 3, dtype=torch.int32, device=device),
        )  # fmt: skip
