"""Rows of raw tables as kernels read them: every type to the bit; the entry of a draft layer against its formula."""

from __future__ import annotations

import pytest
import torch

from kernels.embedding import EntryWeights, Table, embed, enter_draft, new_buffers
from kernels.planes import unpack
from kernels.quant import SUPPORTED, dequantise
from tests.kernels.matrices import planes, raw_matrix
from tests.kernels.test_quant import random_rows
from tests.kernels.windows import early

EPS = 1e-6
ROUNDED = {"Q4_1", "Q5_1", "Q4_K", "Q5_K", "Q2_K"}  # scale times code plus offset may be one rounding instead of two


@pytest.mark.parametrize("name", SUPPORTED)
def test_embeds_every_type(name: str, device: str) -> None:
    raw = torch.from_numpy(random_rows(name, rows=5, columns=512, seed=3))
    tokens = torch.tensor([4, 0, 3], dtype=torch.int32, device=device)
    x = torch.full((3, 2, 512), float("nan"), device=device)
    embed(table=Table(raw.to(device), name, 512), tokens=tokens, x=x, pdl=False)
    wanted = dequantise(raw, name, columns=512)[[4, 0, 3]]
    for stream in range(2):
        if name in ROUNDED:
            torch.testing.assert_close(x[:, stream].cpu(), wanted, rtol=1e-6, atol=float(wanted.abs().max()) * 1e-6)
        else:
            assert torch.equal(x[:, stream].cpu(), wanted)


def entry(device: str, *, streams: int, hidden: int, grouped: bool) -> EntryWeights:
    generator = torch.Generator().manual_seed(2)
    return EntryWeights(
        token_norm=(torch.rand(hidden, generator=generator) + 0.5).to(device),
        state_norm=(torch.rand(streams, hidden, generator=generator) + 0.5).to(device),
        from_token=planes("Q8_0", hidden, hidden, generator, scale=1.0, device=device),
        from_state=planes("Q8_0", hidden, hidden, generator, scale=1.0, device=device),
        grouped=grouped,
    )


def run(
    w: EntryWeights, table: Table, tokens: list[int], wide: torch.Tensor, source: list[int] | None, *, exact: bool
) -> torch.Tensor:
    device, (streams, hidden) = table.raw.device, w.state_norm.shape
    buffers = new_buffers(len(tokens), weights=w, exact=exact)
    for tensor in (buffers.token, buffers.state, buffers.token_parts, *buffers.state_parts):
        tensor.fill_(float("nan"))
    x = torch.full((len(tokens), streams, hidden), float("nan"), device=device)
    enter_draft(
        table=table, tokens=torch.tensor(tokens, dtype=torch.int32, device=device), wide=wide.to(device), weights=w,
        buffers=buffers, x=x, eps=EPS, exact=exact, pdl=early(device.type),
        source=None if source is None else torch.tensor(source, dtype=torch.int32, device=device),
    )  # fmt: skip
    return x.cpu()


def expected(w: EntryWeights, table: Table, tokens: list[int], wide: torch.Tensor) -> torch.Tensor:
    e = dequantise(table.raw.cpu(), table.type_name, columns=table.columns)[tokens].double()
    e = e / torch.sqrt((e**2).mean(1, keepdim=True) + EPS) * w.token_norm.cpu()
    g = wide.double()
    g = g / torch.sqrt((g**2).mean(2 if w.grouped else (1, 2), keepdim=True) + EPS) * w.state_norm.cpu()
    token = e @ unpack(w.from_token).cpu().double().T
    return g @ unpack(w.from_state).cpu().double().T + token.unsqueeze(1)


@pytest.mark.parametrize(
    ("grouped", "exact", "rows", "type_name"),
    [(False, True, 3, "Q8_0"), (True, True, 1, "IQ4_NL"), (False, False, 11, "F32")],
    ids=["global", "grouped", "fp16-two-parts"],
)
def test_draft_entry(grouped: bool, exact: bool, rows: int, type_name: str, device: str) -> None:
    """Eleven rows of four streams are more than one product takes."""
    w = entry(device, streams=4, hidden=32, grouped=grouped)
    generator = torch.Generator().manual_seed(3)
    table = Table(raw_matrix(type_name, 9, 32, generator, scale=2.0).to(device), type_name, 32)
    wide = torch.randn(rows + 2, 4, 32, generator=generator) * torch.tensor([1.0, 30.0, 0.2, 5.0])[None, :, None]
    tokens = [int(t) for t in torch.randint(0, 9, (rows,), generator=generator)]
    source = [(2 * i + 1) % (rows + 2) for i in range(rows)]
    found = run(w, table, tokens, wide, source, exact=exact)
    wanted = expected(w, table, tokens, wide[source])
    assert float((found - wanted).norm() / wanted.norm()) < (1e-6 if exact else 2e-3)


def test_draft_entry_rows_do_not_depend_on_the_bucket(device: str) -> None:
    w = entry(device, streams=2, hidden=64, grouped=False)
    generator = torch.Generator().manual_seed(3)
    table = Table(raw_matrix("Q8_0", 9, 64, generator, scale=2.0).to(device), "Q8_0", 64)
    wide = torch.randn(9, 2, 64, generator=generator)
    together = run(w, table, list(range(9)), wide, None, exact=False)
    assert torch.equal(run(w, table, [4], wide[4:5], None, exact=False)[0], together[4])


def test_refuses_what_does_not_fit(device: str) -> None:
    w = entry(device, streams=2, hidden=64, grouped=False)
    table = Table(torch.zeros(9, 34, dtype=torch.uint8, device=device), "Q8_0", 32)
    with pytest.raises(ValueError, match="rows of 32, products"):
        run(w, table, [0], torch.zeros(1, 2, 64), None, exact=True)
