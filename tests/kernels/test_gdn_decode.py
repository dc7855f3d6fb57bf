"""Gated DeltaNet of decode windows against the token-by-token reference of the kept tokens only."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
import torch

from kernels.gdn import reference
from kernels.gdn.decode import DeltaBuffers, DeltaState, DeltaWeights, new_buffers, new_state, run_delta
from kernels.planes import from_operand
from kernels.terms import operand_rows
from tests.kernels.windows import Float64, Span, early, window_rows

EPS = 1e-6


@dataclass(frozen=True)
class Shape:
    key_heads: int
    heads: int
    dim: int
    taps: int = 4

    @property
    def channels(self) -> int:
        return (2 * self.key_heads + self.heads) * self.dim

    @property
    def widths(self) -> tuple[int, int, int, int]:
        return self.channels, self.heads * self.dim, self.heads, self.heads


TINY = Shape(2, 4, 16)
SMALL = Shape(1, 2, 8)
ODD = Shape(1, 3, 24, taps=3)


def weights(shape: Shape, device: str) -> DeltaWeights:
    generator = torch.Generator().manual_seed(1)
    return DeltaWeights(
        conv=(torch.randn(shape.taps, shape.channels, generator=generator) * 0.5).to(device),
        rate=-(torch.rand(shape.heads, generator=generator) + 0.1).to(device),
        bias=torch.randn(shape.heads, generator=generator).to(device),
        norm=(torch.rand(shape.dim, generator=generator) + 0.5).to(device),
    )


@dataclass
class Engine:
    """A state and the windows that ran on it; `rows` are lists of inputs a row, one tensor for each product."""

    shape: Shape
    slots: int
    device: str
    exact: bool = True
    terms: int = 1
    pdl: bool | None = None
    state: DeltaState = field(init=False)

    def __post_init__(self) -> None:
        shape = self.shape
        sizes = {"key_heads": shape.key_heads, "heads": shape.heads, "dim": shape.dim, "device": self.device}
        (self.state,) = new_state(self.slots, **sizes)
        self.sizes = sizes
        self.weights = weights(shape, self.device)
        for tensor in (self.state.delta, self.state.conv, self.state.key, self.state.value, self.state.decay):
            tensor.fill_(float("nan"))  # what a slot held before must not matter
        self.state.at.fill_(7)

    def run(self, spans: list[Span], inputs: list[list[torch.Tensor]], bucket: int) -> torch.Tensor:
        """Outputs [rows, heads * dim] of the rows of the spans."""
        rows = window_rows(spans, bucket=bucket, slots=self.slots, device=self.device)
        products = []
        for place, width in enumerate(self.shape.widths):
            wide = torch.full((self.terms, bucket, width + 3), float("nan"))
            for row, values in enumerate(inputs):
                wide[:, row, :width] = values[place] / self.terms
            products.append(wide.to(self.device)[:, :, :width])
        buffers: DeltaBuffers = new_buffers(bucket, **self.sizes)
        for name in DeltaBuffers.__slots__:
            getattr(buffers, name).fill_(float("nan"))
        width = self.shape.heads * self.shape.dim
        operand = operand_rows(bucket, width, exact=self.exact, device=self.device).fill_(float("nan"))
        run_delta(
            qkv=products[0], gate=products[1], alpha=products[2], beta=products[3],
            rows=rows, weights=self.weights, state=self.state, buffers=buffers, operand=operand,
            eps=EPS, exact=self.exact, pdl=early(self.device) if self.pdl is None else self.pdl,
        )  # fmt: skip
        used = len(inputs)
        assert torch.isfinite(operand[:used]).all()
        assert operand[:used, width:].eq(0).all() or not self.exact
        return from_operand(operand, columns=width)[:used].cpu()


def expected(shape: Shape, w: DeltaWeights, tokens: list[list[torch.Tensor]]) -> torch.Tensor:
    """float64 outputs [tokens, heads * dim] of a sequence from position 0."""
    with Float64():
        qkv, gate, alpha, beta = (torch.stack(part).double() for part in zip(*tokens, strict=True))
        conv, rate, bias, norm = (t.cpu().double() for t in (w.conv, w.rate, w.bias, w.norm))
        history = torch.zeros(shape.taps - 1, shape.channels)
        mixed = reference.causal_conv(torch.cat((history, qkv)).unsqueeze(0), conv)
        keys = shape.key_heads * shape.dim
        query, key, value = mixed[0].split((keys, keys, shape.heads * shape.dim), 1)

        def unit(x: torch.Tensor) -> torch.Tensor:
            x = x.reshape(len(tokens), shape.key_heads, shape.dim)
            return x / torch.sqrt((x**2).sum(2, keepdim=True) + 1e-6)

        out, _ = reference.delta_rule(
            (unit(query) / shape.dim**0.5).unsqueeze(0),
            unit(key).unsqueeze(0),
            value.reshape(1, len(tokens), shape.heads, shape.dim),
            (rate * torch.log1p(torch.exp(alpha + bias))).unsqueeze(0),
            torch.sigmoid(beta).unsqueeze(0),
            torch.zeros(1, shape.heads, shape.dim, shape.dim),
        )
        y = out[0] / torch.sqrt((out[0] ** 2).mean(2, keepdim=True) + EPS) * norm
        return y.flatten(1) * torch.sigmoid(gate)


def token(shape: Shape, generator: torch.Generator) -> list[torch.Tensor]:
    scale = (1.0, 1.0, 3.0, 2.0)
    return [torch.randn(width, generator=generator) * s for width, s in zip(shape.widths, scale, strict=True)]


@dataclass
class Session:
    slot: int
    tokens: list[list[torch.Tensor]] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)


def play(engine: Engine, plan: list[list[tuple[int, int, int, int]]], *, bucket: int, seed: int) -> dict[int, Session]:
    """Runs windows of (slot, certain, drafts, drafts kept); every kept row is a token of its session."""
    generator = torch.Generator().manual_seed(seed)
    sessions: dict[int, Session] = {}
    for entries in plan:
        spans, inputs = [], []
        for slot, certain, drafts, _ in entries:
            session = sessions.setdefault(slot, Session(slot))
            spans.append(Span(slot, len(session.tokens), certain + drafts, certain))
            inputs += [token(engine.shape, generator) for _ in range(certain + drafts)]
        outs = engine.run(spans, inputs, max(bucket, len(inputs)))
        first = 0
        for slot, certain, drafts, stay in entries:
            sessions[slot].tokens += inputs[first : first + certain + stay]
            sessions[slot].outputs += list(outs[first : first + certain + stay])
            first += certain + drafts
    return sessions


PLANS = {
    "single-rows": [[(0, 1, 0, 0)], [(0, 1, 0, 0)], [(0, 1, 0, 0)]],
    "all-drafts-rejected": [[(1, 2, 3, 0)], [(1, 1, 4, 0)], [(1, 1, 0, 0)]],
    "all-drafts-kept": [[(1, 2, 4, 4)], [(1, 1, 4, 4)], [(1, 1, 0, 0)]],
    "longer-than-the-ring": [[(0, 18, 0, 0), (2, 3, 2, 1)], [(0, 14, 4, 2)], [(0, 1, 2, 0), (2, 2, 0, 0)]],
}


def random_plan(seed: int, windows: int) -> list[list[tuple[int, int, int, int]]]:
    draw = random.Random(seed)
    plan = []
    for _ in range(windows):
        entries = []
        for slot in draw.sample(range(3), draw.randint(1, 3)):
            drafts = draw.randint(0, 4)
            entries.append((slot, draw.choice((1, 1, 1, 2, 5)), drafts, draw.randint(0, drafts)))
        plan.append(entries)
    return plan


PLANS["random"] = random_plan(5, 3)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_equals_the_reference_of_the_kept_tokens(plan: list[list[tuple[int, int, int, int]]], device: str) -> None:
    shape = TINY if plan is PLANS["random"] else SMALL
    engine = Engine(shape, 3, device)
    for session in play(engine, plan, bucket=3, seed=3).values():
        wanted = expected(shape, engine.weights, session.tokens)
        torch.testing.assert_close(torch.stack(session.outputs).double(), wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("exact", "terms", "tolerance"), [(True, 3, 2e-5), (False, 1, 2e-3)], ids=["terms", "fp16"])
def test_odd_heads_and_widths(exact: bool, terms: int, tolerance: float, device: str) -> None:
    engine = Engine(ODD, 2, device, exact=exact, terms=terms)
    plan = [[(1, 2, 1, 1)], [(1, 1, 3, 1), (0, 1, 0, 0)], [(0, 1, 1, 0), (1, 1, 0, 0)]]
    for session in play(engine, plan, bucket=5, seed=4).values():
        wanted = expected(ODD, engine.weights, session.tokens)
        torch.testing.assert_close(torch.stack(session.outputs).double(), wanted, rtol=tolerance, atol=tolerance)


def test_rejected_drafts_and_company_leave_no_trace(device: str) -> None:
    """Bit for bit: the same tokens one at a time, alone, in another slot and bucket, give the same rows and state."""
    engine = Engine(SMALL, 3, device)
    plan = [*random_plan(8, 3), [(0, 1, 0, 0), (1, 1, 0, 0), (2, 1, 0, 0)]]
    for session in play(engine, plan, bucket=4, seed=6).values():
        alone = Engine(SMALL, 1, device, pdl=False)
        outs = []
        for position, values in enumerate(session.tokens):
            outs.append(alone.run([Span(0, position, 1, 1)], [values], 1)[0])
        assert torch.equal(torch.stack(outs), torch.stack(session.outputs))
        for at in (engine.state.at[session.slot], alone.state.at[0]):
            assert at.eq(len(session.tokens)).all()
        assert torch.equal(engine.state.delta[session.slot], alone.state.delta[0])


def test_padding_rows_touch_only_the_dummy_slot(device: str) -> None:
    engine = Engine(TINY, 2, device)
    before = {name: getattr(engine.state, name).clone() for name in DeltaState.__slots__}
    engine.run([Span(1, 0, 1, 1)], [token(TINY, torch.Generator().manual_seed(2))], 6)
    for name, old in before.items():
        now = getattr(engine.state, name)
        assert torch.equal(now[0].nan_to_num(7.5), old[0].nan_to_num(7.5)), name


def test_an_empty_window_changes_nothing(device: str) -> None:
    engine = Engine(TINY, 1, device)
    engine.run([], [], 2)
    assert engine.state.at[0].eq(7).all()
    assert engine.state.delta.isnan().all()


def test_refuses_what_does_not_fit(device: str) -> None:
    engine = Engine(TINY, 1, device)
    engine.weights = replace(engine.weights, conv=engine.weights.conv[:, :-1].contiguous())
    with pytest.raises(ValueError, match="4 taps over 127 channels"):
        engine.run([Span(0, 0, 1, 1)], [token(TINY, torch.Generator())], 1)
