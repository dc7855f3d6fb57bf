"""The n-gram embedding of decode windows against the reference of the kept tokens: SPEC cases of the PLE layer."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import torch

from kernels.embedding.op import Table
from kernels.ngram import reference
from kernels.ngram.decode import (
    NgramBuffers,
    NgramHash,
    NgramState,
    NgramWeights,
    add_ngrams,
    gather_ngrams,
    new_buffers,
)
from kernels.planes import from_operand, unpack
from kernels.quant import dequantise
from kernels.window import RING_POSITIONS
from tests.kernels.matrices import planes, raw_matrix
from tests.kernels.windows import Float64, Span, early, window_rows

EPS = 1e-6
RESET = 7
VOCABULARY = 40
HEAD_ROWS = (101, 103)
OFFSETS = (0, 101)
# The largest multipliers for which a product with a token stays below 2^63.
MULTIPLIERS = ((2**63 - 1) // VOCABULARY | 1, 23703573157769, 8052911324071)
STREAMS, HIDDEN, WIDTH = 2, 32, 64


@dataclass
class Layer:
    """Weights, state and a table of `type_name`."""

    device: str
    slots: int = 3
    exact: bool = True
    pdl: bool | None = None
    type_name: str = "IQ4_NL"
    state: NgramState = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        device, wide, inputs = self.device, STREAMS * HIDDEN, len(HEAD_ROWS) * WIDTH
        self.raw = raw_matrix(self.type_name, sum(HEAD_ROWS), WIDTH, generator, scale=4.0)
        self.table = Table(self.raw.to(device), self.type_name, WIDTH)

        def norm() -> torch.Tensor:
            return (torch.randn(STREAMS, HIDDEN, generator=generator) * 0.3 + 1).to(device)

        self.weights = NgramWeights(
            key=planes("Q8_0", wide, inputs, generator, scale=2.0, device=device),
            value=planes("Q8_0", HIDDEN, inputs, generator, scale=2.0, device=device),
            norm_key=norm(), norm_query=norm(), norm_conv=norm(),
            conv=torch.randn(4, wide, generator=generator).to(device),
        )  # fmt: skip
        self.hashing = NgramHash(
            multipliers=torch.tensor(MULTIPLIERS, device=device),
            head_rows=torch.tensor(HEAD_ROWS, device=device),
            head_offsets=torch.tensor(OFFSETS, device=device),
            reset=RESET,
        )
        ring = (self.slots + 1, RING_POSITIONS)
        self.state = NgramState(
            tokens=torch.full(ring, 3, dtype=torch.int32, device=device),
            conv=torch.full((*ring, wide), float("nan"), device=device),
        )

    def buffers(self, bucket: int) -> NgramBuffers:
        buffers = new_buffers(bucket, weights=self.weights, heads=len(HEAD_ROWS), exact=self.exact)
        for tensor in (buffers.operand, buffers.key, buffers.value, buffers.gated, buffers.normed):
            tensor.fill_(float("nan"))
        return buffers

    def run(
        self, spans: list[Span], x: torch.Tensor, bucket: int, *, staging: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, NgramBuffers]:
        """x [rows, streams, hidden] of the spans' rows after the layer."""
        rows = window_rows(spans, bucket=bucket, slots=self.slots, device=self.device)
        buffers, count = self.buffers(bucket), x.shape[0]
        pdl = early(self.device) if self.pdl is None else self.pdl
        full = torch.zeros(bucket, STREAMS, HIDDEN, device=self.device)
        full[:count] = x.to(self.device)
        table = self.table if staging is None else Table(staging.to(self.device), self.type_name, WIDTH)
        gather_ngrams(
            table=table, hashing=self.hashing, rows=rows, state=self.state, buffers=buffers, exact=self.exact,
            pdl=pdl, staged=staging is not None,
        )  # fmt: skip
        add_ngrams(
            x=full, rows=rows, weights=self.weights, order=3, state=self.state, buffers=buffers, eps=EPS,
            exact=self.exact, pdl=pdl,
        )  # fmt: skip
        assert full[count:].eq(0).all()
        return full[:count].cpu(), buffers


def hashes(tokens: list[int]) -> list[list[int]]:
    return reference.hash_rows(tokens, reset=RESET, multipliers=MULTIPLIERS, head_rows=HEAD_ROWS, head_offsets=OFFSETS)


def expected(layer: Layer, tokens: list[int], x: torch.Tensor) -> torch.Tensor:
    """float64 streams of a whole sequence after the layer."""
    w = layer.weights
    numbers = torch.tensor(hashes(tokens))
    with Float64():
        values = dequantise(layer.raw, layer.type_name, columns=WIDTH).double()
        found = values[numbers.view(-1)].view(len(tokens), -1)
        norms = {name: getattr(w, name).cpu().double() for name in ("norm_key", "norm_query", "norm_conv")}
        gated, normed = reference.gate_values(
            x.double(), found, key=unpack(w.key).cpu().double(), value=unpack(w.value).cpu().double(), eps=EPS, **norms
        )
        history = torch.cat((torch.zeros(9, STREAMS * HIDDEN), normed.flatten(1)))
        total = sum(history[3 * j : 3 * j + len(tokens)] * w.conv[j].cpu().double() for j in range(4))
        return x.double() + gated + (total * torch.sigmoid(total)).view_as(gated)


@dataclass
class Session:
    tokens: list[int] = field(default_factory=list)
    x: list[torch.Tensor] = field(default_factory=list)
    out: list[torch.Tensor] = field(default_factory=list)


def play(layer: Layer, plan: list[list[tuple[int, int, int, int]]], *, bucket: int) -> dict[int, Session]:
    """Runs windows of (slot, certain, drafts, drafts kept)."""
    draw, generator = random.Random(4), torch.Generator().manual_seed(5)
    sessions: dict[int, Session] = {}
    for entries in plan:
        spans, rows = [], []
        for slot, certain, drafts, _ in entries:
            count = certain + drafts
            tokens = tuple(draw.choice((RESET, draw.randrange(VOCABULARY), VOCABULARY - 1)) for _ in range(count))
            start = len(sessions.setdefault(slot, Session()).tokens)
            spans.append(Span(slot, start, count, certain, tokens))
            rows += [torch.randn(STREAMS, HIDDEN, generator=generator) for _ in range(count)]
        out, buffers = layer.run(spans, torch.stack(rows), max(bucket, len(rows)))
        first = 0
        for span, (slot, certain, _, stay) in zip(spans, entries, strict=True):
            kept, session = certain + stay, sessions[slot]
            session.tokens += span.tokens[:kept]
            session.x += rows[first : first + kept]
            session.out += list(out[first : first + kept])
            assert buffers.numbers[first : first + kept].tolist() == hashes(session.tokens)[-kept:]
            first += span.count
    return sessions


PLANS = {
    "single-rows": [[(0, 4, 0, 0)], *([[(0, 1, 0, 0)]] * 7)],
    "rejected-drafts": [[(1, 7, 2, 0)], [(1, 1, 4, 1)], [(1, 2, 0, 0)]],
    "longer-than-the-ring": [
        [(0, 18, 0, 0), (2, 2, 1, 1)],
        [(0, 7, 1, 0), (2, 1, 0, 0)],
    ],
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_equals_the_reference_of_the_kept_tokens(plan: list[list[tuple[int, int, int, int]]], device: str) -> None:
    """Reset tokens among the predecessors, history of rows and tokens from the ring, rejected drafts."""
    layer = Layer(device)
    for session in play(layer, plan, bucket=3).values():
        wanted = expected(layer, session.tokens, torch.stack(session.x))
        # A gate near zero is steep: the square root of a score of 1e-6 moves by far more than the score.
        torch.testing.assert_close(torch.stack(session.out).double(), wanted, rtol=1e-4, atol=2e-4)


def test_fp16_operands(device: str) -> None:
    layer = Layer(device, exact=False, type_name="Q8_0")
    for session in play(layer, [[(0, 2, 1, 0)], [(0, 2, 0, 0)]], bucket=4).values():
        wanted = expected(layer, session.tokens, torch.stack(session.x))
        assert float((torch.stack(session.out) - wanted).norm() / wanted.norm()) < 5e-3


def test_rejected_drafts_and_company_leave_no_trace(device: str) -> None:
    """Bit for bit the rows of the same tokens alone, one at a time."""
    layer = Layer(device)
    plan = [[(0, 2, 4, 1), (2, 1, 0, 0)], [(2, 1, 1, 0), (0, 1, 2, 2)], [(0, 1, 0, 0)]]
    for session in play(layer, plan, bucket=8).values():
        alone = Layer(device, slots=1, pdl=False)
        for position, (token, x, out) in enumerate(zip(session.tokens, session.x, session.out, strict=True)):
            found, _ = alone.run([Span(0, position, 1, 1, (token,))], x.unsqueeze(0), 1)
            assert torch.equal(found[0], out)


@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16", "Q8_0", "IQ4_NL", "Q5_0"])
def test_gathers_and_takes_staged_rows(type_name: str, device: str) -> None:
    """The rows themselves to the bit, from the table and from rows that the host has gathered."""
    layer = Layer(device, type_name=type_name)
    span = Span(1, 0, 2, 2, (5, VOCABULARY - 1))
    out, buffers = layer.run([span], torch.ones(2, STREAMS, HIDDEN), 3)
    numbers = buffers.numbers.cpu()[:2].view(-1)
    wanted = dequantise(layer.raw[numbers], type_name, columns=WIDTH).view(2, -1)
    assert torch.equal(from_operand(buffers.operand, columns=wanted.shape[1]).cpu()[:2], wanted)
    assert buffers.operand[2:].eq(0).all()
    staging = torch.zeros(3 * len(HEAD_ROWS), layer.raw.shape[1], dtype=torch.uint8)
    staging[: 2 * len(HEAD_ROWS)] = layer.raw[numbers]
    again, _ = Layer(device, type_name=type_name).run([span], torch.ones(2, STREAMS, HIDDEN), 3, staging=staging)
    assert torch.equal(again, out)


def test_a_table_in_pinned_memory() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA card")
    layer, far = Layer("cuda"), Layer("cuda")
    far.table = Table(far.raw.pin_memory(), far.type_name, WIDTH)
    span = Span(0, 0, 3, 3, (5, RESET, 8))
    assert torch.equal(
        layer.run([span], torch.ones(3, STREAMS, HIDDEN), 4)[0], far.run([span], torch.ones(3, STREAMS, HIDDEN), 4)[0]
    )


def test_refuses_what_does_not_fit(device: str) -> None:
    layer = Layer(device)
    with pytest.raises(ValueError, match="staging has 1 rows, not 4"):
        layer.run([Span(0, 0, 1, 1, (1,))], torch.ones(1, STREAMS, HIDDEN), 2, staging=layer.raw[:1].clone())
    layer.table = Table(layer.table.raw, "Q8_0", WIDTH)
    with pytest.raises(ValueError, match="rows of 64 Q8_0 weights are uint8"):
        layer.run([Span(0, 0, 1, 1, (1,))], torch.ones(1, STREAMS, HIDDEN), 2)
