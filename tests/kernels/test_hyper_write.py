"""The write that ends a stage: the streams of `write_and_read`, to the bit, and those of the reference."""

from __future__ import annotations

import pytest
import torch

from kernels.hyper import reference
from kernels.hyper.write import write
from tests.kernels.test_hyper_decode import SHAPES, Inputs, Shape, run, weights
from tests.kernels.windows import Float64, early


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("rows", "terms"), [(1, 1), (3, 2), (2, 5)], ids=str)
def test_streams_are_those_of_the_fused_write(shape: Shape, rows: int, terms: int, device: str) -> None:
    inputs = Inputs.make(shape, rows, terms)
    assert inputs.parts is not None
    assert inputs.gate is not None
    x = inputs.x.clone().to(device)
    # As experts leave them: [rows, terms, hidden] with the first two dimensions exchanged.
    parts = inputs.parts.to(device).transpose(0, 1).contiguous().transpose(0, 1)
    write(x, parts=parts, gate=inputs.gate.to(device), pdl=early(device))
    assert torch.equal(x.cpu(), run(inputs, weights(shape, device), device, exact=True).x)
    with Float64():
        gate = 2 * torch.sigmoid(inputs.gate.double().sum(1) / shape.streams)
        wanted = reference.write_streams(inputs.x.double(), inputs.parts.double().sum(0), gate)
    assert float((x.cpu().double() - wanted).norm() / wanted.norm()) < 1e-6


def test_shapes_that_do_not_belong_together_are_refused(device: str) -> None:
    x = torch.zeros(2, 4, 64, device=device)
    with pytest.raises(ValueError, match="parts"):
        write(x, parts=torch.zeros(1, 2, 32, device=device), gate=torch.zeros(2, 4, 4, device=device), pdl=False)
    with pytest.raises(ValueError, match="gate"):
        write(x, parts=torch.zeros(1, 2, 64, device=device), gate=torch.zeros(2, 4, device=device), pdl=False)
