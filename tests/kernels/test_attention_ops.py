"""Compiled attention and selection over scattered pages against their plain references."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kernels.attention.reference as attention_reference
import kernels.norm.reference as norm_reference
import kernels.qsa.reference as qsa_reference
import kernels.rope.reference as rope_reference
from kernels.attention.op import KvPages, attend, prepare
from kernels.compiled.arrays import Floats
from kernels.compiled.attend import soften
from kernels.compiled.jit import compiled
from kernels.qsa.op import IndexPages, pool_keys, select_blocks
from kernels.rope import rope_tables

EPS = np.float32(1e-6)
PAGE, BLOCK, DIM = 8, 4, 6


def near(found: np.ndarray, wanted: torch.Tensor, tolerance: float = 2e-5) -> None:
    assert found.shape == tuple(wanted.shape)
    assert np.isfinite(found).all()
    assert np.abs(found - wanted.numpy()).max() <= tolerance * max(1.0, float(wanted.abs().max()))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(11)


def tables(positions: np.ndarray, dims: int) -> tuple[np.ndarray, np.ndarray]:
    cos, sin = rope_tables(torch.from_numpy(positions), dims=dims, theta=100.0, sections=(1, 1, 0))
    return cos.squeeze(1).numpy(), sin.squeeze(1).numpy()


def rotated(x: torch.Tensor, positions: np.ndarray, dims: int) -> torch.Tensor:
    axes = torch.from_numpy(positions).expand(3, -1)
    return rope_reference.rotate(x, axes, dims=dims, theta=100.0, sections=(1, 1, 0))


def window(*spans: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Spans of (rows, position of the first), and pages of their contexts, scattered and none twice."""
    rows, first = [], 0
    for slot, (count, start) in enumerate(spans):
        rows.append((slot, first, count, start))
        first += count
    longest = max(-(-(count + start) // PAGE) for count, start in spans)
    return np.array(rows, dtype=np.int64), torch.randperm(len(spans) * longest).view(len(spans), longest).numpy()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_queries_keys_and_values_are_prepared(kind: torch.dtype) -> None:
    heads, kv_heads, rows, dims = 4, 2, 3, 4
    mixed, norm = torch.randn(rows, (heads + 2 * kv_heads) * DIM + 5), torch.rand(heads + kv_heads, DIM)
    positions, places = np.array([3, 40, 7]), np.array([17, 2, 30])
    pools = torch.full((2, kv_heads, 4, PAGE, DIM), float("nan"), dtype=kind)
    arrays = KvPages(*(pool.numpy() if kind == torch.float32 else pool.view(torch.int16).numpy() for pool in pools))
    query = prepare(mixed.numpy(), norm.numpy(), *tables(positions, dims), EPS, arrays, places)
    both = mixed[:, : (heads + kv_heads) * DIM].reshape(rows, -1, DIM)
    wanted = rotated(norm_reference.rms_norm(both, norm, eps=1e-6), positions, dims)
    near(query, wanted[:, :heads], 1e-4)
    written = pools.flatten(2, 3)[:, :, places].float()
    tolerance = 1e-4 if kind == torch.float32 else 1e-2
    near(written[0].numpy(), wanted[:, heads:].transpose(0, 1), tolerance)
    values = mixed[:, (heads + kv_heads) * DIM : (heads + 2 * kv_heads) * DIM].reshape(rows, kv_heads, DIM)
    near(written[1].numpy(), values.transpose(0, 1), tolerance)
    assert int(pools.flatten(2, 3).isnan().any(3).sum()) == 2 * kv_heads * (4 * PAGE - rows)


def seen_by(spans: np.ndarray, chosen: np.ndarray) -> list[list[int]]:
    """Tokens that each row sees."""
    found = []
    for _, first, count, start in spans:
        for t in range(count):
            complete = (start + t + 1) // BLOCK if chosen.shape[1] else 0
            blocks = [b for b in range(complete) if chosen[first + t, b]]
            tokens = [b * BLOCK + i for b in blocks for i in range(BLOCK)]
            found.append(tokens + list(range(complete * BLOCK, start + t + 1)))
    return found


SHAPES = {"drafts": ((5, 9), (5, 30)), "one row": ((1, 0),), "a prompt": ((19, 0), (1, 11))}


@pytest.mark.parametrize("spans", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (3, 3)], ids=["grouped", "one to one"])
def test_attention(
    spans: tuple[tuple[int, int], ...], kind: torch.dtype, sparse: bool, heads: int, kv_heads: int
) -> None:
    table, pages = window(*spans)
    rows = int(table[:, 2].sum())
    pools = torch.randn(2, kv_heads, pages.size, PAGE, DIM).to(kind)
    query, gates = torch.randn(rows, heads, DIM), torch.randn(rows, 3 + heads * DIM)
    chosen = torch.randint(0, 2, (rows, pages.shape[1] * PAGE // BLOCK * sparse), dtype=torch.uint8).numpy()
    chosen[:, :1] = 1
    visible = seen_by(table, chosen)
    wanted = torch.zeros(rows, heads * DIM)
    for s, (_, first, count, start) in enumerate(table):
        ordered = pools.float()[:, :, pages[s]].flatten(2, 3)
        for r in range(first, first + count):
            mask = torch.zeros(1, 1, ordered.shape[2], dtype=torch.bool)
            mask[0, 0, visible[r]] = True
            found = attention_reference.attend(query[None, r : r + 1], ordered[0][:, None], ordered[1][:, None], mask)
            wanted[r] = found.flatten() * torch.sigmoid(gates[r, 3:])
        for token in range(start + count, pages.shape[1] * PAGE):  # what no row sees may be anything
            pools[:, :, pages[s, token // PAGE], token % PAGE] = float("nan")
    arrays = KvPages(*(pool.numpy() if kind == torch.float32 else pool.view(torch.int16).numpy() for pool in pools))
    out = attend(query.numpy(), arrays, pages, table, chosen, BLOCK, gates.numpy(), 3)
    near(out, wanted)
    for s, (_, first, count, start) in enumerate(table):
        own, alone = slice(first, first + count), np.array([[0, 0, count, start]])
        same = attend(query[own].numpy(), arrays, pages[s : s + 1], alone, chosen[own], BLOCK, gates[own].numpy(), 3)
        assert np.array_equal(same, out[own])


@pytest.mark.parametrize(
    ("count", "start", "budget"),
    [(5, 43, 3), (1, 15, 2), (40, 0, 4), (3, 5, 8)],
    ids=["drafts", "one", "prompt", "few"],
)
def test_selection_prefers_earlier_blocks_among_equals(count: int, start: int, budget: int) -> None:
    table, pages = window((2, 1), (count, start))
    heads, blocks = 2, pages.shape[1] * PAGE // BLOCK
    positions = np.concatenate((np.arange(1, 3), np.arange(start, start + count)))
    queries, norm = torch.randn(2 + count, heads, DIM), torch.rand(DIM) + 0.5
    normed = rotated(norm_reference.rms_norm(queries, norm, eps=1e-6), positions, 4)
    ordered = torch.randn(blocks, DIM)
    ordered[1::3] = -normed[2, 0] * 5  # many scores that are exactly 0 or equal
    ordered[2::4] = ordered[0]
    pooled = torch.full((pages.size, PAGE // BLOCK, DIM), float("nan"))
    complete = (start + count) // BLOCK
    pooled[pages[1]] = ordered.index_fill(0, torch.arange(complete, blocks), float("nan")).view(-1, PAGE // BLOCK, DIM)
    chosen = select_blocks(
        queries.numpy(), *tables(positions, 4), norm.numpy(), EPS, pooled.numpy(), pages, table, BLOCK, budget
    )
    where = torch.from_numpy(positions[None, 2:])
    wanted = qsa_reference.visible_tokens(
        normed[None, 2:], ordered[None], where, block_tokens=BLOCK, budget_blocks=budget
    )
    found = torch.zeros_like(wanted[0])
    for r, tokens in enumerate(seen_by(table, chosen)[2:]):
        found[r, tokens] = True
    assert torch.equal(found, wanted[0])


def test_pooled_keys_are_averaged_then_normed_then_rotated() -> None:
    history, keys, weight = torch.randn(2, BLOCK - 1, 8), torch.randn(7, 8), torch.rand(8)
    table = np.array([[1, 0, 2, 6], [0, 2, 5, 11]])
    # Of the first span the block from token 4 (two rows of history), of the second those from 8 and 12.
    blocks = np.array([[0, 4, 9], [1, 8, 0], [1, 12, 5]])
    raw = [
        torch.cat((history[1, 1:], keys[:2])),
        torch.cat((history[0], keys[2:3])),
        keys[3:7],
    ]
    normed = norm_reference.rms_norm(torch.stack([part.mean(0) for part in raw]), weight, eps=1e-6)
    wanted = rotated(normed[:, None], blocks[:, 1], 4)[:, 0]
    index = IndexPages(np.full((5, 2, 8), np.nan, np.float32), history.numpy())
    pool_keys(index, keys.numpy(), table, blocks, *tables(blocks[:, 1], 4), weight.numpy(), EPS)
    near(index.pooled.reshape(10, 8)[blocks[:, 2]], wanted, 1e-4)
    assert int(np.isnan(index.pooled).any(2).sum()) == 7


@compiled
def softened(scores: Floats, tokens: int, total: Floats) -> None:
    soften(scores, 0, tokens, total, 0)


@pytest.mark.parametrize("behind", [1e30, np.inf, np.nan])
@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 29])
def test_what_lies_behind_the_last_score_counts_for_nothing(tokens: int, behind: float) -> None:
    """Runs of tokens leave there what was in memory, and it was once taken for the largest score."""
    scores, total = np.full(48, behind, np.float32), np.full(1, np.nan, np.float32)
    own = np.random.default_rng(tokens).standard_normal(tokens).astype(np.float32) * 5
    scores[:tokens] = own
    softened(scores, tokens, total)
    wanted = np.exp(own - own.max())
    assert np.allclose(scores[:tokens], wanted, rtol=1e-5, atol=1e-7)
    assert np.allclose(total[0], wanted.sum(), rtol=1e-5)
    assert not scores[tokens : -(-tokens // 16) * 16].any()
