"""Attention of a decode window on the device: preparation, then sparse or dense attention with the output gate.

All grids depend on the bucket and on the model's shapes; slots, positions and lengths are read from device memory, so
a captured graph serves any context. A row's sums have one order, which its own position decides.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kernels.attention._decode import attend_split, merge
from kernels.attention._prepare import prepare
from kernels.attention.pool import KvPool
from kernels.planes import operand_columns
from kernels.rope.decode import RopeRows
from kernels.terms import check_operand, check_tensor, launch_options
from kernels.window import RING_POSITIONS, WindowRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """The sparse attention indexer of one layer.

    Attributes:
        query_norm, key_norm: float32 [dim].
        ring: float32 [slots + 1, 16, dim], raw keys by position.
        pooled: float32, bf16 or fp16 [pages + 1, blocks of a page, dim]: keys of complete blocks.
        block_tokens: tokens of a block.
    """

    query_norm: torch.Tensor
    key_norm: torch.Tensor
    ring: torch.Tensor
    pooled: torch.Tensor
    block_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """Products of the layer's input, each float32 [terms, rows, heads, dim], summed over terms in order.

    Any strides but the last, which is 1: views of one fused product, or of several.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    gate: torch.Tensor
    index_query: torch.Tensor | None = None
    index_key: torch.Tensor | None = None

    def check(self, rows: int) -> None:
        """Raises ValueError unless every part is float32 [terms, rows, heads, dim] with adjacent values."""
        parts = (self.query, self.key, self.value, self.gate, self.index_query, self.index_key)
        for name, part in zip(("query", "key", "value", "gate", "index_query", "index_key"), parts, strict=True):
            if part is None:
                continue
            if part.dtype != torch.float32 or part.dim() != 4 or part.shape[1] != rows or part.stride(3) != 1:
                raise ValueError(
                    f"{name} is float32 [terms, {rows}, heads, dim] of adjacent values, "
                    f"found {part.dtype} {list(part.shape)} with strides {part.stride()}"
                )
        if self.value.shape[2:] != self.key.shape[2:] or self.gate.shape[2:] != self.query.shape[2:]:
            raise ValueError(
                f"values are shaped as keys and gates as queries, found {list(self.value.shape)}, "
                f"{list(self.key.shape)}, {list(self.gate.shape)}, {list(self.query.shape)}"
            )
        if self.query.shape[2] % self.key.shape[2]:
            raise ValueError(f"{self.query.shape[2]} query heads are not a multiple of {self.key.shape[2]} KV heads")


def query_dtype(pool_dtype: torch.dtype) -> torch.dtype:
    """Type of query rows for keys of this type: exact products for float32 keys, tensor cores for others."""
    return torch.float32 if pool_dtype == torch.float32 else torch.float16


def prepare_attention(
    mixed: Mixed,
    rows: WindowRows,
    *,
    rope: RopeRows,
    query_norm: torch.Tensor,
    key_norm: torch.Tensor,
    pool: KvPool,
    pages: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    indexer: Indexer | None = None,
    index_out: torch.Tensor | None = None,
    pdl: bool = False,
) -> None:
    """Norms and rotates queries and keys, appends keys and values to their pages, feeds the indexer.

    `rope` and `rows` must be at least two launches old: they are read before the dependency wait. A span has at most
    `16 - block_tokens + 1` rows, which is what the ring of raw indexer keys can tell apart.

    Args:
        mixed: products of the layer's input.
        rows: of the window.
        rope: tables of the window.
        query_norm, key_norm: float32 [dim].
        pool: gets the rows' keys and values.
        pages: int32 [slots + 1, pages of the longest context].
        eps: of the norms.
        out: queries [rows, heads, dim] of `query_dtype(pool.keys.dtype)`.
        indexer: None for layers without one.
        index_out: indexer queries [rows, heads, dim], float32 for a float32 pool of block keys, else fp16.
        pdl: start before the launch before this one is done.

    Raises:
        ValueError: shapes or dtypes that do not fit.
    """
    mixed.check(rows.rows)
    heads, dim = mixed.query.shape[2:]
    kv_heads = mixed.key.shape[2]
    page_tokens = pool.keys.shape[2]
    if pool.keys.shape[1] != kv_heads or pool.keys.shape[3] != dim:
        raise ValueError(f"the pool holds {list(pool.keys.shape[1:])}, the window's keys are {kv_heads} heads of {dim}")
    check_tensor("query rows", out, (rows.rows, heads, dim), query_dtype(pool.keys.dtype))
    check_tensor("query_norm", query_norm, (dim,))
    check_tensor("key_norm", key_norm, (dim,))
    pairs = rope.cos.shape[2]
    index_heads, index_dim, block_tokens = 0, 2 * pairs, 1
    if indexer is not None:
        index_heads, index_dim, block_tokens = _check_indexer(mixed, rows, indexer, index_out, page_tokens)
    if 2 * pairs > min(dim, index_dim):
        raise ValueError(f"{2 * pairs} values are to be rotated, heads have {dim} and the indexer's {index_dim}")
    index_query = mixed.query if indexer is None or mixed.index_query is None else mixed.index_query
    index_key = mixed.query if indexer is None or mixed.index_key is None else mixed.index_key
    prepare[(heads + 2 * kv_heads + index_heads + bool(index_heads), rows.rows)](
        mixed.query,
        mixed.key,
        mixed.value,
        index_query,
        index_key,
        *mixed.query.stride()[:3],
        *mixed.key.stride()[:3],
        *mixed.value.stride()[:3],
        *index_query.stride()[:3],
        *index_key.stride()[:2],
        query_norm,
        key_norm,
        query_norm if indexer is None else indexer.query_norm,
        query_norm if indexer is None else indexer.key_norm,
        rope.cos,
        rope.sin,
        rows.slot,
        rows.position,
        rows.span,
        rows.span_first,
        rows.rows_used,
        pages,
        pages.stride(0),
        *pool.launch_arguments(),
        out if indexer is None else indexer.ring,
        out if indexer is None else indexer.pooled,
        out,
        out if index_out is None else index_out,
        eps,
        rows.rows,
        QUERY_TERMS=mixed.query.shape[0],
        KEY_TERMS=mixed.key.shape[0],
        VALUE_TERMS=mixed.value.shape[0],
        IQ_TERMS=index_query.shape[0],
        IK_TERMS=index_key.shape[0],
        HEADS=heads,
        KV_HEADS=kv_heads,
        INDEX_HEADS=index_heads,
        DIM=dim,
        BLOCK=triton.next_power_of_2(dim),
        INDEX_DIM=index_dim,
        INDEX_BLOCK=triton.next_power_of_2(index_dim),
        PAIRS=pairs,
        BLOCK_TOKENS=block_tokens,
        PAGE_TOKENS=page_tokens,
        RING=RING_POSITIONS,
        KIND=pool.kind,
        PDL=pdl,
        num_warps=2,
        **launch_options(pdl),
    )


def _check_indexer(
    mixed: Mixed, rows: WindowRows, indexer: Indexer, index_out: torch.Tensor | None, page_tokens: int
) -> tuple[int, int, int]:
    """Heads, dim and block of the indexer, checked against everything it touches."""
    if mixed.index_query is None or mixed.index_key is None or index_out is None:
        raise ValueError("a layer with an indexer needs its query and key products and a place for its queries")
    index_heads, index_dim = mixed.index_query.shape[2:]
    if page_tokens % indexer.block_tokens:
        raise ValueError(f"pages of {page_tokens} tokens do not hold whole blocks of {indexer.block_tokens}")
    exact = indexer.pooled.dtype == torch.float32
    dtype = torch.float32 if exact else torch.float16
    check_tensor("indexer queries", index_out, (rows.rows, index_heads, index_dim), dtype)
    check_tensor("indexer query_norm", indexer.query_norm, (index_dim,))
    check_tensor("indexer key_norm", indexer.key_norm, (index_dim,))
    check_tensor("indexer ring", indexer.ring, (indexer.ring.shape[0], RING_POSITIONS, index_dim))
    check_tensor(
        "block keys", indexer.pooled,
        (indexer.pooled.shape[0], page_tokens // indexer.block_tokens, index_dim), indexer.pooled.dtype,
    )  # fmt: skip
    if mixed.index_key.shape[2:] != (1, index_dim):
        raise ValueError(f"the indexer has one key head of {index_dim}, found {list(mixed.index_key.shape[2:])}")
    return index_heads, index_dim, indexer.block_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """How a row's tokens are shared between programs; shapes and storage decide, never rows or lengths.

    Attributes:
        count: splits of a row.
        steps: tiles of a split; for dense attention lengths decide instead.
        tile: tokens that are loaded at once.
    """

    count: int
    steps: int
    tile: int


def sparse_splits(*, budget_blocks: int, block_tokens: int, kind: int, tokens: int = 64) -> Splits:
    """Splits for selected blocks and tail: `tokens` each."""
    tile = min(32 if kind == 0 else 64, tokens)
    most = budget_blocks * block_tokens + block_tokens - 1
    return Splits(count=-(-most // tokens), steps=tokens // tile, tile=tile)


def dense_splits(*, kind: int, count: int = 64) -> Splits:
    """Splits for all tokens up to the row."""
    return Splits(count=count, steps=1, tile=32 if kind == 0 else 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionScratch:
    """What the splits leave for the merge; all layers of a window share it.

    Attributes:
        sums: float32 [rows, heads, splits, dim].
        stats: float32 [rows, heads, splits, 2].
    """

    sums: torch.Tensor
    stats: torch.Tensor

    @classmethod
    def empty(cls, *, rows: int, heads: int, dim: int, splits: int, device: torch.device | str) -> AttentionScratch:
        """Scratch for up to `splits` splits."""
        shape = (rows, heads, splits, dim)
        return cls(
            sums=torch.empty(shape, device=device),
            stats=torch.empty((*shape[:3], 2), device=device),
        )


def attend_decode(
    query: torch.Tensor,
    gate: torch.Tensor,
    rows: WindowRows,
    *,
    pool: KvPool,
    pages: torch.Tensor,
    splits: Splits,
    scratch: AttentionScratch,
    exact: bool,
    out: torch.Tensor,
    places: torch.Tensor | None = None,
    block_tokens: int = 1,
    pdl: bool = False,
) -> None:
    """Softmax attention of every row, times sigmoid(gate): over chosen blocks and the tail, or over everything.

    Args:
        query: [rows, heads, dim] from `prepare_attention`, not scaled.
        gate: float32 [terms, rows, heads, dim], any strides but the last.
        rows: of the window.
        pool: keys and values, those of the window's rows included.
        pages: int32 [slots + 1, pages].
        splits: from `sparse_splits` or `dense_splits`.
        scratch: for at least `splits.count` splits.
        exact: whether operand rows are float32.
        out: operand rows of heads * dim inputs.
        places: int32 [rows, budget blocks] from `kernels.qsa.decode`; None for dense attention.
        block_tokens: tokens of a block.
        pdl: start before the launch before this one is done.

    Raises:
        ValueError: shapes or dtypes that do not fit.
    """
    count, heads, dim = query.shape
    kv_heads, page_tokens = pool.keys.shape[1:3]
    check_tensor("query rows", query, (rows.rows, heads, dim), query_dtype(pool.keys.dtype))
    check_operand("attention output", out, rows=count, inputs=heads * dim, exact=exact)
    if gate.dtype != torch.float32 or gate.shape[1:] != query.shape or gate.stride(3) != 1:
        raise ValueError(f"gate is float32 [terms, {count}, {heads}, {dim}], found {gate.dtype} {list(gate.shape)}")
    if scratch.sums.numel() < count * heads * splits.count * dim:
        raise ValueError(
            f"scratch of {list(scratch.sums.shape)} is too small for {splits.count} splits of {count} rows"
        )
    budget = 1
    if places is not None:
        budget = places.shape[1]
        check_tensor("places", places, (count, budget), torch.int32)
        if splits.count * splits.steps * splits.tile < budget * block_tokens + block_tokens - 1:
            raise ValueError(f"{splits} do not hold {budget} blocks of {block_tokens} tokens and a tail")
    block_dim = max(16, triton.next_power_of_2(dim))
    shape = {
        "HEADS": heads, "DIM": dim, "BLOCK_DIM": block_dim, "BLOCK_TOKENS": block_tokens, "BUDGET": budget,
        "SPLITS": splits.count, "STEPS": splits.steps, "TILE": splits.tile, "DENSE": places is None, "PDL": pdl,
    }  # fmt: skip
    attend_split[(count, kv_heads, splits.count)](
        query,
        *pool.launch_arguments(),
        rows.slot,
        rows.position,
        rows.rows_used,
        pages,
        pages.stride(0),
        pages if places is None else places,
        scratch.sums,
        scratch.stats,
        dim**-0.5,
        KV_HEADS=kv_heads,
        BLOCK_HEADS=max(16, triton.next_power_of_2(heads // kv_heads)),
        PAGE_TOKENS=page_tokens,
        KIND=pool.kind,
        STAGES=1 if pool.kind == 0 or (splits.steps == 1 and places is not None) else 2,
        num_warps=4,
        **shape,
        **launch_options(pdl),
    )
    merge[(heads, count)](
        scratch.sums,
        scratch.stats,
        gate,
        *gate.stride()[:3],
        rows.position,
        rows.rows_used,
        out,
        PADDED=operand_columns(heads * dim),
        BLOCK_SPLITS=triton.next_power_of_2(splits.count),
        GATE_TERMS=gate.shape[0],
        EXACT=exact,
        num_warps=8,
        **shape,
        **launch_options(pdl),
    )
