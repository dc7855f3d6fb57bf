"""Times quantised products at the real model's shapes: one line a matrix or layer and row count, in CUDA graphs.

Run on a card: python -m tests.bench.kernels [--rows 1,2,4,8,16] [--only TEXT] [--processes N]

Every line is checked first: against float64 with the dequantised weights, with and without dependent launches, from
poisoned outputs. A line that fails is named and has no numbers. The checks run in several processes, which also
compiles the kernels. Weights are synthetic: a few packed matrices, repeated; experts are drawn uniformly. More bytes
are read than the cache holds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.bandwidth import read_in_place
from kernels.experts import ExpertKind, ExpertLayout, down, gate_up, make_buffers, pack_expert, route, table_entry
from kernels.experts.reference import experts_reference
from kernels.linear import linear, splits
from kernels.planes import Planes, common_format, from_operand, pack, to_operand
from kernels.quant import dequantise
from tests.bench.graph_clock import graph_seconds
from tests.builders.blocks import model_rows

BOUND = 2e-3
CACHE_BYTES = 300 << 20
HIDDEN, FF, EXPERTS, USED, REAL, LAYERS = 2560, 640, 512, 10, 8, 8
DEVICE = torch.device("cuda")


@dataclass(frozen=True)
class Matrix:
    """A dense product."""

    name: str
    type: str
    rows: int
    columns: int


@dataclass(frozen=True)
class Mixture:
    """A layer of experts: ggml types of gate and up, and of down; `form` overrides the plane format of the first."""

    name: str
    type: str
    down: str
    form: str | None = None


LINES: tuple[Matrix | Mixture, ...] = (
    Matrix("gdn in", "Q8_0", 16512, 2560),
    Matrix("gdn in", "Q4_K", 16512, 2560),
    Matrix("gdn in", "Q6_K", 16512, 2560),
    Matrix("out", "Q8_0", 2560, 6144),
    Matrix("hc up", "Q8_0", 10240, 320),
    Matrix("hc down", "Q8_0", 320, 10240),
    Matrix("router", "F32", 544, 2560),
    Matrix("head", "Q8_0", 248320, 2560),
    Matrix("head", "Q4_K", 248320, 2560),
    Mixture("experts IQ3_S as 4 bit", "IQ3_S", "IQ4_NL"),
    Mixture("experts IQ3_S compact", "IQ3_S", "IQ4_NL", "iq3"),
    Mixture("experts IQ4_XS", "IQ4_XS", "IQ4_NL"),
    Mixture("experts Q4_K", "Q4_K", "Q5_1"),
    Mixture("experts IQ2_XXS", "IQ2_XXS", "Q2_0"),
)


@dataclass(frozen=True)
class Launch:
    """What one line times: launches with the bytes of weights each reads."""

    name: str
    run: Callable[[], None]
    launches: int
    total_bytes: int


def main() -> int:
    """Checks all lines in several processes, then prints the table of those that are right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1,2,4,8,16")
    parser.add_argument("--only", default="")
    parser.add_argument("--processes", type=int, default=7)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("this bench times CUDA graphs and needs a CUDA card; tests/kernels run without one")
        return 2
    counts = [int(word) for word in arguments.rows.split(",")]
    chosen = [number for number, line in enumerate(LINES) if arguments.only in f"{line.name} {line.type}"]
    started = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with context.Pool(arguments.processes) as pool:
        answers = pool.starmap(check, [(number, counts) for number in chosen], chunksize=1)
    bad = {number: answer for number, answer in zip(chosen, answers, strict=True) if answer}
    print(f"checked {len(chosen)} lines, {len(bad)} wrong, {time.perf_counter() - started:.0f} s", flush=True)
    for number, answer in bad.items():
        print(f"WRONG {LINES[number].name} {LINES[number].type}: {answer}", flush=True)
    rate = read_rate()
    print(f"{torch.cuda.get_device_name()}: plain read kernel {rate / 1e9:.0f} GB/s; weights are synthetic", flush=True)
    print(f"{'what':<34} {'rows':>4} {'us':>9} {'GB/s':>6} {'share':>6}", flush=True)
    for number in chosen:
        if number not in bad:
            report(LINES[number], counts, rate)
    return 1 if bad else 0


def report(line: Matrix | Mixture, counts: list[int], rate: float) -> None:
    """Prints a line's rows; an error is printed in their place."""
    try:
        for launch in launches(line, counts):
            seconds = graph_seconds(launch.run) / launch.launches
            speed = launch.total_bytes / launch.launches / seconds
            print(f"{launch.name:<39} {seconds * 1e6:>9.2f} {speed / 1e9:>6.0f} {speed / rate:>6.1%}", flush=True)
    except Exception as error:
        print(f"FAILED {line.name} {line.type}: {error!r}", flush=True)
    torch.cuda.empty_cache()


def check(number: int, counts: list[int]) -> str:
    """An empty string when a line's results are right at every row count, else what is wrong."""
    try:
        line = LINES[number]
        worst = 0.0
        for count in counts:
            worst = max(worst, check_matrix(line, count) if isinstance(line, Matrix) else check_mixture(line, count))
        return "" if worst < BOUND else f"differs from float64 by {worst:.1e}, allowed {BOUND:.0e}"
    except Exception:
        return traceback.format_exc()[-1500:]


def matrix_planes(line: Matrix) -> tuple[Planes, torch.Tensor, int]:
    """The whole matrix (packed rows, repeated), the blocks, and how many rows were packed."""
    real = min(line.rows, 2048)
    raw = model_rows(line.type, rows=real, columns=line.columns, device="cuda")
    part = pack(line.type, raw, columns=line.columns)
    words = part.words.repeat(-(-line.rows // real))
    planes = Planes(part.format, line.rows, line.columns, words)
    size = planes.strips * part.form.strip_words(line.columns)
    return planes.with_words(words[:size].contiguous()), raw, real


def check_matrix(line: Matrix, count: int) -> float:
    """Difference from float64, relative to the norm; infinite where two runs or repeated rows differ."""
    planes, raw, real = matrix_planes(line)
    x = to_operand(torch.randn(count, line.columns, device=DEVICE), exact=False)
    sums = []
    for pdl in (False, True):
        out = torch.full((splits(line.rows, line.columns), count, line.rows), float("nan"), device=DEVICE)
        linear(x, planes, out=out, exact=False, pdl=pdl)
        sums.append(out.sum(0))
    again = sums[0][:, torch.arange(line.rows, device=DEVICE) % real]
    if not torch.equal(sums[0], sums[1]) or not torch.equal(sums[0], again):
        return float("inf")
    wanted = (
        from_operand(x, columns=line.columns).double() @ dequantise(raw, line.type, columns=line.columns).double().T
    )
    return float((sums[0][:, :real] - wanted).norm() / wanted.norm())


@dataclass(frozen=True)
class Experts:
    """A packed layer: the pool must outlive the table."""

    layout: ExpertLayout
    pool: torch.Tensor
    shared: torch.Tensor
    table: torch.Tensor
    anchor: torch.Tensor
    weights: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def make_experts(line: Mixture) -> Experts:
    """512 experts, of which 8 are different, and a Q8_0 shared one."""
    form = common_format(line.type, line.type, line.form).name
    kind = ExpertKind(gate_up=form, down=common_format(line.down, line.down).name, hidden=HIDDEN, ff=FF)
    own = ExpertKind(gate_up="q8", down="q8", hidden=HIDDEN, ff=FF)
    words, weights = [], []
    for number in range(REAL + 1):
        types = ("Q8_0",) * 3 if number == REAL else (line.type, line.type, line.down)
        sides = ((FF, HIDDEN), (FF, HIDDEN), (HIDDEN, FF))
        parts = [
            (name, model_rows(name, rows=n, columns=k, seed=3 * number + at, device="cuda"))
            for at, (name, (n, k)) in enumerate(zip(types, sides, strict=True))
        ]
        words.append(pack_expert(*parts, kind=own if number == REAL else kind))
        values = [dequantise(raw, name, columns=k).double() for (name, raw), (_, k) in zip(parts, sides, strict=True)]
        weights.append((values[0], values[1], values[2]))
    pool = torch.stack([words[expert % REAL] for expert in range(EXPERTS)])
    anchor = torch.zeros(4, dtype=torch.int32, device=DEVICE)
    entries = [table_entry(pool[expert], anchor, host=False) for expert in range(EXPERTS)]
    entries.append(table_entry(words[REAL], anchor, host=False))
    layout = ExpertLayout(experts=EXPERTS, used=USED, kind=kind, host_kind=kind, shared_kind=own)
    every = [weights[expert % REAL] for expert in range(EXPERTS)] + [weights[REAL]]
    return Experts(layout, pool, words[REAL], torch.tensor(entries, device=DEVICE), anchor, every)


def check_mixture(line: Mixture, count: int) -> float:
    """As `check_matrix`, of a whole layer."""
    made = make_experts(line)
    x = to_operand(torch.randn(count, HIDDEN, device=DEVICE), exact=False)
    logits = torch.randn(10, count, EXPERTS + 32, device=DEVICE)
    results = []
    for pdl in (False, True):
        buffers = make_buffers(made.layout, rows=count, exact=False, device=DEVICE)
        buffers.hidden.fill_(float("nan"))
        out = torch.full((count, USED + 1, HIDDEN), float("nan"), device=DEVICE)
        route(logits, made.table, layout=made.layout, buffers=buffers, gate_column=EXPERTS, pdl=pdl)
        gate_up(x, made.anchor, layout=made.layout, buffers=buffers, exact=False, pdl=pdl)
        down(made.anchor, layout=made.layout, buffers=buffers, out=out, exact=False, pdl=pdl)
        results.append(out)
    if not torch.equal(results[0], results[1]):
        return float("inf")
    seen = from_operand(x, columns=HIDDEN).double()
    wanted = experts_reference(seen, logits.sum(0)[:, : EXPERTS + 1].double(), made.weights, used=USED)
    return float((results[0] - wanted).norm() / wanted.norm())


def launches(line: Matrix | Mixture, counts: list[int]) -> list[Launch]:
    """What to time of a line, buffers included."""
    if isinstance(line, Matrix):
        return matrix_launches(line, counts)
    made = make_experts(line)
    return [launch for count in counts for launch in mixture_launches(line, made, count)]


def matrix_launches(line: Matrix, counts: list[int]) -> list[Launch]:
    """One launch a row count, over as many copies as the cache cannot hold."""
    planes, _, _ = matrix_planes(line)
    size = planes.words.numel() * 4
    copies = [planes] + [planes.with_words(planes.words.clone()) for _ in range(min(40, CACHE_BYTES // size))]
    found = []
    for count in counts:
        x = to_operand(torch.randn(count, line.columns, device=DEVICE), exact=False)
        out = torch.empty((splits(line.rows, line.columns), count, line.rows), device=DEVICE)

        def run(x: torch.Tensor = x, out: torch.Tensor = out) -> None:
            for copy in copies:
                linear(x, copy, out=out, exact=False, pdl=True)

        name = f"{line.name} {line.rows}x{line.columns} {line.type}"
        found.append(Launch(f"{name:<34} {count:>4}", run, len(copies), size * len(copies)))
    return found


def mixture_launches(line: Mixture, made: Experts, count: int) -> list[Launch]:
    """Routing, gate and up, and down, each over several routings."""
    layout, kind = made.layout, made.layout.kind
    x = to_operand(torch.randn(count, HIDDEN, device=DEVICE), exact=False)
    out = torch.empty((count, USED + 1, HIDDEN), device=DEVICE)
    logits = [torch.randn(10, count, EXPERTS + 32, device=DEVICE) for _ in range(LAYERS)]
    buffers = [make_buffers(layout, rows=count, exact=False, device=DEVICE) for _ in range(LAYERS)]

    def choose() -> None:
        for one, buffer in zip(logits, buffers, strict=True):
            route(one, made.table, layout=layout, buffers=buffer, gate_column=EXPERTS, pdl=True)

    def first() -> None:
        for buffer in buffers:
            gate_up(x, made.anchor, layout=layout, buffers=buffer, exact=False, pdl=True)

    def second() -> None:
        for buffer in buffers:
            down(made.anchor, layout=layout, buffers=buffer, out=out, exact=False, pdl=True)

    choose()
    shared = layout.shared_kind
    distinct = sum(len(buffer.ids[:, :USED].unique()) for buffer in buffers)
    upper = 4 * (distinct * kind.gate_up_words + LAYERS * shared.gate_up_words)
    lower = 4 * (distinct * (kind.words - kind.gate_up_words) + LAYERS * (shared.words - shared.gate_up_words))
    read = sum(one.numel() * 4 for one in logits)
    return [
        Launch(f"{f'{line.name} {what}':<34} {count:>4}", run, LAYERS, size)
        for what, run, size in (("route", choose, read), ("gate up", first, upper), ("down", second, lower))
    ]


def read_rate() -> float:
    """Bytes a second of the plain reading kernel over 2 GiB."""
    words = torch.ones(1 << 29, dtype=torch.int32, device=DEVICE)
    out = read_in_place(words)
    return words.numel() * 4 / graph_seconds(lambda: void(read_in_place(words, out=out)))


def void(_: object) -> None:
    """Nothing."""


if __name__ == "__main__":
    sys.exit(main())
