"""Stored experts on their way to their homes: where they lie in the file, and how they are packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from appliance.model.qwen4exp.device.experts import ExpertTensors
from appliance.model.qwen4exp.device.source import FileSource
from appliance.model.qwen4exp.device.staging import Stretch
from appliance.model.qwen4exp.spec import ModelSpec
from kernels.experts import ExpertKind, pack_expert
from kernels.planes import operand_columns, pack, pack_gate_up
from kernels.planes.fast import Items, pack_items


@dataclass(frozen=True, slots=True)
class ExpertRows:
    """Stored rows of neighbouring experts on the device; each part is ggml type, uint8 [experts, rows, row bytes]."""

    gate: tuple[str, torch.Tensor]
    up: tuple[str, torch.Tensor]
    down: tuple[str, torch.Tensor]

    @property
    def parts(self) -> tuple[tuple[str, torch.Tensor], ...]:
        """Gate, up and down."""
        return self.gate, self.up, self.down


def expert_stretches(
    source: FileSource, names: ExpertTensors, spec: ModelSpec, *, first: int, count: int
) -> list[Stretch]:
    """Where the rows of `count` experts from `first` on are stored; `expert_rows` takes them."""
    ff = spec.expert_ff
    down = source.stretch(names.down, first_row=first * spec.hidden, rows=count * spec.hidden)
    if names.fused:
        return [source.stretch(names.gate, first_row=2 * first * ff, rows=2 * count * ff), down]
    both = [source.stretch(name, first_row=first * ff, rows=count * ff) for name in (names.gate, names.up)]
    return [*both, down]


def expert_rows(source: FileSource, names: ExpertTensors, spec: ModelSpec, rows: Sequence[torch.Tensor]) -> ExpertRows:
    """What the rows of these stretches are."""
    gate_type, up_type, down_type = (source.info(name).type.name for name in (names.gate, names.up, names.down))
    if names.fused:
        both = rows[0].view(-1, 2, spec.expert_ff, rows[0].shape[1])
        gate, up = both[:, 0], both[:, 1]
    else:
        gate, up = (one.view(-1, spec.expert_ff, one.shape[1]) for one in rows[:2])
    down = rows[-1]
    return ExpertRows((gate_type, gate), (up_type, up), (down_type, down.view(-1, spec.hidden, down.shape[1])))


def pack_home(
    rows: ExpertRows, *, kind: ExpertKind, out: torch.Tensor, places: torch.Tensor, bad: torch.Tensor
) -> None:
    """Packs experts where they belong.

    Args:
        rows: of types that `kernel_packs` knows.
        kind: their form there.
        out: int32, on the card or pinned.
        places: int64 [experts] on the device, words from the start of `out`; -1 for those that are not there.
        bad: int32 [3] on the device: scales of gate, up and down that are no numbers are added.
    """
    (gate_type, gate), (_, up), (down_type, down) = rows.parts
    both = Items(type_name=gate_type, raw=gate, beside=up, columns=kind.hidden, form=kind.gate_up)
    pack_items(both, out=out, places=places, bad=bad[:2])
    last = Items(type_name=down_type, raw=down, columns=kind.ff, form=kind.down)
    pack_items(last, out=out, places=places, bad=bad[2:], skip=kind.gate_up_words)


def pack_experts(rows: ExpertRows, *, kind: ExpertKind) -> torch.Tensor:
    """Experts in their form for kernels, int32 [experts, words of one], by torch."""
    (gate_type, gate), (up_type, up), (down_type, down) = ((name, one.flatten(0, 1)) for name, one in rows.parts)
    count, ff = rows.down[1].shape[0], kind.ff
    # Whole strips: many experts below each other are the words of each, one after the other.
    if operand_columns(ff) == ff and kind.hidden % 32 == 0:
        upper = pack_gate_up((gate_type, gate), (up_type, up), columns=kind.hidden, form=kind.gate_up).words
        lower = pack(down_type, down, columns=ff, form=kind.down).words
        return torch.cat((upper.view(count, -1), lower.view(count, -1)), 1)
    found = torch.empty((count, kind.words), dtype=torch.int32, device=down.device)
    for number in range(count):
        one = ((name, values[number]) for name, values in rows.parts)
        pack_expert(*one, kind=kind, out=found[number])
    return found
