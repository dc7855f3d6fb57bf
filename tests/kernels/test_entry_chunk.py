"""Rows of a prompt chunk through the embedding and the entry of a draft layer: many at once."""

from __future__ import annotations

import pytest
import torch

from kernels.embedding import Table, embed
from kernels.embedding import prompt as many
from kernels.embedding.prompt import enter_draft_chunk
from kernels.linear.prompt import Room, room_halves
from kernels.quant import dequantise
from tests.kernels.matrices import raw_matrix
from tests.kernels.test_embedding import EPS, entry, expected


@pytest.mark.parametrize("inplace", [False, True], ids=["apart", "in-place"])
@pytest.mark.parametrize(
    ("grouped", "exact", "type_name"),
    [(False, True, "Q8_0"), (True, True, "IQ4_NL"), (False, False, "Q5_0")],
    ids=["global", "grouped", "fp16"],
)
def test_draft_entry(
    grouped: bool, exact: bool, type_name: str, inplace: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many, "PIECE_ROWS", 16)
    hidden, rows = 256, 37
    w = entry(device, streams=3, hidden=hidden, grouped=grouped)
    generator = torch.Generator().manual_seed(3)
    table = Table(raw_matrix(type_name, 9, hidden, generator, scale=2.0).to(device), type_name, hidden)
    wide = torch.randn(rows, 3, hidden, generator=generator) * torch.tensor([1.0, 30.0, 0.2])[None, :, None]
    tokens = torch.randint(0, 9, (rows,), generator=generator, dtype=torch.int32)
    streams = wide.clone().to(device)
    x = streams if inplace else torch.full_like(streams, float("nan"))
    enter_draft_chunk(
        table=table, tokens=tokens.to(device), wide=streams, weights=w,
        room=Room(room_halves([w.from_token, w.from_state], exact=exact), device=device), x=x, eps=EPS, exact=exact,
    )  # fmt: skip
    wanted = expected(w, table, tokens.tolist(), wide)
    assert float((x.cpu() - wanted).norm() / wanted.norm()) < (1e-6 if exact else 2e-3)


def test_refuses_what_does_not_fit(device: str) -> None:
    w = entry(device, streams=2, hidden=64, grouped=False)
    table = Table(torch.zeros(9, 34, dtype=torch.uint8, device=device), "Q8_0", 32)
    x = torch.zeros(1, 2, 64, device=device)
    with pytest.raises(ValueError, match="rows of 32, products"):
        enter_draft_chunk(
            table=table, tokens=torch.zeros(1, dtype=torch.int32, device=device), wide=x, weights=w,
            room=Room(1, device=device), x=x, eps=EPS, exact=True,
        )  # fmt: skip


def test_decode_embedding_serves_a_chunk(device: str) -> None:
    """No scratch, one program a row: what a chunk needs already."""
    raw = raw_matrix("Q8_0", 50, 64, torch.Generator().manual_seed(1), scale=2.0)
    tokens = torch.arange(611, dtype=torch.int32) % 50
    x = torch.full((611, 2, 64), float("nan"), device=device)
    embed(table=Table(raw.to(device), "Q8_0", 64), tokens=tokens.to(device), x=x, pdl=False)
    wanted = dequantise(raw, "Q8_0", columns=64)[tokens.long()]
    assert torch.equal(x.cpu(), wanted[:, None].expand(-1, 2, -1))
