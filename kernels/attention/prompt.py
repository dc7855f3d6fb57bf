"""Attention of a prompt chunk on the device: preparation, then dense or block-sparse attention with the output gate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kernels.attention._chunk import attend, line_up
from kernels.attention._chunk_prepare import note_keys, prepare
from kernels.attention.decode import Indexer, query_dtype
from kernels.attention.pool import KvPool
from kernels.chunk import Chunk
from kernels.qsa.prompt import ChunkSelection
from kernels.rope.decode import RopeRows
from kernels.terms import check_tensor
from kernels.window import RING_POSITIONS

MOST_PAIRS = {torch.float32: 32, torch.bfloat16: 128, torch.int8: 128}
"""(Row, query head) pairs of one program, by the storage of keys and values."""

MOST_GROUP_ROWS = 16

LINE_BYTES = 1 << 28
"""Keys and values in order of as many KV heads as fit here, and of one at least: pages are read once a chunk, in
whatever storage and memory they are, and products then read 16 or 32 bit values with nothing to look up."""


def group_rows(pool: KvPool, *, heads: int) -> int:
    """Rows that attention takes together, and for which `select_chunk` lists blocks."""
    return max(1, min(MOST_GROUP_ROWS, MOST_PAIRS[pool.keys.dtype] // (heads // pool.keys.shape[1])))


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedChunk:
    """Products of the layer's input, each fp16 or float32 [rows, heads, dim]; any strides but the last, which is 1."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    index_query: torch.Tensor | None = None
    index_key: torch.Tensor | None = None

    def check(self, rows: int) -> None:
        """Raises ValueError unless the parts belong together."""
        parts = (self.query, self.key, self.value, self.index_query, self.index_key)
        for name, part in zip(("query", "key", "value", "index_query", "index_key"), parts, strict=True):
            if part is not None:
                _check_heads(name, part, rows)
        if self.value.shape != self.key.shape or self.query.shape[1] % self.key.shape[1]:
            raise ValueError(
                f"values are shaped as keys, query heads are a multiple of KV heads, found {list(self.value.shape)}, "
                f"{list(self.key.shape)} and {list(self.query.shape)}"
            )


def prepare_chunk(
    mixed: MixedChunk,
    chunk: Chunk,
    *,
    rope: RopeRows,
    query_norm: torch.Tensor,
    key_norm: torch.Tensor,
    pool: KvPool,
    pages: torch.Tensor,
    eps: float,
    indexer: Indexer | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Norms and rotates queries and keys, appends keys and values to their pages, completes blocks of the indexer.

    Args:
        mixed: products of the layer's input.
        chunk: where the rows belong.
        rope: tables of its rows.
        query_norm, key_norm: float32 [dim].
        pool: gets the rows' keys and values.
        pages: int32 [slots + 1, pages of the longest context].
        eps: of the norms.
        indexer: None for layers without one. Gets the keys of blocks and, in its ring, the last raw keys.

    Returns:
        Queries [rows, heads, dim] of `query_dtype(pool.keys.dtype)`; with an indexer its queries, float32 for float32
        block keys, else fp16.

    Raises:
        ValueError: shapes or dtypes that do not fit.
    """
    rows, (heads, dim), kv_heads = chunk.rows, mixed.query.shape[1:], mixed.key.shape[1]
    pairs, page_tokens, device = rope.cos.shape[2], pool.keys.shape[2], pages.device
    _check_prepare(mixed, chunk, rope, query_norm, key_norm, pool)
    out = torch.empty(rows, heads, dim, dtype=query_dtype(pool.keys.dtype), device=device)
    index_out, index_heads, index_dim, block_tokens = None, 0, 2 * pairs, 1
    index_query = index_key = mixed.query
    ring = pooled = out
    index_norms = (query_norm, query_norm)
    if indexer is not None:
        index_query, index_key = _check_indexer(mixed, indexer, page_tokens)
        index_heads, index_dim = index_query.shape[1:]
        block_tokens, ring, pooled = indexer.block_tokens, indexer.ring, indexer.pooled
        index_norms = (indexer.query_norm, indexer.key_norm)
        index_out = torch.empty(rows, index_heads, index_dim, dtype=query_dtype(pooled.dtype), device=device)
    if 2 * pairs > min(dim, index_dim):
        raise ValueError(f"{2 * pairs} values are to be rotated, heads have {dim} and the indexer's {index_dim}")
    block = triton.next_power_of_2(dim)
    tile = max(1, 4096 // block)
    prepare[(triton.cdiv(rows, tile), heads + 2 * kv_heads + index_heads + bool(index_heads))](
        mixed.query, mixed.key, mixed.value, index_query, index_key,
        *mixed.query.stride()[:2], *mixed.key.stride()[:2], *mixed.value.stride()[:2],
        *index_query.stride()[:2], index_key.stride(0),
        query_norm, key_norm, *index_norms, rope.cos, rope.sin, pages, pages.stride(0),
        *pool.launch_arguments(), ring, pooled, out, out if index_out is None else index_out,
        chunk.place, rows, eps,
        HEADS=heads, KV_HEADS=kv_heads, INDEX_HEADS=index_heads, DIM=dim, BLOCK=block,
        INDEX_DIM=index_dim, INDEX_BLOCK=triton.next_power_of_2(index_dim), PAIRS=pairs, BLOCK_TOKENS=block_tokens,
        PAGE_TOKENS=page_tokens, RING=RING_POSITIONS, KIND=pool.kind, ROWS=tile, num_warps=4,
    )  # fmt: skip
    if indexer is not None:
        note_keys[(RING_POSITIONS,)](
            index_key, ring, index_key.stride(0), chunk.place,
            DIM=index_dim, BLOCK=triton.next_power_of_2(index_dim), RING=RING_POSITIONS, num_warps=1,
        )  # fmt: skip
    return out, index_out


def attend_chunk(
    query: torch.Tensor,
    gate: torch.Tensor,
    chunk: Chunk,
    *,
    pool: KvPool,
    pages: torch.Tensor,
    exact: bool,
    selection: ChunkSelection | None = None,
) -> torch.Tensor:
    """Softmax attention of every row, times sigmoid(gate): over chosen blocks and the tail, or over everything.

    Args:
        query: [rows, heads, dim] from `prepare_chunk`, not scaled.
        gate: fp16 or float32 [rows, heads, dim], any strides but the last.
        chunk: where the rows belong.
        pool: keys and values, those of the chunk's rows included.
        pages: int32 [slots + 1, pages].
        exact: whether the result is float32.
        selection: from `kernels.qsa.prompt`; None for dense attention.

    Returns:
        [rows, heads * dim], float32 if exact, else fp16.

    Raises:
        ValueError: shapes or dtypes that do not fit.
    """
    rows, heads, dim = query.shape
    kv_heads = pool.keys.shape[1]
    check_tensor("query rows", query, (chunk.rows, heads, dim), query_dtype(pool.keys.dtype))
    _check_heads("gate", gate, rows)
    group = group_rows(pool, heads=heads)
    groups = triton.cdiv(rows, group)
    lists = (chunk.tokens, chunk.tokens, chunk.tokens, 0)
    if selection is not None:
        if selection.rows != group or selection.counts.shape != (groups,):
            raise ValueError(
                f"a selection of {selection.counts.shape[0]} groups of {selection.rows} rows; "
                f"attention takes {groups} groups of {group}"
            )
        lists = (selection.blocks, selection.members, selection.counts, selection.blocks.stride(0))
    out = torch.empty(rows, heads * dim, dtype=torch.float32 if exact else torch.float16, device=query.device)
    shared, narrow = heads // kv_heads, pool.kind != 0
    together = heads_in_line(pool, context=chunk.reach)
    line = torch.empty(2, together, chunk.reach, dim, dtype=query.dtype, device=query.device)
    for first in range(0, kv_heads, together):
        now = min(together, kv_heads - first)
        _line_up(pool, pages, chunk, first=first, heads=now, line=line)
        attend[(now, groups)](
            query, gate, *gate.stride()[:2], line[0], line[1], *lists, out,
            chunk.place, first, chunk.reach, dim**-0.5,
            HEADS=heads, SHARED=shared, DIM=dim, BLOCK_DIM=max(16, triton.next_power_of_2(dim)),
            BLOCK_TOKENS=1 if selection is None else selection.block_tokens, GROUP=group,
            PAIRS=max(16, triton.next_power_of_2(group * shared)), TILE=64 if narrow else 32, DENSE=selection is None,
            EXACT=not narrow, OUT_EXACT=exact, STAGES=2 if narrow else 1, num_warps=8,
        )  # fmt: skip
    return out


def heads_in_line(pool: KvPool, *, context: int) -> int:
    """KV heads whose keys and values of `context` tokens are lined up at once."""
    kv_heads, _, dim = pool.keys.shape[1:]
    return max(1, min(kv_heads, LINE_BYTES // (2 * context * dim * query_dtype(pool.keys.dtype).itemsize)))


def _line_up(pool: KvPool, pages: torch.Tensor, chunk: Chunk, *, first: int, heads: int, line: torch.Tensor) -> None:
    kv_heads, page_tokens, dim = pool.keys.shape[1:]
    block = triton.next_power_of_2(dim)
    tile = max(1, 4096 // block)
    line_up[(triton.cdiv(chunk.reach, tile), heads)](
        *pool.launch_arguments(), pages, pages.stride(0), line[0], line[1], chunk.place, first, chunk.reach,
        KV_HEADS=kv_heads, DIM=dim, BLOCK=block, PAGE_TOKENS=page_tokens, ROWS=tile, SCALED=pool.kind == 2,
        EXACT=pool.kind == 0, num_warps=4,
    )  # fmt: skip


def _check_prepare(
    mixed: MixedChunk,
    chunk: Chunk,
    rope: RopeRows,
    query_norm: torch.Tensor,
    key_norm: torch.Tensor,
    pool: KvPool,
) -> None:
    (kv_heads, dim), tables = mixed.key.shape[1:], (2, chunk.rows, rope.cos.shape[2])
    mixed.check(chunk.rows)
    if pool.keys.shape[1] != kv_heads or pool.keys.shape[3] != dim:
        raise ValueError(f"the pool holds {list(pool.keys.shape[1:])}, the chunk's keys are {kv_heads} heads of {dim}")
    check_tensor("query_norm", query_norm, (dim,))
    check_tensor("key_norm", key_norm, (dim,))
    check_tensor("cosines", rope.cos, tables)
    check_tensor("sines", rope.sin, tables)


def _check_heads(name: str, part: torch.Tensor, rows: int) -> None:
    if part.dtype not in (torch.float16, torch.float32) or part.dim() != 3 or part.shape[0] != rows:
        raise ValueError(f"{name} is fp16 or float32 [{rows}, heads, dim], found {part.dtype} {list(part.shape)}")
    if part.stride(2) != 1:
        raise ValueError(f"{name} has adjacent values, found strides {part.stride()}")


def _check_indexer(mixed: MixedChunk, indexer: Indexer, page_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The indexer's products."""
    query, key = mixed.index_query, mixed.index_key
    if query is None or key is None or key.shape[1:] != (1, query.shape[2]):
        raise ValueError("an indexer needs its queries and one key head of the same size")
    dim, block_tokens = query.shape[2], indexer.block_tokens
    if page_tokens % block_tokens:
        raise ValueError(f"pages of {page_tokens} tokens do not hold whole blocks of {block_tokens}")
    check_tensor("indexer query_norm", indexer.query_norm, (dim,))
    check_tensor("indexer key_norm", indexer.key_norm, (dim,))
    check_tensor("indexer ring", indexer.ring, (indexer.ring.shape[0], RING_POSITIONS, dim))
    pooled = indexer.pooled
    check_tensor("block keys", pooled, (pooled.shape[0], page_tokens // block_tokens, dim), pooled.dtype)
    return query, key
