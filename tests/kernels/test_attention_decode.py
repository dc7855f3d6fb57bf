"""Decode attention: preparation, sparse and dense attention, every KV storage, alone and in company, twice."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch

from kernels.attention.decode import (
    AttentionScratch,
    Indexer,
    Mixed,
    attend_decode,
    dense_splits,
    prepare_attention,
    query_dtype,
    sparse_splits,
)
from kernels.attention.pool import KvPool
from kernels.planes import from_operand
from kernels.qsa.decode import Selection, SelectScratch, select_decode
from kernels.rope import rope_tables
from kernels.rope.decode import RopeRows, rope_rows
from kernels.rope.frequencies import Scaling, frequencies
from kernels.terms import operand_rows
from kernels.window import WindowRows
from tests.kernels.windows import Span, window_rows

HEADS, KV_HEADS, DIM, INDEX_HEADS, INDEX_DIM, DIMS, BLOCK, PAGE, BUDGET = 4, 2, 24, 3, 20, 16, 4, 8, 2
SECTIONS = (3, 3, 2)
EPS = 1e-6
SLOTS, PAGES = 4, 16
NAN = float("nan")


@dataclass(frozen=True)
class Layer:
    """One layer's state and weights, all of it poisoned where it was never written."""

    pool: KvPool
    indexer: Indexer
    pages: torch.Tensor
    query_norm: torch.Tensor
    key_norm: torch.Tensor


def make_layer(device: str, dtype: torch.dtype = torch.float32, *, pinned: bool = False, seed: int = 0) -> Layer:
    generator = torch.Generator().manual_seed(seed)

    def norm(size: int) -> torch.Tensor:
        return (1 + 0.2 * torch.randn(size, generator=generator)).to(device)

    count = SLOTS * PAGES
    pool = KvPool.empty(
        pages=count, heads=KV_HEADS, page_tokens=PAGE, dim=DIM, dtype=dtype, device=device, pinned=pinned
    )
    if dtype != torch.int8:
        pool.keys.fill_(NAN)
        pool.values.fill_(NAN)
    order = torch.randperm(count, generator=generator).view(SLOTS, PAGES)
    pages = torch.cat((order, torch.full((1, PAGES), count))).to(torch.int32).to(device)
    pooled_dtype = torch.float32 if dtype == torch.float32 else torch.float16
    indexer = Indexer(
        query_norm=norm(INDEX_DIM),
        key_norm=norm(INDEX_DIM),
        ring=torch.full((SLOTS + 1, 16, INDEX_DIM), NAN, device=device),
        pooled=torch.full((count + 1, PAGE // BLOCK, INDEX_DIM), NAN, dtype=pooled_dtype, device=device),
        block_tokens=BLOCK,
    )
    return Layer(pool=pool, indexer=indexer, pages=pages, query_norm=norm(DIM), key_norm=norm(DIM))


class Texts:
    """Inputs of every (slot, position), so that a token has the same ones in whatever window it runs."""

    def __init__(self, device: str, *, terms: int = 2, length: int = 120) -> None:
        width = 2 * HEADS * DIM + 2 * KV_HEADS * DIM + INDEX_HEADS * INDEX_DIM + INDEX_DIM
        generator = torch.Generator().manual_seed(5)
        self.values = torch.randn((SLOTS + 1, length, terms, width), generator=generator).to(device)
        self.terms = terms

    def mixed(self, rows: WindowRows) -> Mixed:
        fused = self.values[rows.slot.long(), rows.position.long()].transpose(0, 1).contiguous()
        fused[:, int(rows.rows_used) :] = NAN
        return split(fused)

    def summed(self, slot: int, length: int) -> Mixed:
        return split(self.values[slot, :length].double().sum(1, keepdim=True).transpose(0, 1))


def split(fused: torch.Tensor) -> Mixed:
    """Views of a product whose query and gate alternate by head, then keys, values, indexer queries and key."""
    sizes = (2 * HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM, INDEX_HEADS * INDEX_DIM, INDEX_DIM)
    both, key, value, index_query, index_key = fused.split(sizes, -1)
    both = both.unflatten(-1, (HEADS, 2, DIM))
    return Mixed(
        query=both[..., 0, :],
        gate=both[..., 1, :],
        key=key.unflatten(-1, (KV_HEADS, DIM)),
        value=value.unflatten(-1, (KV_HEADS, DIM)),
        index_query=index_query.unflatten(-1, (INDEX_HEADS, INDEX_DIM)),
        index_key=index_key.unflatten(-1, (1, INDEX_DIM)),
    )


@dataclass(frozen=True)
class Ran:
    query: torch.Tensor
    index_query: torch.Tensor
    out: torch.Tensor
    blocks: torch.Tensor


def run(layer: Layer, texts: Texts, spans: list[Span], *, bucket: int, dense: bool = False, exact: bool = True) -> Ran:
    """One window through preparation, selection and attention, with poisoned outputs."""
    device = str(layer.pages.device)
    rows = window_rows(spans, bucket=bucket, slots=SLOTS, device=device)
    mixed = texts.mixed(rows)
    table = frequencies(dims=DIMS, theta=1e4, sections=SECTIONS, device=device)
    rope = RopeRows.empty(rows=bucket, pairs=DIMS // 2, device=device)
    positions = rows.position.repeat(3, 1).contiguous()
    rope_rows(rows, positions, frequencies=table, block_tokens=BLOCK, out=rope)
    query = torch.full((bucket, HEADS, DIM), NAN, dtype=query_dtype(layer.pool.keys.dtype), device=device)
    own = layer.indexer.pooled.dtype
    index_query = torch.full((bucket, INDEX_HEADS, INDEX_DIM), NAN, dtype=own, device=device)
    prepare_attention(
        replace(mixed, index_query=None, index_key=None) if dense else mixed,
        rows,
        rope=rope,
        query_norm=layer.query_norm,
        key_norm=layer.key_norm,
        pool=layer.pool,
        pages=layer.pages,
        eps=EPS,
        out=query,
        indexer=None if dense else layer.indexer,
        index_out=None if dense else index_query,
    )
    chosen = Selection.empty(rows=bucket, budget_blocks=BUDGET, device=device)
    splits = dense_splits(kind=layer.pool.kind, count=4)
    if not dense:
        select_decode(
            index_query,
            layer.indexer.pooled,
            rows,
            pages=layer.pages,
            block_tokens=BLOCK,
            scratch=SelectScratch.empty(rows=bucket, longest_blocks=PAGES * PAGE // BLOCK, device=device),
            out=chosen,
            programs=3,
        )
        splits = sparse_splits(budget_blocks=BUDGET, block_tokens=BLOCK, kind=layer.pool.kind, tokens=4)
        if layer.pages.is_cuda:  # whose products take 16 tokens at least; the second split then has none
            splits = replace(splits, tile=16, steps=1, count=2)
    scratch = AttentionScratch.empty(rows=bucket, heads=HEADS, dim=DIM, splits=splits.count, device=device)
    scratch.sums.fill_(NAN)
    scratch.stats.fill_(NAN)
    out = operand_rows(bucket, HEADS * DIM, exact=exact, device=device).fill_(NAN)
    attend_decode(
        query,
        mixed.gate,
        rows,
        pool=layer.pool,
        pages=layer.pages,
        splits=splits,
        scratch=scratch,
        exact=exact,
        out=out,
        places=None if dense else chosen.places,
        block_tokens=BLOCK,
    )
    assert torch.isfinite(out).all()
    assert (out[:, HEADS * DIM :] == 0).all() or not exact
    return Ran(query, index_query, from_operand(out, columns=HEADS * DIM).unflatten(1, (HEADS, DIM)), chosen.blocks)


def normed(x: torch.Tensor, weight: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """float64 norm and rotation of [rows, heads, dim] at text positions."""
    scaled = x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight.double()
    half = DIMS // 2
    angle = positions.double()[:, None, None] * 1e4 ** (-torch.arange(half, device=x.device).double() / half)
    a, b = scaled[..., :half], scaled[..., half:DIMS]
    turned = (a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin(), scaled[..., DIMS:])
    return torch.cat(turned, -1)


@dataclass(frozen=True)
class Expected:
    query: torch.Tensor
    index_query: torch.Tensor
    pooled: torch.Tensor
    out: torch.Tensor


def expected(layer: Layer, texts: Texts, slot: int, length: int, *, dense: bool = False) -> Expected:
    """The whole text of a slot in float64, token by token."""
    mixed = texts.summed(slot, length)
    positions = torch.arange(length, device=layer.pages.device)
    query = normed(mixed.query[0], layer.query_norm, positions)
    key = normed(mixed.key[0], layer.key_norm, positions)
    value, gate = mixed.value[0], torch.sigmoid(mixed.gate[0])
    assert mixed.index_query is not None
    assert mixed.index_key is not None
    index_query = normed(mixed.index_query[0], layer.indexer.query_norm, positions)
    blocks = length // BLOCK
    mean = mixed.index_key[0][: blocks * BLOCK].view(blocks, BLOCK, 1, INDEX_DIM).mean(1)
    pooled = normed(mean, layer.indexer.key_norm, positions[: blocks * BLOCK : BLOCK])[:, 0]
    outs = torch.zeros_like(query)
    for t in range(length):
        seen = torch.arange(t + 1)
        complete = (t + 1) // BLOCK
        if not dense and complete > BUDGET:
            scores = torch.relu(index_query[t] @ pooled[:complete].t()).sum(0)
            best = torch.sort(scores, descending=True, stable=True).indices[:BUDGET].tolist()
            seen = torch.tensor([i for i in range(t + 1) if i // BLOCK in best or i >= complete * BLOCK])
        for h in range(HEADS):
            kv = h // (HEADS // KV_HEADS)
            share = torch.softmax(key[seen, kv] @ query[t, h] / math.sqrt(DIM), 0)
            outs[t, h] = (share @ value[seen, kv]) * gate[t, h]
    return Expected(query, index_query, pooled, outs)


def whole_text(slot: int, length: int, step: int) -> list[list[Span]]:
    """Windows that read a text in spans of `step` rows."""
    return [[Span(slot, at, min(step, length - at), 1)] for at in range(0, length, step)]


@pytest.mark.parametrize(
    ("dense", "step"), [(False, 1), (False, 5), (True, 5)], ids=["sparse-1", "sparse-5", "dense-5"]
)
def test_a_text_read_in_spans_equals_float64(device: str, dense: bool, step: int) -> None:
    """Lengths 1 to past the budget, every remainder of a block, blocks that begin before the window."""
    length = 15
    layer, texts = make_layer(device), Texts(device)
    wanted = expected(layer, texts, 1, length, dense=dense)
    for spans in whole_text(1, length, step):
        ran = run(layer, texts, spans, bucket=step + 1, dense=dense)
        at, count = spans[0].start, spans[0].count
        torch.testing.assert_close(ran.query[:count].double(), wanted.query[at : at + count], atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(ran.out[:count].double(), wanted.out[at : at + count], atol=2e-5, rtol=1e-4)
        assert (ran.out[count:] == 0).all()
        if not dense:
            found = ran.index_query[:count].double()
            torch.testing.assert_close(found, wanted.index_query[at : at + count], atol=2e-5, rtol=1e-5)
    if not dense:
        pool = layer.indexer.pooled[layer.pages[1].long()].flatten(0, 1)[: length // BLOCK]
        torch.testing.assert_close(pool.double(), wanted.pooled, atol=2e-5, rtol=1e-5)


STORAGE = {
    "bf16": (torch.bfloat16, False, 0.03),
    "int8": (torch.int8, False, 0.03),
    "f32-pinned": (torch.float32, True, 2e-5),
    "int8-pinned": (torch.int8, True, 0.03),
}


@pytest.mark.parametrize("name", STORAGE)
def test_every_storage_of_keys_and_values(device: str, name: str) -> None:
    dtype, pinned, tolerance = STORAGE[name]
    length = 13
    layer, texts = make_layer(device, dtype, pinned=pinned), Texts(device)
    wanted = expected(layer, texts, 2, length, dense=True).out
    for spans in whole_text(2, length, 5):
        ran = run(layer, texts, spans, bucket=5, dense=True, exact=dtype == torch.float32)
        at, count = spans[0].start, spans[0].count
        torch.testing.assert_close(ran.out[:count].double(), wanted[at : at + count], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    ("dense", "dtype"), [(False, torch.float32), (True, torch.bfloat16)], ids=["sparse-exact", "dense-bf16"]
)
def test_company_bucket_and_spans_change_no_bit(device: str, dense: bool, dtype: torch.dtype) -> None:
    """The same rows alone in the smallest bucket, among others in a larger one, in short spans and long ones."""
    texts = Texts(device)
    results = []
    for spans, bucket in (
        ([[Span(0, at, 1, 1)] for at in range(13)], 1),
        ([[Span(3, at // 2, 1, 1), Span(0, at, 2, 1)] for at in range(0, 12, 2)] + [[Span(0, 12, 1, 1)]], 4),
        (whole_text(0, 13, 7), 7),
    ):
        layer = make_layer(device, dtype)
        rows = []
        for window in spans:
            first = sum(span.count for span in window[: [span.slot for span in window].index(0)])
            count = next(span.count for span in window if span.slot == 0)
            ran = run(layer, texts, window, bucket=bucket, dense=dense, exact=dtype == torch.float32)
            rows.append(ran.out[first : first + count])
        own = layer.pool.keys[layer.pages[0].long()].float()
        results.append((torch.cat(rows), torch.nan_to_num(own)))
    for rows, pool in results[1:]:
        assert torch.equal(rows, results[0][0])
        assert torch.equal(pool, results[0][1])


def test_a_rejected_draft_leaves_nothing_behind(device: str) -> None:
    """Rows that are not kept are run again with other inputs: all state is that of the second run."""
    texts, other = Texts(device), Texts(device)
    other.values = other.values + 1
    plain, after = make_layer(device), make_layer(device)
    for at in range(0, 9, 3):
        span = [Span(1, at, 3, 1)]
        run(plain, texts, span, bucket=3)
        run(after, other, [Span(1, at, 3, 1)], bucket=3)
        if at:
            run(after, texts, [Span(1, at - 1, 1, 1)], bucket=1)
        run(after, texts, span, bucket=3)
    for name in ("keys", "values"):
        assert torch.equal(torch.nan_to_num(getattr(plain.pool, name)), torch.nan_to_num(getattr(after.pool, name)))
    assert torch.equal(torch.nan_to_num(plain.indexer.pooled), torch.nan_to_num(after.indexer.pooled))


AXES = {"text": 0, "picture": 1}


@pytest.mark.parametrize("kind", AXES)
@pytest.mark.parametrize("position", [0, 3, 131_071, 262_143, 1_048_575], ids=str)
def test_rotary_tables_equal_the_hosts(device: str, kind: str, position: int) -> None:
    rows = window_rows([Span(0, position, 1, 1)], bucket=2, slots=1, device=device)
    offsets = torch.tensor([[0], [7], [-3]]) * AXES[kind]
    axes = (rows.position.cpu() + offsets).clamp(min=0).to(torch.int32).contiguous()
    ring = torch.zeros((2, 16, 3), dtype=torch.int32)
    ring[0, (position - 3) % 16] = torch.tensor([max(position - 3, 0), 11, 5])
    table = frequencies(dims=64, theta=1e7, sections=(11, 11, 10), device=device)
    out = RopeRows.empty(rows=2, pairs=32, device=device)
    rope_rows(
        rows, axes.to(device), frequencies=table, block_tokens=4, out=out,
        axis_ring=ring.to(device) if AXES[kind] else None,
    )  # fmt: skip
    first = ring[0, (position - 3) % 16] if AXES[kind] else axes[:, 0] - 3
    wanted = torch.stack((axes[:, 0], first), 1).long()
    cos, sin = rope_tables(wanted, dims=64, theta=1e7, sections=(11, 11, 10))
    torch.testing.assert_close(out.cos[:, 0].cpu(), cos[:, 0, :32], atol=2e-7, rtol=0)
    torch.testing.assert_close(out.sin[:, 0].cpu(), sin[:, 0, 32:], atol=2e-7, rtol=0)


def test_scaled_frequencies() -> None:
    """Linear divides all; YaRN leaves what turns often, divides what turns rarely, and scales the rotation."""
    plain = frequencies(dims=64, theta=1e7, sections=(11, 11, 10))
    linear = frequencies(dims=64, theta=1e7, sections=(11, 11, 10), scaling=Scaling(kind="linear", factor=4.0))
    scaling = Scaling(kind="yarn", factor=4.0, trained_tokens=262_144)
    yarn = frequencies(dims=64, theta=1e7, sections=(11, 11, 10), scaling=scaling)
    assert torch.equal(linear.inverse, plain.inverse / 4)
    turns = plain.inverse.double() * 262_144 / (2 * math.pi)
    assert torch.equal(yarn.inverse[turns > 32 * 2], plain.inverse[turns > 32 * 2])
    torch.testing.assert_close(yarn.inverse[turns < 0.5], plain.inverse[turns < 0.5] / 4)
    assert (yarn.inverse[1:] < yarn.inverse[:-1]).all()
    assert yarn.magnitude == pytest.approx(1.1386294)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="'linear' and 'yarn'"):
        Scaling(kind="ntk", factor=2.0)
    with pytest.raises(ValueError, match="from 1"):
        Scaling(kind="linear", factor=float("inf"))
    with pytest.raises(ValueError, match="trained context"):
        Scaling(kind="yarn", factor=2.0)
    with pytest.raises(ValueError, match="pairs"):
        frequencies(dims=7, theta=1e4, sections=SECTIONS)
    with pytest.raises(ValueError, match="int8 and for nothing else"):
        KvPool(keys=torch.zeros(1, 1, 4, 8, dtype=torch.int8), values=torch.zeros(1, 1, 4, 8, dtype=torch.int8))
    with pytest.raises(ValueError, match="float32, bf16 or int8"):
        KvPool(keys=torch.zeros(1, 1, 4, 8).half(), values=torch.zeros(1, 1, 4, 8).half())
