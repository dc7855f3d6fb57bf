"""Times the parts of a decode window that are no plain product, at the real model's shape, in CUDA graphs.

Run on a card: python -m tests.bench.window_parts [--rows 1,4,8,16] [--no-pdl]

Nothing is printed before each part has been compared with its float64 reference on this card. Weights and states are
synthetic and differ from layer to layer, so that more bytes are read than the cache holds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from kernels.embedding import EntryWeights, Table, embed, enter_draft
from kernels.embedding import new_buffers as entry_buffers
from kernels.gdn import decode as gdn
from kernels.hyper import decode as hyper
from kernels.ngram import decode as ngram
from kernels.planes import Planes
from kernels.terms import operand_rows
from kernels.window import RING_POSITIONS, WindowRows
from tests.bench.graph_clock import graph_seconds
from tests.kernels import test_gdn_decode, test_hyper_decode, test_ngram_decode
from tests.kernels.matrices import planes, raw_matrix
from tests.kernels.windows import Span, window_rows

STREAMS, HIDDEN, LOW = 4, 2560, 320
KEY_HEADS, HEADS, DIM = 16, 48, 128
WIDE, CHANNELS = STREAMS * HIDDEN, (2 * KEY_HEADS + HEADS) * DIM
NGRAM_HEADS, NGRAM_WIDTH, NGRAM_ROWS = 16, 160, 1 << 20
PAIRS, LAYERS = 24, 12
EPS = 1e-6
DEVICE = "cuda"


@dataclass(frozen=True)
class Line:
    """One measurement: `run` does `count` of them, each reading `bytes_read` of weights or state."""

    name: str
    count: int
    bytes_read: int
    run: Callable[[], None]


def main() -> int:
    """Checks, then prints a line for each part and row count; 1 if a check fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1,4,8,16")
    parser.add_argument("--no-pdl", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("window_parts: needs a CUDA card", file=sys.stderr)
        return 1
    bad = [name for name, error, bound in checks() if not error <= bound]
    if bad:
        print(f"window_parts: wrong results, nothing is timed: {', '.join(bad)}", file=sys.stderr)
        return 1
    pdl = not arguments.no_pdl and torch.cuda.get_device_capability()[0] >= 9
    rate = read_rate()
    print(f"{torch.cuda.get_device_name()}; reads {rate / 1e9:.0f} GB/s; dependent launch {'on' if pdl else 'off'}")
    print(f"{'rows':>4}  {'part':<44} {'us':>8} {'GB/s':>7} {'of limit':>8}")
    for rows in (int(text) for text in arguments.rows.split(",")):
        for make in (hyper_lines, delta_lines, ngram_lines, entry_lines):
            for line in make(rows, pdl):
                seconds = graph_seconds(line.run) / line.count
                speed = line.bytes_read / seconds
                print(f"{rows:>4}  {line.name:<44} {seconds * 1e6:>8.2f} {speed / 1e9:>7.0f} {speed / rate:>7.0%}")
            torch.cuda.empty_cache()
    return 0


def checks() -> Iterator[tuple[str, float, float]]:
    """Name, relative error and bound of every part at the real shape (the n-gram's at the tests' shape)."""
    shape = test_hyper_decode.Shape(STREAMS, HIDDEN, LOW)
    weights = test_hyper_decode.weights(shape, DEVICE)
    for rows in (1, 5, 16, 19):
        inputs = test_hyper_decode.Inputs.make(shape, rows, 3)
        found = test_hyper_decode.run(inputs, weights, DEVICE, exact=False)
        _, block, _ = test_hyper_decode.expected(inputs, weights)
        yield f"hyper-connections, {rows} rows", far(found.block, block), 2e-3
    engine = test_gdn_decode.Engine(test_gdn_decode.Shape(KEY_HEADS, HEADS, DIM), 2, DEVICE, exact=False)
    plan = [[(0, 3, 2, 1)], [(0, 1, 4, 0), (1, 1, 0, 0)], [(0, 1, 1, 1)]]
    for slot, session in test_gdn_decode.play(engine, plan, bucket=6, seed=1).items():
        wanted = test_gdn_decode.expected(engine.shape, engine.weights, session.tokens)
        yield f"gated delta net, slot {slot}", far(torch.stack(session.outputs), wanted), 2e-3
    layer = test_ngram_decode.Layer(DEVICE, exact=False)
    for slot, told in test_ngram_decode.play(layer, [[(0, 2, 2, 1)], [(0, 1, 1, 0)]], bucket=4).items():
        wanted = test_ngram_decode.expected(layer, told.tokens, torch.stack(told.x))
        yield f"n-gram embedding, slot {slot}", far(torch.stack(told.out), wanted), 5e-3


def far(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Norm of the difference over the norm."""
    return float((found.double() - wanted).norm() / wanted.norm())


def copies(matrix: Planes, count: int) -> list[Planes]:
    """The same matrix at `count` places in memory."""
    return [matrix.with_words(matrix.words.clone()) for _ in range(count)]


def hyper_lines(rows: int, pdl: bool) -> Iterator[Line]:
    """A write and the read after it, as in a layer, for outputs of a product and of experts."""
    first = test_hyper_decode.weights(test_hyper_decode.Shape(STREAMS, HIDDEN, LOW), DEVICE)
    reads = [
        replace(first, down=down, up=up)
        for down, up in zip(copies(first.down, PAIRS), copies(first.up, PAIRS), strict=True)
    ]
    buffers = hyper.new_buffers(rows, weights=first, exact=False)
    x = torch.randn(rows, STREAMS, HIDDEN, device=DEVICE)
    block = torch.empty(rows, HIDDEN, device=DEVICE)
    operand = operand_rows(rows, HIDDEN, exact=False, device=DEVICE)
    sums = [torch.zeros(rows, STREAMS, STREAMS, device=DEVICE) for _ in range(2)]
    size = 4 * (first.down.words.numel() + first.up.words.numel())
    for terms, name in ((1, "1 part"), (4, "4 parts"), (11, "11 experts")):
        parts = torch.randn(rows, terms, HIDDEN, device=DEVICE).transpose(0, 1) * 0.01

        def run(parts: torch.Tensor = parts) -> None:
            for i, read in enumerate(reads):
                hyper.write_and_read(
                    x=x, weights=read, buffers=buffers, block=block, operand=operand, eps=EPS, exact=False, pdl=pdl,
                    parts=parts, gate=sums[i % 2], sums=sums[1 - i % 2],
                )  # fmt: skip

        yield Line(f"hyper-connections, {name}", PAIRS, size, run)


def delta_lines(rows: int, pdl: bool) -> Iterator[Line]:
    """Layers of the delta net: every row its own sequence, and spans of up to 4 rows that replay 2 rows each."""
    sizes = {"key_heads": KEY_HEADS, "heads": HEADS, "dim": DIM, "device": DEVICE}
    included = torch.zeros(LAYERS, rows + 1, dtype=torch.int32, device=DEVICE)
    made = gdn.new_state(rows, layers=LAYERS, **sizes)
    states = [replace(state, at=at) for state, at in zip(made, included, strict=True)]
    weights = test_gdn_decode.weights(test_gdn_decode.Shape(KEY_HEADS, HEADS, DIM), DEVICE)
    buffers = gdn.new_buffers(rows, **sizes)
    operand = operand_rows(rows, HEADS * DIM, exact=False, device=DEVICE)
    product = torch.randn(1, rows, CHANNELS + HEADS * DIM, device=DEVICE)
    small = torch.randn(4, rows, 2 * HEADS, device=DEVICE)
    spans = [Span(i, 40, min(4, rows - 4 * i), 1) for i in range(-(-rows // 4))]
    for name, chosen, replayed in (
        (f"gated delta net, {rows} sequences", [Span(i, 40, 1, 1) for i in range(rows)], 0),
        (f"gated delta net, {len(spans)} spans of up to 4, 2 replayed", spans, 2),
    ):
        window = window_rows(chosen, bucket=rows, slots=rows, device=DEVICE)

        def run(window: WindowRows = window, replayed: int = replayed) -> None:
            included.fill_(40 - replayed)  # a run moves it on
            for state in states:
                gdn.run_delta(
                    qkv=product[:, :, :CHANNELS], gate=product[:, :, CHANNELS:], alpha=small[:, :, :HEADS],
                    beta=small[:, :, HEADS:], rows=window, weights=weights, state=state,
                    buffers=buffers, operand=operand, eps=EPS, exact=False, pdl=pdl,
                )  # fmt: skip

        yield Line(name, LAYERS, len(chosen) * 2 * 4 * HEADS * DIM * DIM, run)


def ngram_lines(rows: int, pdl: bool) -> Iterator[Line]:
    """Hash and gather from device and from pinned memory; products, gate and convolution."""
    generator = torch.Generator().manual_seed(1)
    width, heads = NGRAM_HEADS * NGRAM_WIDTH, NGRAM_HEADS

    def norm() -> torch.Tensor:
        return torch.ones(STREAMS, HIDDEN, device=DEVICE)

    weights = ngram.NgramWeights(
        key=planes("Q8_0", WIDE, width, generator, scale=1.0, device=DEVICE),
        value=planes("Q8_0", HIDDEN, width, generator, scale=1.0, device=DEVICE),
        norm_key=norm(), norm_query=norm(), norm_conv=norm(), conv=torch.randn(4, WIDE, device=DEVICE),
    )  # fmt: skip
    each = NGRAM_ROWS // heads
    hashing = ngram.NgramHash(
        multipliers=torch.tensor([23703573157769, 20109073645365, 8052911324071], device=DEVICE),
        head_rows=torch.full((heads,), each - 5, dtype=torch.int64, device=DEVICE),
        head_offsets=torch.arange(heads, device=DEVICE) * each,
        reset=248044,
    )
    raw = raw_matrix("IQ4_NL", 1 << 12, NGRAM_WIDTH, generator, scale=1.0).repeat(NGRAM_ROWS >> 12, 1)
    state = ngram.NgramState(
        tokens=torch.zeros(rows + 1, RING_POSITIONS, dtype=torch.int32, device=DEVICE),
        conv=torch.zeros(rows + 1, RING_POSITIONS, WIDE, device=DEVICE),
    )
    spans = [Span(i, 40, 1, 1, (1000 * i + 7,)) for i in range(rows)]
    window = window_rows(spans, bucket=rows, slots=rows, device=DEVICE)
    buffers = ngram.new_buffers(rows, weights=weights, heads=heads, exact=False)
    x = torch.randn(rows, STREAMS, HIDDEN, device=DEVICE)
    for name, table in (("device", raw.to(DEVICE)), ("pinned", raw.pin_memory())):

        def gather(table: torch.Tensor = table) -> None:
            for _ in range(10):
                ngram.gather_ngrams(
                    table=Table(table, "IQ4_NL", NGRAM_WIDTH), hashing=hashing, rows=window, state=state,
                    buffers=buffers, exact=False, pdl=pdl,
                )  # fmt: skip

        yield Line(f"n-gram gather, {name} memory", 10, rows * heads * raw.shape[1], gather)

    def add() -> None:
        for _ in range(10):
            ngram.add_ngrams(
                x=x, rows=window, weights=weights, order=3, state=state, buffers=buffers, eps=EPS, exact=False, pdl=pdl
            )

    yield Line("n-gram products (cached), gate, convolution", 10, 4 * weights.key.words.numel(), add)


def entry_lines(rows: int, pdl: bool) -> Iterator[Line]:
    """Token embedding, and the entry of the draft layer."""
    generator = torch.Generator().manual_seed(1)
    half = planes("Q8_0", HIDDEN, HIDDEN, generator, scale=1.0, device=DEVICE)
    weights = EntryWeights(
        token_norm=torch.ones(HIDDEN, device=DEVICE), state_norm=torch.ones(STREAMS, HIDDEN, device=DEVICE),
        from_token=half, from_state=copies(half, 1)[0],
    )  # fmt: skip
    table = Table(raw_matrix("Q8_0", 1 << 12, HIDDEN, generator, scale=50.0).to(DEVICE), "Q8_0", HIDDEN)
    tokens = torch.arange(rows, dtype=torch.int32, device=DEVICE) * 17
    buffers = entry_buffers(rows, weights=weights, exact=False)
    x = torch.randn(rows, STREAMS, HIDDEN, device=DEVICE)

    def embedding() -> None:
        for _ in range(10):
            embed(table=table, tokens=tokens, x=x, pdl=pdl)

    def entry() -> None:
        for _ in range(10):
            enter_draft(
                table=table, tokens=tokens, wide=x, weights=weights, buffers=buffers, x=x, eps=EPS, exact=False, pdl=pdl
            )

    yield Line("token embedding", 10, rows * table.raw.shape[1], embedding)
    yield Line("draft entry (products cached)", 10, 8 * half.words.numel(), entry)


def read_rate() -> float:
    """Bytes a second that a sum over 2 GiB reads."""
    words = torch.ones(1 << 29, device=DEVICE)
    out = torch.empty((), device=DEVICE)
    return words.numel() * 4 / graph_seconds(lambda: void(torch.sum(words, 0, out=out)))


def void(_: object) -> None:
    """Nothing."""


if __name__ == "__main__":
    sys.exit(main())
