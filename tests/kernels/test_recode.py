"""Experts in their two forms: recoding gives, word for word, what packing the stored blocks in that form gives."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.experts import ExpertKind, pack_expert
from kernels.experts.recode import recode
from tests.kernels.test_quant import random_rows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

COMPACT = ExpertKind(gate_up="iq3", down="lut4", hidden=512, ff=160)


def packed(kind: ExpertKind, down: str) -> torch.Tensor:
    """The same random blocks in the form asked for."""
    blocks = [
        (name, torch.from_numpy(random_rows(name, rows=rows, columns=columns)).to(DEVICE))
        for name, rows, columns in (
            ("IQ3_S", kind.ff, kind.hidden),
            ("IQ3_S", kind.ff, kind.hidden),
            (down, kind.hidden, kind.ff),
        )
    ]
    return pack_expert(blocks[0], blocks[1], blocks[2], kind=kind)


@pytest.mark.parametrize(
    ("host", "card", "down"),
    [
        (COMPACT, replace(COMPACT, gate_up="i4"), "IQ4_NL"),
        (replace(COMPACT, down="iq3", ff=256), replace(COMPACT, gate_up="i4", down="i4", ff=256), "IQ3_S"),
        (COMPACT, COMPACT, "IQ4_NL"),
    ],
    ids=["gate-and-up", "all-three", "one-form"],
)
@pytest.mark.parametrize("back", [False, True], ids=["to-the-card", "to-the-host"])
def test_recoding_equals_packing(host: ExpertKind, card: ExpertKind, down: str, back: bool) -> None:
    kind, to = (card, host) if back else (host, card)
    out = torch.full((to.words,), -1, dtype=torch.int32, device=DEVICE)
    recode(packed(kind, down), kind, out=out, to=to)
    assert torch.equal(out, packed(to, down))


@pytest.mark.parametrize(
    ("to", "words"),
    [(replace(COMPACT, hidden=256), "one width"), (replace(COMPACT, gate_up="q8"), "only iq3 and i4")],
    ids=["width", "format"],
)
def test_what_cannot_be_recoded_is_said(to: ExpertKind, words: str) -> None:
    source = torch.zeros(COMPACT.words, dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match=words):
        recode(source, COMPACT, out=torch.zeros(to.words, dtype=torch.int32, device=DEVICE), to=to)
