"""Times of what mixes a prompt chunk's rows, at the large model's shape: python -m tests.bench.prompt_parts.

Times are of a run of launches as the engine sends them, without graphs: with few rows the host is what limits. Inputs
are random; choices of real texts cluster, so that groups of rows list fewer blocks than here. Right results are the
business of `tests/kernels/test_*_chunk.py`, which also run at this shape on a card.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch

from kernels.attention.pool import KvPool
from kernels.attention.prompt import attend_chunk, group_rows
from kernels.chunk import Chunk
from kernels.gdn.chunk import run_delta_chunk
from kernels.gdn.decode import DeltaWeights, new_state
from kernels.hyper.decode import ReadPlanes
from kernels.hyper.prompt import write_and_read_chunk
from kernels.linear.prompt import Room, room_halves
from kernels.qsa.prompt import select_chunk
from tests.kernels.matrices import planes

KEY_HEADS, VALUE_HEADS, GDN_DIM = 16, 48, 128
HEADS, KV_HEADS, DIM, INDEX_HEADS, INDEX_DIM, BLOCK, PAGE, BUDGET = 24, 2, 256, 4, 128, 4, 64, 512
STREAMS, HIDDEN, LOW = 4, 2560, 320
EPS = 1e-6
DEVICE = "cuda"


def halves(*shape: int) -> torch.Tensor:
    """Random fp16."""
    return torch.randn(shape, device=DEVICE).half()


def chunk_of(start: int, rows: int) -> Chunk:
    return Chunk.of(0, start, torch.zeros(rows, dtype=torch.int32, device=DEVICE))


def microseconds(part: Callable[[], object], runs: int = 5) -> float:
    """Mean time of `runs` calls, after two that compile."""
    for _ in range(2):
        part()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(runs):
        part()
    end.record()
    end.synchronize()
    return 1000 * begin.elapsed_time(end) / runs


def linear_mixer(rows: int) -> Callable[[], object]:
    """Gated DeltaNet between its products."""
    channels, width = (2 * KEY_HEADS + VALUE_HEADS) * GDN_DIM, VALUE_HEADS * GDN_DIM
    weights = DeltaWeights(
        conv=torch.randn(4, channels, device=DEVICE) * 0.5,
        rate=-(torch.rand(VALUE_HEADS, device=DEVICE) + 0.1),
        bias=torch.randn(VALUE_HEADS, device=DEVICE),
        norm=torch.rand(GDN_DIM, device=DEVICE) + 0.5,
    )
    (state,) = new_state(1, key_heads=KEY_HEADS, heads=VALUE_HEADS, dim=GDN_DIM, device=DEVICE)
    narrow = torch.randn(2, rows, VALUE_HEADS, device=DEVICE)
    return partial(
        run_delta_chunk, qkv=halves(rows, channels), gate=halves(rows, width), alpha=narrow[0], beta=narrow[1],
        chunk=chunk_of(1, rows), weights=weights, state=state, eps=EPS, exact=False,
    )  # fmt: skip


def full_mixer(rows: int, start: int, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Selection and attention of a chunk after `start` tokens of context."""
    count = (start + rows) // PAGE + 1
    pool = KvPool.empty(pages=count, heads=KV_HEADS, page_tokens=PAGE, dim=DIM, dtype=dtype, device=DEVICE)
    for values, scales in ((pool.keys, pool.key_scales), (pool.values, pool.value_scales)):
        values.copy_(torch.randn(values.shape, device=DEVICE) * (1 if scales is None else 40))
        if scales is not None:
            scales.fill_(0.02)
    pages = torch.randperm(count, device=DEVICE).to(torch.int32).expand(2, -1).contiguous()
    pooled, chunk = halves(count + 1, PAGE // BLOCK, INDEX_DIM), chunk_of(start, rows)
    select = partial(
        select_chunk, halves(rows, INDEX_HEADS, INDEX_DIM), pooled, chunk,
        pages=pages, block_tokens=BLOCK, budget_blocks=BUDGET, group_rows=group_rows(pool, heads=HEADS),
    )  # fmt: skip
    attend = partial(
        attend_chunk, halves(rows, HEADS, DIM), halves(rows, HEADS, DIM), chunk, pool=pool, pages=pages, exact=False
    )
    return {"selection": select, "attention, chosen blocks": partial(attend, selection=select()), "all tokens": attend}


def read(rows: int) -> Callable[[], object]:
    """One write and read of the streams, its two products included."""
    generator, wide = torch.Generator().manual_seed(0), STREAMS * HIDDEN
    weights = ReadPlanes(
        norm=torch.ones(STREAMS, HIDDEN, device=DEVICE),
        down=planes("Q8_0", LOW, wide, generator, scale=1.0, device=DEVICE),
        up=planes("Q8_0", wide, LOW, generator, scale=1.0, device=DEVICE),
        inject=torch.randn(STREAMS, wide, device=DEVICE) / 100,
    )
    return partial(
        write_and_read_chunk, x=torch.randn(rows, STREAMS, HIDDEN, device=DEVICE), weights=weights,
        room=Room(room_halves([weights.down, weights.up], exact=False), device=DEVICE), eps=EPS, exact=False,
        parts=halves(1, rows, HIDDEN), inject=torch.full((rows, STREAMS), 0.01, device=DEVICE),
    )  # fmt: skip


def main() -> None:
    """Prints a line a part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--start", type=int, default=0, help="tokens of context before the chunk")
    parser.add_argument("--kv", choices=("bf16", "int8"), default="int8")
    options = parser.parse_args()
    dtype = {"bf16": torch.bfloat16, "int8": torch.int8}[options.kv]
    for rows in options.rows:
        parts = {"linear mixer": linear_mixer(rows), "read": read(rows), **full_mixer(rows, options.start, dtype)}
        for name, part in parts.items():
            print(f"{rows:6d} rows from {options.start}: {name:26s} {microseconds(part):8.0f} us", flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
