"""Gated DeltaNet of prompt chunks against the token-by-token reference, between decode windows too."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch

from kernels.chunk import Chunk
from kernels.gdn import chunk as many
from kernels.gdn.chunk import run_delta_chunk
from kernels.gdn.decode import DeltaState
from tests.kernels.test_gdn_decode import EPS, ODD, TINY, Engine, Shape, expected, token
from tests.kernels.windows import Span

Inputs = list[list[torch.Tensor]]


@dataclass
class Text:
    """One conversation: kept tokens and what came out for them."""

    engine: Engine
    slot: int
    exact: bool = True
    tokens: Inputs = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)

    def read(self, inputs: Inputs, *, nobody: int = 0) -> None:
        """A prompt chunk; products are views of one wider tensor, whose other columns are poisoned.

        So are `nobody` more rows, which are nobody's.
        """
        shape, device = self.engine.shape, self.engine.device
        products = []
        for place, width in enumerate(shape.widths):
            wide = torch.full((len(inputs) + nobody, width + 3), float("nan"))
            wide[: len(inputs), :width] = torch.stack([values[place] for values in inputs])
            products.append(wide.to(device)[:, :width])
        if not self.exact:
            products = [*(product.half() for product in products[:2]), *products[2:]]
        out = run_delta_chunk(
            qkv=products[0], gate=products[1], alpha=products[2], beta=products[3],
            chunk=Chunk.of(
                self.slot, len(self.tokens), torch.zeros(len(inputs) + nobody, dtype=torch.int32, device=device),
                count=len(inputs),
            ),
            weights=self.engine.weights, state=self.engine.state, eps=EPS, exact=self.exact,
        )  # fmt: skip
        assert out.shape == (len(inputs) + nobody, shape.heads * shape.dim)
        self.tokens += inputs
        self.outputs += list(out[: len(inputs)].float().cpu())

    def decode(self, inputs: Inputs, *, certain: int, keep: int) -> None:
        """A decode window, of which `keep` rows stay."""
        outs = self.engine.run([Span(self.slot, len(self.tokens), len(inputs), certain)], inputs, len(inputs))
        self.tokens += inputs[:keep]
        self.outputs += list(outs[:keep])

    def check(self, tolerance: float) -> None:
        wanted = expected(self.engine.shape, self.engine.weights, self.tokens)
        torch.testing.assert_close(torch.stack(self.outputs).double(), wanted, rtol=tolerance, atol=tolerance)
        assert int(self.engine.state.at[self.slot].max()) <= len(self.tokens)


def draw(shape: Shape, count: int, generator: torch.Generator) -> Inputs:
    return [token(shape, generator) for _ in range(count)]


LENGTHS = {"one-row": [1, 1, 2], "one-block": [64], "odd": [70, 3, 129, 15], "past-a-slice": [200, 5]}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_chunks_at_odd_positions_equal_the_reference(
    lengths: list[int], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many, "SLICE_ROWS", 128)
    text = Text(Engine(TINY, 2, device), 1)
    generator = torch.Generator().manual_seed(sum(lengths))
    for length in lengths:
        text.read(draw(TINY, length, generator))
    text.decode(draw(TINY, 2, generator), certain=2, keep=2)
    text.check(2e-5)


@pytest.mark.parametrize(
    ("shape", "exact", "tolerance"),
    [(ODD, True, 2e-5), (ODD, False, 4e-3), (TINY, True, 2e-5), (TINY, False, 2e-2)],
    ids=["odd-exact", "odd-fp16", "tiny-exact", "tiny-fp16"],
)
def test_heads_between_decode_windows(shape: Shape, exact: bool, tolerance: float, device: str) -> None:
    """Drafts that decoding kept but did not yet store are in; those it dropped are not."""
    text = Text(Engine(shape, 2, device), 0, exact)
    generator = torch.Generator().manual_seed(9)
    text.read(draw(shape, 5, generator))
    for certain, drafts, stay in ((1, 4, 3), (2, 3, 0)):
        text.decode(draw(shape, certain + drafts, generator), certain=certain, keep=certain + stay)
        text.read(draw(shape, 67, generator))
    text.decode(draw(shape, 1, generator), certain=1, keep=1)
    text.check(tolerance)


@pytest.mark.parametrize("decay", [0.0, 40.0], ids=["nothing-fades", "everything-fades"])
def test_a_text_of_one_repeated_token(decay: float, device: str) -> None:
    """Equal keys, full strength: powers of the triangle would overflow what its inverse needs."""
    text = Text(Engine(TINY, 1, device), 0)
    values = token(TINY, torch.Generator().manual_seed(4))
    values[2] = torch.full_like(values[2], decay * 2 - 40.0)
    values[3] = torch.full_like(values[3], 30.0)
    text.read([values] * 131)
    text.check(2e-5)


def test_other_slots_keep_their_state(device: str) -> None:
    engine = Engine(TINY, 3, device)
    before = {name: getattr(engine.state, name).clone() for name in DeltaState.__slots__}
    Text(engine, 1).read(draw(TINY, 20, torch.Generator().manual_seed(1)))
    for name, old in before.items():
        now = getattr(engine.state, name)
        for slot in (0, 2, 3):
            assert torch.equal(now[slot].nan_to_num(7.5), old[slot].nan_to_num(7.5)), name
    assert engine.state.at[1].eq(20).all()


@pytest.mark.parametrize("nobody", [1, 60, 200], ids=str)
def test_rows_of_nobody_change_no_bit(nobody: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do whole slices of them."""
    monkeypatch.setattr(many, "SLICE_ROWS", 128)
    texts = [Text(Engine(TINY, 2, device), 1) for _ in range(2)]
    for text, more in zip(texts, (0, nobody), strict=True):
        generator = torch.Generator().manual_seed(6)
        text.read(draw(TINY, 70, generator), nobody=more)
        text.read(draw(TINY, 20, generator), nobody=more)
        text.decode(draw(TINY, 2, generator), certain=2, keep=2)
    assert torch.equal(*(torch.stack(text.outputs) for text in texts))
    for name in DeltaState.__slots__:
        one, other = (getattr(text.engine.state, name).nan_to_num(7.5) for text in texts)
        assert torch.equal(one, other), name


def test_refuses_what_does_not_fit(device: str) -> None:
    engine, generator = Engine(TINY, 1, device), torch.Generator()
    short = Engine(TINY, 1, device)
    short.weights = replace(short.weights, conv=short.weights.conv[:, :-1].contiguous())
    with pytest.raises(ValueError, match="4 taps over 127 channels"):
        Text(short, 0).read(draw(TINY, 2, generator))
    qkv, gate, alpha = (torch.zeros(3, width, device=device) for width in TINY.widths[:3])
    with pytest.raises(ValueError, match=r"gate is fp16 or float32 \[3, 64\]"):
        run_delta_chunk(
            qkv=qkv, gate=gate.double(), alpha=alpha, beta=alpha,
            chunk=Chunk.of(0, 0, torch.zeros(3, dtype=torch.int32)),
            weights=engine.weights, state=engine.state, eps=EPS, exact=True,
        )  # fmt: skip


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
@pytest.mark.parametrize(("exact", "tolerance"), [(True, 2e-5), (False, 2e-3)], ids=["exact", "fp16"])
def test_the_real_shape_as_decoding_has_it(exact: bool, tolerance: float) -> None:
    shape = Shape(16, 48, 128)
    chunk, window = Text(Engine(shape, 1, "cuda"), 0, exact), Text(Engine(shape, 1, "cuda", exact=exact), 0)
    inputs = draw(shape, 333, torch.Generator().manual_seed(7))
    chunk.read(inputs[:100])
    chunk.read(inputs[100:])
    window.decode(inputs, certain=333, keep=333)
    for found, wanted in (
        (torch.stack(chunk.outputs), torch.stack(window.outputs)),
        (chunk.engine.state.delta[0], window.engine.state.delta[0]),
    ):
        assert float((found - wanted).norm() / wanted.norm()) < tolerance
