"""Times of attention, selection and drawing at the large model's shape: python -m tests.bench.attention_parts.

Prints nothing of a case whose results are wrong: the choice must equal the exact one of its own scores, attention a
float64 one over that choice. Weights, keys and values are random; choices of real texts cluster, random ones do not.
Each graph holds a launch chain for 12 layers (fewer in memory: the layers then take turns), with dependent launch.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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
from kernels.rope.decode import RopeRows, rope_rows
from kernels.rope.frequencies import frequencies
from kernels.rows import DrawRows
from kernels.sampling import Rules
from kernels.sampling.decode import Drawn, DrawScratch, draw
from kernels.sampling.slots import SlotRules
from kernels.terms import operand_rows
from tests.kernels.windows import Span, window_rows

HEADS, KV_HEADS, DIM, INDEX_HEADS, INDEX_DIM, BLOCK, PAGE, BUDGET, PAIRS = 24, 2, 256, 4, 128, 4, 64, 512, 32
LAYERS, VOCABULARY, TERMS = 12, 248_320, 4
POOL_BYTES = 24e9
DEVICE = "cuda"


@dataclass(frozen=True)
class Case:
    context: int
    sequences: int
    rows_each: int
    kv: torch.dtype

    @property
    def rows(self) -> int:
        return self.sequences * self.rows_each


def milliseconds(part: Callable[[int], None], launches: int) -> float:
    """Median time of a replay of a captured chain of `launches` parts."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        part(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(launches):
            part(i)
    times = []
    for i in range(12):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if i > 2:
            times.append(start.elapsed_time(end))
    return statistics.median(times)


class Bench:
    """One case: state of some layers, one window, buffers shared by the layers."""

    def __init__(self, case: Case, *, pdl: bool, tokens: int) -> None:
        self.case, self.pdl = case, pdl
        per = -(-(case.context + 16) // PAGE)
        pages = per * case.sequences
        element = 1 if case.kv == torch.int8 else 2
        layer_bytes = pages * PAGE * KV_HEADS * DIM * 2 * element
        self.layers = [self._layer(pages) for _ in range(max(2, min(LAYERS, int(POOL_BYTES / layer_bytes))))]
        table = torch.randperm(pages).view(case.sequences, per)
        self.pages = torch.cat((table, torch.full((1, per), pages))).to(torch.int32).to(DEVICE)
        spans = [Span(i, case.context - case.rows_each - 3 * i - 1, case.rows_each, 1) for i in range(case.sequences)]
        self.window = window_rows(spans, bucket=case.rows, slots=case.sequences, device=DEVICE)
        width = 2 * HEADS * DIM + 2 * KV_HEADS * DIM + (INDEX_HEADS + 1) * INDEX_DIM
        both, key, value, query, index_key = torch.randn((TERMS, case.rows, width), device=DEVICE).split(
            (2 * HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM, INDEX_HEADS * INDEX_DIM, INDEX_DIM), -1
        )
        both = both.unflatten(-1, (HEADS, 2, DIM))
        self.mixed = Mixed(
            query=both[..., 0, :],
            gate=both[..., 1, :],
            key=key.unflatten(-1, (KV_HEADS, DIM)),
            value=value.unflatten(-1, (KV_HEADS, DIM)),
            index_query=query.unflatten(-1, (INDEX_HEADS, INDEX_DIM)),
            index_key=index_key.unflatten(-1, (1, INDEX_DIM)),
        )
        self.rope = RopeRows.empty(rows=case.rows, pairs=PAIRS, device=DEVICE)
        axes = self.window.position.repeat(3, 1).contiguous()
        turns = frequencies(dims=2 * PAIRS, theta=1e7, sections=(11, 11, 10), device=DEVICE)
        rope_rows(self.window, axes, frequencies=turns, block_tokens=BLOCK, out=self.rope)
        self.query = torch.zeros((case.rows, HEADS, DIM), dtype=query_dtype(case.kv), device=DEVICE)
        self.index_query = torch.zeros((case.rows, INDEX_HEADS, INDEX_DIM), dtype=torch.float16, device=DEVICE)
        self.norms = torch.ones(DIM, device=DEVICE), torch.ones(INDEX_DIM, device=DEVICE)
        self.choice = Selection.empty(rows=case.rows, budget_blocks=BUDGET, device=DEVICE)
        self.select_scratch = SelectScratch.empty(rows=case.rows, longest_blocks=per * PAGE // BLOCK, device=DEVICE)
        kind = self.layers[0][0].kind
        self.sparse = sparse_splits(budget_blocks=BUDGET, block_tokens=BLOCK, kind=kind, tokens=tokens)
        self.dense = dense_splits(kind=kind)
        most = max(self.sparse.count, self.dense.count)
        self.scratch = AttentionScratch.empty(rows=case.rows, heads=HEADS, dim=DIM, splits=most, device=DEVICE)
        self.out = operand_rows(case.rows, HEADS * DIM, exact=False, device=DEVICE)

    def _layer(self, pages: int) -> tuple[KvPool, Indexer]:
        pool = KvPool.empty(pages=pages, heads=KV_HEADS, page_tokens=PAGE, dim=DIM, dtype=self.case.kv, device=DEVICE)
        for tensor in (pool.keys, pool.values):
            if tensor.dtype == torch.int8:
                tensor.random_(-127, 128)
            else:
                tensor.normal_()
        for scales in (pool.key_scales, pool.value_scales):
            if scales is not None:
                scales.uniform_(0.005, 0.02)
        pooled = torch.empty((pages + 1, PAGE // BLOCK, INDEX_DIM), dtype=torch.float16, device=DEVICE).normal_()
        indexer = Indexer(
            query_norm=torch.ones(INDEX_DIM, device=DEVICE),
            key_norm=torch.ones(INDEX_DIM, device=DEVICE),
            ring=torch.zeros((self.case.sequences + 1, 16, INDEX_DIM), device=DEVICE),
            pooled=pooled,
            block_tokens=BLOCK,
        )
        return pool, indexer

    def _layer_of(self, number: int) -> tuple[KvPool, Indexer]:
        return self.layers[number % len(self.layers)]

    def prepare(self, number: int) -> None:
        pool, indexer = self._layer_of(number)
        prepare_attention(
            self.mixed, self.window, rope=self.rope, query_norm=self.norms[0], key_norm=self.norms[0], pool=pool,
            pages=self.pages, eps=1e-6, out=self.query, indexer=indexer, index_out=self.index_query, pdl=self.pdl,
        )  # fmt: skip

    def select(self, number: int) -> None:
        select_decode(
            self.index_query, self._layer_of(number)[1].pooled, self.window, pages=self.pages, block_tokens=BLOCK,
            scratch=self.select_scratch, out=self.choice, pdl=self.pdl,
        )  # fmt: skip

    def attend(self, number: int, *, dense: bool = False) -> None:
        attend_decode(
            self.query, self.mixed.gate, self.window, pool=self._layer_of(number)[0], pages=self.pages,
            splits=self.dense if dense else self.sparse, scratch=self.scratch, exact=False, out=self.out,
            places=None if dense else self.choice.places, block_tokens=BLOCK, pdl=self.pdl,
        )  # fmt: skip

    def layer(self, number: int) -> None:
        self.prepare(number)
        self.select(number)
        self.attend(number)

    def time(self, part: Callable[[int], None], layers: int = LAYERS) -> float:
        """Microseconds of a layer."""
        return 1000 / layers * milliseconds(part, layers)

    def check(self) -> str:
        """Empty if the first layer's results are right, else what is wrong. Twice: counters must be clean again."""
        pool = self.layers[0][0]
        for _ in range(2):
            self.layer(0)
            torch.cuda.synchronize()
            for row in (0, self.case.rows - 1):
                position, slot = int(self.window.position[row]), int(self.window.slot[row])
                known = (position + 1) // BLOCK
                count = min(BUDGET, known)
                scores = self.select_scratch.scores[row, :known]
                best = torch.sort(scores, descending=True, stable=True).indices[:count].sort().values
                if not torch.equal(
                    self.choice.blocks[row, :count].long().sort().values,
                    best if known > BUDGET else best * 0 + torch.arange(count, device=DEVICE),
                ):
                    return f"row {row} chose other blocks than its scores say"
                tail = torch.arange(known * BLOCK, position + 1, device=DEVICE)
                seen = (
                    self.choice.blocks[row, :count].long()[:, None] * BLOCK + torch.arange(BLOCK, device=DEVICE)
                ).flatten()
                worst = self._difference(pool, row, slot, torch.cat((seen, tail)))
                if not worst < 4e-3:
                    return f"row {row} differs by {worst:.1e} from float64 attention"
            self.attend(0, dense=True)
            worst = self._difference(
                pool, 0, int(self.window.slot[0]), torch.arange(int(self.window.position[0]) + 1, device=DEVICE)
            )
            if not worst < 4e-3:
                return f"dense attention differs by {worst:.1e}"
        return ""

    def _difference(self, pool: KvPool, row: int, slot: int, seen: torch.Tensor) -> float:
        page = self.pages[slot, seen // PAGE].long()
        keys, values = (tensor[page, :, seen % PAGE].double() for tensor in (pool.keys, pool.values))
        if pool.key_scales is not None and pool.value_scales is not None:
            keys = keys * pool.key_scales[page, :, seen % PAGE][..., None]
            values = values * pool.value_scales[page, :, seen % PAGE][..., None]
        query = self.query[row].double().unflatten(0, (KV_HEADS, -1))
        share = torch.softmax(torch.einsum("gqd,tgd->gqt", query, keys) / DIM**0.5, -1)
        out = torch.einsum("gqt,tgd->gqd", share, values).flatten(0, 1)
        out = out * torch.sigmoid(self.mixed.gate[:, row].double().sum(0))
        found = from_operand(self.out, columns=HEADS * DIM)[row].unflatten(0, (HEADS, DIM)).double()
        return float((found - out).abs().max() / out.abs().max())


@dataclass(frozen=True)
class Drawing:
    logits: torch.Tensor
    rows: DrawRows
    rules: SlotRules
    scratch: DrawScratch
    out: Drawn
    greedy: bool
    pdl: bool

    def run(self, _: int) -> None:
        draw(
            self.logits, self.rows, self.rules, scratch=self.scratch, out=self.out, greedy=self.greedy, pdl=self.pdl
        )  # fmt: skip


def draw_times(*, pdl: bool) -> None:
    """Drawing at the real vocabulary."""
    print(f"\ndrawing, {VOCABULARY} tokens: us a window")
    rules = {
        "greedy": Rules(temperature=0),
        "top-k 20, top-p 0.95": Rules(top_k=20, top_p=0.95),
        "free": Rules(),
        "penalties": Rules(top_k=20, presence_penalty=1.0, repetition_penalty=1.1),
    }
    for count in (1, 4, 8, 16):
        logits = torch.randn((count, VOCABULARY), device=DEVICE) * 3
        whole = [torch.zeros(count, dtype=torch.int32, device=DEVICE) for _ in range(4)]
        rows = DrawRows(
            slot=whole[0], position=torch.arange(count, dtype=torch.int32, device=DEVICE), wanted=whole[1] + 1,
            recent_tokens=whole[2], recent_first=whole[2], recent_count=whole[3],
        )  # fmt: skip
        scratch = DrawScratch.empty(rows=count, vocabulary=VOCABULARY, device=DEVICE)
        out = Drawn.empty(rows=count, device=DEVICE)
        line = []
        for name, rule in rules.items():
            table = SlotRules.empty(slots=1, vocabulary=VOCABULARY, device=DEVICE)
            table.open(0, rule)

            drawing = Drawing(logits, rows, table, scratch, out, greedy=name == "greedy", pdl=pdl)
            line.append(f"{name} {milliseconds(drawing.run, 8) * 125:.1f}")
        print(f"  {count:2} rows: " + ", ".join(line), flush=True)


def cases(kv: torch.dtype, quick: bool) -> list[Case]:
    """Rows as sequences of one row each, and as one or more spans of four."""
    found = []
    for context in (8192, 32_768, 262_144):
        for sequences, each in ((1, 1), (4, 1), (8, 1), (16, 1), (1, 4), (4, 4)):
            if not quick or each == 1:
                found.append(Case(context, sequences, each, kv))
    return found


def main() -> None:
    """Runs all cases; a wrong one is named and the exit code is 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kv", choices=("bf16", "int8"), default="bf16")
    parser.add_argument("--tokens", type=int, default=64, help="of one split of sparse attention, from 32")
    parser.add_argument("--quick", action="store_true", help="only sequences of one row")
    parser.add_argument("--no-pdl", action="store_true")
    asked = parser.parse_args()
    pdl = not asked.no_pdl
    kv = torch.int8 if asked.kv == "int8" else torch.bfloat16
    wrong = 0
    print(f"us a layer, kv {asked.kv}, {asked.tokens} tokens a split, pdl {pdl}, {torch.cuda.get_device_name()}")
    for case in cases(kv, asked.quick):
        bench = Bench(case, pdl=pdl, tokens=asked.tokens)
        name = f"{case.context:7} tokens, {case.sequences:2} x {case.rows_each} rows"
        trouble = bench.check()
        if trouble:
            wrong += 1
            print(f"{name}: WRONG: {trouble}", flush=True)
            continue
        prepare, select = bench.time(bench.prepare), bench.time(bench.select)
        attend, layer = bench.time(bench.attend), bench.time(bench.layer)
        dense = bench.time(partial(bench.attend, dense=True), layers=3)
        moved = case.rows * min(case.context, BUDGET * BLOCK) * KV_HEADS * DIM * 2 * (1 if kv == torch.int8 else 2)
        times = f"prepare {prepare:.1f}, select {select:.1f}, attend {attend:.1f} ({moved / attend / 1e3:.0f} GB/s)"
        whole = f"layer {layer:.1f}, 12 layers {layer * LAYERS / 1000:.2f} ms"
        print(
            f"{name}: {times}, {whole}; dense {dense:.1f}",
            flush=True,
        )
        torch.cuda.empty_cache()
    draw_times(pdl=pdl)
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
