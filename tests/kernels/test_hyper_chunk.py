"""Hyper-connections of prompt chunks against the float64 reference on the unpacked weights."""

from __future__ import annotations

import pytest
import torch

from kernels.hyper.prompt import write_and_read_chunk, write_chunk
from kernels.linear.prompt import Room, room_halves
from tests.kernels.test_hyper_decode import EPS, Inputs, Shape, expected, weights

SHAPES = {
    "four": Shape(4, 64, 32),
    "odd": Shape(3, 40, 32, down="F32", up="Q5_0"),
    "two": Shape(2, 300, 32, down="F16", up="F16"),
}


@pytest.mark.parametrize("rows", [1, 13, 70], ids=str)
@pytest.mark.parametrize(("exact", "tolerance"), [(True, 2e-5), (False, 5e-3)], ids=["exact", "fp16"])
@pytest.mark.parametrize("name", SHAPES)
def test_writes_and_reads(name: str, exact: bool, tolerance: float, rows: int, device: str) -> None:
    shape = SHAPES[name]
    w = weights(shape, device)
    inputs = Inputs.make(shape, rows, 3 if rows > 1 else 0)
    x, parts, inject = inputs.x.clone().to(device), None, None
    if inputs.parts is not None and inputs.gate is not None:
        # As experts give them: [rows, terms, hidden], here with a poisoned column.
        wide = torch.full((rows, 3, shape.hidden + 1), float("nan"))
        wide[:, :, :-1] = inputs.parts.transpose(0, 1)
        parts = wide.to(device)[:, :, :-1].transpose(0, 1)
        inject = (2 * torch.sigmoid(inputs.gate.sum(1) / shape.streams)).to(device)
    room = Room(room_halves([w.down, w.up], exact=exact), device=device)
    block, following = write_and_read_chunk(x=x, weights=w, room=room, eps=EPS, exact=exact, parts=parts, inject=inject)
    wanted_x, wanted_block, wanted_write = expected(inputs, w)
    torch.testing.assert_close(x.cpu().double(), wanted_x, rtol=1e-5, atol=1e-5)
    assert block.dtype == (torch.float32 if exact else torch.float16)
    torch.testing.assert_close(block.cpu().double(), wanted_block, rtol=tolerance, atol=tolerance)
    assert following is not None
    torch.testing.assert_close(following.cpu().double(), wanted_write, rtol=2e-5, atol=2e-5)


def test_a_final_read_has_no_weights_of_a_next_write(device: str) -> None:
    shape = SHAPES["four"]
    w = weights(shape, device, inject=False)
    inputs = Inputs.make(shape, 5, 0)
    room = Room(room_halves([w.down, w.up], exact=True), device=device)
    block, following = write_and_read_chunk(x=inputs.x.clone().to(device), weights=w, room=room, eps=EPS, exact=True)
    assert following is None
    torch.testing.assert_close(block.cpu().double(), expected(inputs, w)[1], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "fp16"])
def test_writes_alone(dtype: torch.dtype, device: str) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(9, 3, 50, generator=generator)
    parts = torch.randn(2, 9, 50, generator=generator).to(dtype)
    inject = torch.rand(9, 3, generator=generator) * 2
    wanted = x.double() + inject.double()[:, :, None] * parts.double().sum(0)[:, None]
    found = x.to(device)
    write_chunk(x=found, parts=parts.to(device), inject=inject.to(device))
    torch.testing.assert_close(found.cpu().double(), wanted, rtol=1e-6, atol=1e-6)


def test_refuses_what_does_not_fit(device: str) -> None:
    x = torch.zeros(4, 2, 32, device=device)
    with pytest.raises(ValueError, match="both or neither"):
        write_and_read_chunk(
            x=x, weights=weights(SHAPES["four"], device), room=Room(1, device=device), eps=EPS, exact=True, inject=x[0]
        )
    with pytest.raises(ValueError, match=r"terms, 4, 32"):
        write_chunk(x=x, parts=torch.zeros(1, 4, 31, device=device), inject=torch.zeros(4, 2, device=device))
    with pytest.raises(ValueError, match="not for 2 streams of 32"):
        write_and_read_chunk(
            x=x, weights=weights(SHAPES["four"], device), room=Room(1, device=device), eps=EPS, exact=True
        )
