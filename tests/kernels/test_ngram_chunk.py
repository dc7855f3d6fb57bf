"""The n-gram embedding of prompt chunks against the reference of the whole text, between decode windows too."""

from __future__ import annotations

import random

import pytest
import torch

from kernels.chunk import Chunk
from kernels.embedding import Table
from kernels.linear.prompt import Room, room_halves
from kernels.ngram import prompt as many
from kernels.ngram import reference
from kernels.ngram.prompt import add_ngrams_chunk
from tests.kernels.test_ngram_decode import EPS, HIDDEN, RESET, STREAMS, VOCABULARY, Layer, expected
from tests.kernels.windows import Span


def read(
    layer: Layer,
    slot: int,
    start: int,
    tokens: list[int],
    x: torch.Tensor,
    *,
    parts: torch.Tensor | None = None,
    staged: Table | None = None,
    count: int | None = None,
) -> torch.Tensor:
    """x [rows, streams, hidden] of one chunk after the layer; parts are written with weight 1.

    All rows are somebody's, or the first `count`.
    """
    device, w = layer.device, layer.weights
    found = x.clone().to(device)
    add_ngrams_chunk(
        x=found, chunk=Chunk.of(slot, start, torch.tensor(tokens, dtype=torch.int32, device=device), count=count),
        table=staged or layer.table, staged=staged is not None, hashing=layer.hashing, weights=w, order=3,
        state=layer.state,
        room=Room(room_halves([w.key, w.value], exact=layer.exact), device=device), eps=EPS, exact=layer.exact,
        parts=None if parts is None else parts.to(device),
        inject=None if parts is None else torch.ones(len(tokens), STREAMS, device=device),
    )  # fmt: skip
    return found.cpu()


def text(length: int) -> tuple[list[int], torch.Tensor]:
    """Tokens, one in three of them the reset token, and streams."""
    draw, generator = random.Random(length), torch.Generator().manual_seed(length)
    tokens = [draw.choice((RESET, draw.randrange(VOCABULARY), VOCABULARY - 1)) for _ in range(length)]
    return tokens, torch.randn(length, STREAMS, HIDDEN, generator=generator)


# Rows of chunks; negative: of a decode window.
PLANS = {"one-row": [1, 1, 2], "odd": [21, 2, 15, 5], "pieces": [40], "with-windows": [-2, 17, -3, 3, -1]}


@pytest.mark.parametrize(("exact", "tolerance"), [(True, 2e-5), (False, 2e-2)], ids=["exact", "fp16"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_chunks_equal_the_reference_of_the_text(
    plan: list[int], exact: bool, tolerance: float, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many, "PIECE_ROWS", 16)
    layer = Layer(device, exact=exact)
    tokens, x = text(sum(abs(count) for count in plan))
    outs, at = [], 0
    for count in plan:
        stop = at + abs(count)
        if count > 0:
            outs.append(read(layer, 1, at, tokens[at:stop], x[at:stop]))
        else:
            outs.append(layer.run([Span(1, at, -count, -count, tuple(tokens[at:stop]))], x[at:stop], -count)[0])
        at = stop
    torch.testing.assert_close(torch.cat(outs).double(), expected(layer, tokens, x), rtol=tolerance, atol=tolerance)


def test_writes_the_block_before_first(device: str) -> None:
    layer = Layer(device)
    tokens, x = text(7)
    block = torch.randn(2, 7, HIDDEN, generator=torch.Generator().manual_seed(2))
    found = read(layer, 0, 0, tokens, x, parts=block)
    wanted = expected(layer, tokens, x + block.sum(0)[:, None])
    torch.testing.assert_close(found.double(), wanted, rtol=2e-5, atol=2e-5)


def test_rows_that_the_host_gathered_give_the_same_bits(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Staged: the table has the picked rows, one after the other, and nothing else."""
    monkeypatch.setattr(many, "PIECE_ROWS", 16)
    tokens, x = text(21)
    layers = [Layer(device), Layer(device)]
    hashing, table = layers[0].hashing, layers[0].table
    numbers = torch.tensor(
        reference.hash_rows(
            tokens,
            reset=RESET,
            multipliers=hashing.multipliers.tolist(),
            head_rows=hashing.head_rows.tolist(),
            head_offsets=hashing.head_offsets.tolist(),
        )
    )
    picked = Table(table.raw[numbers.reshape(-1).to(device)], table.type_name, table.columns)
    wanted = read(layers[0], 1, 0, tokens, x)
    assert torch.equal(read(layers[1], 1, 0, tokens, x, staged=picked), wanted)


@pytest.mark.parametrize("nobody", [1, 30], ids=str)
def test_rows_of_nobody_change_nothing(nobody: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do whole pieces of them."""
    monkeypatch.setattr(many, "PIECE_ROWS", 16)
    tokens, x = text(23)
    layers = [Layer(device), Layer(device)]
    wide = torch.cat((x[:20], torch.full((nobody, STREAMS, HIDDEN), float("nan"))))
    plain = read(layers[0], 1, 0, tokens[:20], x[:20])
    filled = read(layers[1], 1, 0, tokens[:20] + [RESET] * nobody, wide, count=20)
    torch.testing.assert_close(filled[:20], plain, rtol=1e-5, atol=1e-5)
    ends = [read(layer, 1, 20, tokens[20:], x[20:]) for layer in layers]
    torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-5)
    assert torch.equal(layers[0].state.tokens, layers[1].state.tokens)


def test_other_slots_keep_their_rings(device: str) -> None:
    layer = Layer(device)
    before = layer.state.tokens.clone()
    read(layer, 1, 0, *text(20))
    assert torch.equal(layer.state.tokens[[0, 2, 3]], before[[0, 2, 3]])
    assert layer.state.conv[[0, 2, 3]].isnan().all()
    assert torch.isfinite(layer.state.conv[1]).all()


def test_refuses_what_does_not_fit(device: str) -> None:
    layer = Layer(device)
    tokens, x = text(4)
    with pytest.raises(ValueError, match="streams of 16"):
        read(layer, 0, 0, tokens, x[:, :, :16])
    with pytest.raises(ValueError, match="x is"):
        read(layer, 0, 0, tokens[:3], x)
