"""Attention of prompt chunks: preparation, dense and sparse attention, against float64 and between decode windows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from kernels.attention.pool import KvPool
from kernels.attention.prompt import MixedChunk, attend_chunk, group_rows, prepare_chunk
from kernels.chunk import Chunk
from kernels.qsa.prompt import ChunkSelection, select_chunk
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


def filled(rope: RopeRows, nobody: int) -> RopeRows:
    """Tables with more rows."""
    more = torch.full((2, nobody, rope.cos.shape[2]), NAN, device=rope.cos.device)
    return RopeRows(cos=torch.cat((rope.cos, more), 1), sin=torch.cat((rope.sin, more), 1))


def read(
    layer: Layer,
    texts: Texts,
    span: Span,
    *,
    exact: bool,
    half: bool = False,
    sparse: bool = False,
    nobody: int = 0,
    reach: int = 0,
) -> Read:
    """One chunk through preparation, selection if sparse, and attention.

    `half` gives its products as fp16; `nobody` more rows are nobody's; launches are for texts of `reach` tokens.
    """
    device = str(layer.pages.device)
    rows = window_rows([span], bucket=span.count, slots=SLOTS, device=device)
    mixed = texts.mixed(rows)

    def part(terms: torch.Tensor | None) -> torch.Tensor:
        assert terms is not None
        total = terms.sum(0)
        wide = torch.full((total.shape[0] + nobody, total.shape[1], total.shape[2] + 3), NAN, device=device)
        wide[: total.shape[0], :, :-3] = total
        return (wide.half() if half else wide)[:, :, :-3]

    tokens = torch.cat((rows.tokens, torch.zeros(nobody, dtype=torch.int32, device=device)))
    chunk = Chunk.of(span.slot, span.start, tokens, count=span.count)
    chunk = replace(chunk, reach=reach or span.start + span.count)
    query, index_query = prepare_chunk(
        MixedChunk(
            query=part(mixed.query),
            key=part(mixed.key),
            value=part(mixed.value),
            index_query=part(mixed.index_query),
            index_key=part(mixed.index_key),
        ),
        chunk,
        rope=filled(rope_of(span, device), nobody),
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
    whole = None if index_query is None else index_query[: span.count]
    return Read(query[: span.count], whole, out.view(span.count + nobody, HEADS, -1)[: span.count])


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


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("nobody", [1, 30], ids=str)
def test_rows_of_nobody_and_launches_for_longer_texts_change_no_bit(nobody: int, sparse: bool, device: str) -> None:
    texts, layers = Texts(device), (make_layer(device), make_layer(device))
    longest = layers[0].pages.shape[1] * layers[0].pool.keys.shape[2]
    for at, count in ((0, 21), (21, 18)):
        plain, wide = (
            read(layer, texts, Span(1, at, count, count), exact=True, sparse=sparse, nobody=more, reach=reach)
            for layer, more, reach in zip(layers, (0, nobody), (0, longest), strict=True)
        )
        assert plain.index_query is not None
        assert wide.index_query is not None
        for a, b in ((plain.query, wide.query), (plain.index_query, wide.index_query), (plain.out, wide.out)):
            assert torch.equal(a, b)
    for a, b in (
        (layers[0].pool.keys, layers[1].pool.keys), (layers[0].pool.values, layers[1].pool.values),
        (layers[0].indexer.pooled, layers[1].indexer.pooled), (layers[0].indexer.ring, layers[1].indexer.ring),
    ):  # fmt: skip
        assert torch.equal(a.nan_to_num(7.5), b.nan_to_num(7.5))


def test_refuses_what_does_not_fit(device: str) -> None:
    layer = make_layer(device)
    chunk = Chunk.of(0, 0, torch.zeros(3, dtype=torch.int32, device=device))
    query = torch.zeros(3, HEADS, layer.query_norm.shape[0], device=device)
    selection = ChunkSelection(
        blocks=torch.zeros(1, 1, dtype=torch.int32, device=device),
        members=torch.zeros(1, 1, dtype=torch.int32, device=device),
        counts=torch.zeros(1, dtype=torch.int32, device=device),
        rows=3,
        block_tokens=BLOCK,
    )
    with pytest.raises(ValueError, match="1 groups of 3 rows"):
        attend_chunk(query, query, chunk, pool=layer.pool, pages=layer.pages, exact=True, selection=selection)
    with pytest.raises(ValueError, match="the chunk's keys are 2 heads of 23"):
        prepare_chunk(
            MixedChunk(query=query, key=query[:, :2, :23], value=query[:, :2, :23]), chunk,
            rope=rope_of(Span(0, 0, 3, 3), device), query_norm=layer.query_norm, key_norm=layer.key_norm,
            pool=layer.pool, pages=layer.pages, eps=EPS,
        )  # fmt: skip
    with pytest.raises(ValueError, match="gate has adjacent values"):
        attend_chunk(query, query.transpose(1, 2).contiguous().transpose(1, 2), chunk, pool=layer.pool,
                     pages=layer.pages, exact=True)  # fmt: skip


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8], ids=["bf16", "int8"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_the_real_shape(dtype: torch.dtype, sparse: bool) -> None:
    """Every seventh row of a chunk over an older context, against softmax over what the row is said to see."""
    heads, kv_heads, dim, page, start, rows = 24, 2, 256, 64, 2301, 555
    generator = torch.Generator("cuda").manual_seed(2)
    context, count = start + rows, (start + rows) // page + 1
    pool = KvPool.empty(pages=count, heads=kv_heads, page_tokens=page, dim=dim, dtype=dtype, device="cuda")
    for stored, scales in ((pool.keys, pool.key_scales), (pool.values, pool.value_scales)):
        values = torch.randn(stored.shape, device="cuda", generator=generator)
        stored.copy_(values if scales is None else (values * 40).round().clamp(-127, 127))
        if scales is not None:
            scales.uniform_(0.01, 0.03, generator=generator)
    pages = torch.randperm(count, device="cuda", generator=generator).to(torch.int32).expand(2, -1).contiguous()
    chunk = Chunk.of(0, start, torch.zeros(rows, dtype=torch.int32, device="cuda"))
    pooled = torch.randn(count + 1, page // 4, 128, device="cuda", generator=generator).half()
    index_query = torch.randn(rows, 4, 128, device="cuda", generator=generator).half()
    query = torch.randn(rows, heads, dim, device="cuda", generator=generator).half()
    gate = torch.randn(rows, heads, dim, device="cuda", generator=generator).half()
    group = group_rows(pool, heads=heads)
    selection = None
    if sparse:
        selection = select_chunk(
            index_query, pooled, chunk, pages=pages, block_tokens=4, budget_blocks=512, group_rows=group
        )
        assert selection is not None
    found = attend_chunk(query, gate, chunk, pool=pool, pages=pages, exact=False, selection=selection)

    def line(stored: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
        values = stored.float() if scales is None else stored.float() * scales[..., None]
        return values[pages[0].long()].transpose(0, 1).flatten(1, 2)[:, :context]

    keys, values = line(pool.keys, pool.key_scales), line(pool.values, pool.value_scales)
    own = pooled[pages[0].long()].flatten(0, 1).float()
    for row in range(0, rows, 7):
        position = start + row
        seen = torch.arange(context, device="cuda") <= position
        if selection is not None:
            known = (position + 1) // 4
            scores = torch.relu(index_query[row].float() @ own[:known].t()).sum(0)
            at, member = divmod(row, group)
            listed = slice(0, int(selection.counts[at]))
            mine = selection.blocks[at, listed][(selection.members[at, listed] >> member & 1) == 1].long()
            assert mine.numel() == 512
            assert scores[mine].min() >= scores.topk(512).values[-1] * (1 - 1e-5)
            chosen = torch.zeros(known, dtype=torch.bool, device="cuda").index_fill_(0, mine, True)
            seen[: known * 4] = chosen.repeat_interleave(4)
        for head in range(0, heads, 5):
            kv = head // (heads // kv_heads)
            share = torch.softmax(keys[kv, seen] @ query[row, head].float() / dim**0.5, 0)
            wanted = share @ values[kv, seen] * torch.sigmoid(gate[row, head].float())
            torch.testing.assert_close(found[row].view(heads, dim)[head].float(), wanted, atol=4e-3, rtol=1e-2)
