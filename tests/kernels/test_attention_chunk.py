"""Attention of prompt chunks: preparation, dense and sparse attention, against float64 and between decode windows."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from kernels.attention.prompt import MixedChunk, attend_chunk, group_rows, prepare_chunk
from kernels.chunk import Chunk
from kernels.qsa.prompt import select_chunk
from kernels.rope.decode import RopeRows, rope_rows
from kernels.rope.frequencies import frequencies
from tests.kernels.test_attention_decode import (
    BLOCK,
    BUDGET,
    DIMS,
    EPS,
    HEADS,
    SECTIONS,
    SLOTS,
    Layer,
    Texts,
    expected,
    make_layer,
    run,
)
from tests.kernels.windows import Span, window_rows

NAN = float("nan")


@dataclass(frozen=True)
class Read:
    """What a chunk gave."""

    query: torch.Tensor
    index_query: torch.Tensor | None
    out: torch.Tensor


def rope_of(span: Span, device: str) -> RopeRows:
    rows = window_rows([span], bucket=span.count, slots=SLOTS, device=device)
    rope = RopeRows.empty(rows=span.count, pairs=DIMS // 2, device=device)
    table = frequencies(dims=DIMS, theta=1e4, sections=SECTIONS, device=device)
    rope_rows(rows, rows.position.repeat(3, 1).contiguous(), frequencies=table, block_tokens=BLOCK, out=rope)
    return rope


def read(layer: Layer, texts: Texts, span: Span, *, exact: bool, half: bool = False, sparse: bool = False) -> Read:
    """One chunk through preparation, selection if sparse, and attention; `half` gives its products as fp16."""
    device = str(layer.pages.device)
    rows = window_rows([span], bucket=span.count, slots=SLOTS, device=device)
    mixed = texts.mixed(rows)

    def part(terms: torch.Tensor | None) -> torch.Tensor:
        assert terms is not None
        total = terms.sum(0)
        wide = torch.full((total.shape[0], total.shape[1], total.shape[2] + 3), NAN, device=device)
        wide[:, :, :-3] = total
        return (wide.half() if half else wide)[:, :, :-3]

    chunk = Chunk(span.slot, span.start, rows.tokens)
    query, index_query = prepare_chunk(
        MixedChunk(
            query=part(mixed.query),
            key=part(mixed.key),
            value=part(mixed.value),
            index_query=part(mixed.index_query),
            index_key=part(mixed.index_key),
        ),
        chunk,
        rope=rope_of(span, device),
        query_norm=layer.query_norm,
        key_norm=layer.key_norm,
        pool=layer.pool,
        pages=layer.pages,
        eps=EPS,
        indexer=layer.indexer,
    )
    selection = None
    if sparse:
        assert index_query is not None
        selection = select_chunk(
            index_query, layer.indexer.pooled, chunk, pages=layer.pages, block_tokens=BLOCK, budget_blocks=BUDGET,
            group_rows=group_rows(layer.pool, heads=HEADS),
        )  # fmt: skip
    out = attend_chunk(
        query, part(mixed.gate), chunk, pool=layer.pool, pages=layer.pages, exact=exact, selection=selection
    )
    return Read(query, index_query, out.view(span.count, HEADS, -1))


SPANS = {"whole": [37], "odd": [1, 5, 18, 2, 23], "blocks": [16, 16, 8]}


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("counts", SPANS.values(), ids=SPANS)
def test_chunks_at_odd_positions_equal_float64(counts: list[int], sparse: bool, device: str) -> None:
    layer, texts = make_layer(device), Texts(device)
    length, at = sum(counts), 0
    wanted = expected(layer, texts, 1, length, dense=not sparse)
    for count in counts:
        got = read(layer, texts, Span(1, at, count, count), exact=True, sparse=sparse)
        stop = at + count
        torch.testing.assert_close(got.query.double(), wanted.query[at:stop], atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(got.out.double(), wanted.out[at:stop], atol=2e-5, rtol=1e-4)
        assert got.index_query is not None
        torch.testing.assert_close(got.index_query.double(), wanted.index_query[at:stop], atol=2e-5, rtol=1e-5)
        at = stop
    pool = layer.indexer.pooled[layer.pages[1].long()].flatten(0, 1)
    torch.testing.assert_close(pool[: length // BLOCK].double(), wanted.pooled, atol=2e-5, rtol=1e-5)
    assert pool[length // BLOCK :].isnan().all()


STORAGE = {
    "bf16": (torch.bfloat16, False, 0.03),
    "int8": (torch.int8, False, 0.03),
    "f32-pinned": (torch.float32, True, 2e-5),
    "int8-pinned": (torch.int8, True, 0.03),
}


@pytest.mark.parametrize("name", STORAGE)
def test_every_storage_of_keys_and_values(device: str, name: str) -> None:
    dtype, pinned, tolerance = STORAGE[name]
    layer, texts = make_layer(device, dtype, pinned=pinned), Texts(device)
    wanted = expected(layer, texts, 2, 45, dense=True).out
    for at, count in ((0, 6), (6, 39)):
        got = read(layer, texts, Span(2, at, count, count), exact=dtype == torch.float32, half=dtype == torch.int8)
        torch.testing.assert_close(got.out.double(), wanted[at : at + count], atol=tolerance, rtol=tolerance)


def test_decode_windows_and_chunks_take_turns(device: str) -> None:
    """State is that of decode windows over the same text: keys, values, block keys, the ring's last raw keys."""
    texts, plain, mixed = Texts(device), make_layer(device), make_layer(device)
    for at in range(0, 27, 9):
        run(plain, texts, [Span(3, at, 9, 9)], bucket=9)
    run(mixed, texts, [Span(3, 0, 3, 3)], bucket=3)
    read(mixed, texts, Span(3, 3, 15, 15), exact=True)
    run(mixed, texts, [Span(3, 18, 3, 3)], bucket=3)
    read(mixed, texts, Span(3, 21, 2, 2), exact=True)
    read(mixed, texts, Span(3, 23, 4, 4), exact=True)
    for a, b in (
        (plain.pool.keys, mixed.pool.keys), (plain.pool.values, mixed.pool.values),
        (plain.indexer.pooled, mixed.indexer.pooled), (plain.indexer.ring, mixed.indexer.ring),
    ):  # fmt: skip
        torch.testing.assert_close(a[:-1], b[:-1], atol=2e-6, rtol=2e-6, equal_nan=True)
