"""Turns a packed expert from its form in the host's memory into that on the card, and back; no value changes."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from kernels.experts._recode import compact_kernel, spread_kernel
from kernels.experts.layout import ExpertKind
from kernels.linear.op import codebook
from kernels.planes import FORMATS, operand_columns
from kernels.planes.format import TILE_COLUMNS

_COMPACT, _SPREAD = "iq3", "i4"


def recode(words: Tensor, kind: ExpertKind, *, out: Tensor, to: ExpertKind) -> None:
    """Writes an expert in another form.

    Args:
        words: int32 [kind.words] on the device.
        kind: its form.
        out: int32 [to.words] on the same device or in pinned memory, not overlapping.
        to: the form wanted: the same widths, and in each part the same format or the other one of IQ3_S.

    Raises:
        ValueError: sizes or formats that do not fit.
    """
    if words.shape != (kind.words,) or out.shape != (to.words,) or (kind.hidden, kind.ff) != (to.hidden, to.ff):
        raise ValueError(
            f"recode: {list(words.shape)} words of {kind} and {list(out.shape)} of {to}; they must be of one width"
        )
    split, split_out = kind.gate_up_words, to.gate_up_words
    _part(words[:split], kind.gate_up, out=out[:split_out], to=to.gate_up, columns=kind.hidden)
    _part(words[split:], kind.down, out=out[split_out:], to=to.down, columns=kind.ff)


def _part(words: Tensor, form: str, *, out: Tensor, to: str, columns: int) -> None:
    if form == to:
        out.copy_(words, non_blocking=True)
        return
    chunks = operand_columns(columns) // TILE_COLUMNS
    grid = (words.numel() // FORMATS[form].strip_words(columns), chunks)
    if (form, to) == (_COMPACT, _SPREAD):
        spread_kernel[grid](words, out, codebook(words.device), NCH=chunks, num_warps=4)
    elif (form, to) == (_SPREAD, _COMPACT):
        compact_kernel[grid](words, out, _indices(words.device), NCH=chunks, num_warps=4)
    else:
        raise ValueError(f"recode: planes of format {form} cannot become {to}; only {_COMPACT} and {_SPREAD} can")


@cache
def _indices(device: torch.device) -> Tensor:
    """int32 [4096]: the grid's row of four 3-bit levels, the first lowest; 0 where there is none."""
    rows = codebook(torch.device("cpu")).view(torch.int16).to(torch.int32)
    key = sum(((rows >> (4 * i)) & 7) << (3 * i) for i in range(4))
    found = torch.zeros(4096, dtype=torch.int32)
    found[key] = torch.arange(512, dtype=torch.int32)
    return found.to(device)
