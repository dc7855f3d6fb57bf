"""Hyper-connections of decode windows against the float64 reference on the unpacked weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from kernels.hyper import reference
from kernels.hyper.decode import HyperBuffers, ReadPlanes, new_buffers, write_and_read
from kernels.planes import from_operand, unpack
from kernels.terms import operand_rows
from tests.kernels.matrices import planes
from tests.kernels.windows import Float64, early

EPS = 1e-6


@dataclass(frozen=True)
class Shape:
    streams: int
    hidden: int
    low: int
    down: str = "Q8_0"
    up: str = "Q8_0"


def weights(shape: Shape, device: str, *, inject: bool = True, seed: int = 1) -> ReadPlanes:
    generator = torch.Generator().manual_seed(seed)
    wide = shape.streams * shape.hidden
    return ReadPlanes(
        norm=(torch.randn(shape.streams, shape.hidden, generator=generator) * 0.3 + 1).to(device),
        down=planes(shape.down, shape.low, wide, generator, scale=3.0, device=device),
        up=planes(shape.up, wide, shape.low, generator, scale=3.0, device=device),
        inject=(torch.randn(shape.streams, wide, generator=generator) / wide**0.5 * 4).to(device) if inject else None,
    )


@dataclass
class Inputs:
    """x, terms of the block before, and the sums its gate comes from."""

    x: torch.Tensor
    parts: torch.Tensor | None
    gate: torch.Tensor | None

    @staticmethod
    def make(shape: Shape, rows: int, terms: int, *, seed: int = 2) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        sizes = torch.tensor([0.5, 40.0, 3.0, 900.0])[: shape.streams]
        x = torch.randn(rows, shape.streams, shape.hidden, generator=generator) * sizes[None, :, None]
        if not terms:
            return Inputs(x, None, None)
        parts = torch.randn(terms, rows, shape.hidden, generator=generator)
        return Inputs(x, parts, torch.randn(rows, shape.streams, shape.streams, generator=generator) * 2)

    def rows(self, first: int, count: int) -> Inputs:
        part = slice(first, first + count)
        if self.parts is None or self.gate is None:
            return Inputs(self.x[part], None, None)
        return Inputs(self.x[part], self.parts[:, part], self.gate[part])


@dataclass
class Outputs:
    x: torch.Tensor
    block: torch.Tensor
    operand: torch.Tensor
    sums: torch.Tensor | None


def poisoned(buffers: HyperBuffers) -> HyperBuffers:
    for tensor in (buffers.normed, buffers.low, buffers.down, buffers.up):
        tensor.fill_(float("nan"))
    return buffers


def run(
    inputs: Inputs,
    w: ReadPlanes,
    device: str,
    *,
    exact: bool,
    buffers: HyperBuffers | None = None,
    pdl: bool | None = None,
) -> Outputs:
    rows, streams, hidden = inputs.x.shape
    buffers = buffers or poisoned(new_buffers(rows, weights=w, exact=exact))
    x = inputs.x.clone().to(device)
    block = torch.full((rows, hidden), float("nan"), device=device)
    operand = operand_rows(rows, hidden, exact=exact, device=device).fill_(float("nan"))
    sums = None if w.inject is None else torch.full((rows, streams, streams), float("nan"), device=device)
    write_and_read(
        x=x, weights=w, buffers=buffers, block=block, operand=operand, eps=EPS, exact=exact,
        pdl=early(device) if pdl is None else pdl, sums=sums,
        parts=None if inputs.parts is None else inputs.parts.to(device),
        gate=None if inputs.gate is None else inputs.gate.to(device),
    )  # fmt: skip
    assert operand[:, hidden:].eq(0).all() if exact else torch.isfinite(operand).all()
    assert buffers.ticket.eq(0).all()
    return Outputs(
        x.cpu(), block.cpu(), from_operand(operand, columns=hidden).cpu(), None if sums is None else sums.cpu()
    )


def expected(inputs: Inputs, w: ReadPlanes) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """float64 x, block and inject weights."""
    with Float64():
        x = inputs.x.double()
        streams, hidden = x.shape[1:]
        if inputs.parts is not None and inputs.gate is not None:
            gate = 2 * torch.sigmoid(inputs.gate.double().sum(1) / streams)
            x = reference.write_streams(x, inputs.parts.double().sum(0), gate)
        inject = torch.zeros(streams, streams * hidden) if w.inject is None else w.inject.cpu().double()
        block, write = reference.read_streams(
            x, norm=w.norm.cpu().double(), down=unpack(w.down).cpu().double(), up=unpack(w.up).cpu().double(),
            inject=inject, eps=EPS,
        )  # fmt: skip
    return x, block, write


def compare(found: Outputs, inputs: Inputs, w: ReadPlanes, *, tolerance: float) -> None:
    x, block, write = expected(inputs, w)

    def far(a: torch.Tensor, b: torch.Tensor) -> float:
        return float((a.double() - b).norm() / b.norm())

    assert far(found.x, x) < 1e-6
    assert far(found.block, block) < tolerance
    assert far(found.operand, block) < tolerance * 1.5
    if found.sums is not None:
        assert far(2 * torch.sigmoid(found.sums.double().sum(1) / x.shape[1]), write) < 1e-5


TINY = Shape(4, 64, 32)
SHAPES = {
    "tiny": TINY,
    "f32": Shape(4, 64, 32, "F32", "F32"),
    "bf16-two-streams": Shape(2, 32, 40, "BF16", "BF16"),
    "q5_0-up-split": Shape(4, 160, 96, "Q8_0", "Q5_0"),
    "three-streams-five-launches": Shape(3, 48, 32, "F16", "Q8_0"),
    "odd-width-five-launches": Shape(2, 80, 32),
}


@pytest.mark.parametrize(("exact", "tolerance"), [(True, 2e-6), (False, 2e-3)], ids=["exact", "fp16"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_equals_the_reference(shape: Shape, exact: bool, tolerance: float, device: str) -> None:
    inputs, w = Inputs.make(shape, 3, 2), weights(shape, device)
    compare(run(inputs, w, device, exact=exact), inputs, w, tolerance=tolerance)


@pytest.mark.parametrize("terms", [0, 1, 5], ids=["first-read", "one-part", "experts"])
def test_final_mixer_and_terms(terms: int, device: str) -> None:
    inputs, w = Inputs.make(TINY, 1, terms), weights(TINY, device, inject=False)
    found = run(inputs, w, device, exact=True)
    assert found.sums is None
    compare(found, inputs, w, tolerance=2e-6)


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "fp16"])
def test_a_row_has_the_same_bits_in_every_bucket(exact: bool, device: str) -> None:
    shape = SHAPES["q5_0-up-split"]
    inputs, w = Inputs.make(shape, 17, 2), weights(shape, device)
    together = run(inputs, w, device, exact=exact)
    for first, count in ((0, 1), (9, 4)):
        part = run(inputs.rows(first, count), w, device, exact=exact, pdl=False)
        for name in ("x", "block", "operand", "sums"):
            assert torch.equal(getattr(part, name), getattr(together, name)[first : first + count]), name


def test_twice_in_the_same_buffers(device: str) -> None:
    shape = SHAPES["q5_0-up-split"]
    w = weights(shape, device)
    buffers = poisoned(new_buffers(2, weights=w, exact=False))
    first = run(Inputs.make(shape, 2, 1), w, device, exact=False, buffers=buffers)
    run(Inputs.make(shape, 2, 1, seed=9), w, device, exact=False, buffers=buffers)
    again = run(Inputs.make(shape, 2, 1), w, device, exact=False, buffers=buffers)
    assert torch.equal(first.block, again.block)
    assert torch.equal(first.x, again.x)


def test_experts_as_a_view(device: str) -> None:
    """Partial results [rows, used, hidden] need no copy."""
    inputs, w = Inputs.make(TINY, 2, 3), weights(TINY, device)
    assert inputs.parts is not None
    view = inputs.parts.transpose(0, 1).contiguous().transpose(0, 1)
    assert not view.is_contiguous()
    found = run(replace(inputs, parts=view), w, device, exact=True)
    assert torch.equal(found.block, run(inputs, w, device, exact=True).block)


def test_refuses_what_does_not_fit(device: str) -> None:
    inputs, w = Inputs.make(TINY, 1, 1), weights(TINY, device)
    with pytest.raises(ValueError, match="weights are not for 4 streams of 64"):
        run(inputs, replace(w, norm=w.norm[:, :-1].contiguous()), device, exact=True)
    with pytest.raises(ValueError, match="give both or neither"):
        run(replace(inputs, gate=None), w, device, exact=True)
