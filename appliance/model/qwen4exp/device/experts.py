"""The experts of one layer: router, shared expert, and where each routed one lies."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from appliance.model.qwen4exp.device.source import Source
from appliance.model.qwen4exp.spec import ModelSpec
from kernels.experts import ExpertKind, ExpertLayout, pack_expert, table_entry
from kernels.planes import Planes, common_format, formats_of, join, operand_columns, pack, pack_gate_up

# Experts packed together; temporaries are about 40 bytes a weight.
_TOGETHER = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerExperts:
    """One layer.

    Attributes:
        layout: formats and sizes.
        router: planes [experts, then the shared expert's gate from `gate_column` on; hidden].
        gate_column: see router.
        table: int64 [experts + 1], where every expert is.
        anchor: int32 on the device; the table counts from there.
        shared: words of the shared expert.
        counts: int32 [experts], rows routed to each.
    """

    layout: ExpertLayout
    router: Planes
    gate_column: int
    table: torch.Tensor
    anchor: torch.Tensor
    shared: torch.Tensor
    counts: torch.Tensor


@dataclass(frozen=True, slots=True)
class ExpertTensors:
    """Names of a layer's stored experts; `gate` and `up` are the same tensor where they are fused."""

    gate: str
    up: str
    down: str
    fused: bool


def expert_tensors(source: Source, block: str) -> ExpertTensors:
    """The routed experts of a block (`blk.N`)."""
    fused = f"{block}.ffn_gate_up_exps.weight"
    down = f"{block}.ffn_down_exps.weight"
    if fused in source:
        return ExpertTensors(fused, fused, down, True)
    return ExpertTensors(f"{block}.ffn_gate_exps.weight", f"{block}.ffn_up_exps.weight", down, False)


def layout_of(source: Source, block: str, spec: ModelSpec) -> ExpertLayout:
    """Formats of a block's experts: the usual one on the card, the smallest in the host's memory."""
    names = expert_tensors(source, block)
    types = source.info(names.gate).type.name, source.info(names.up).type.name
    down = source.info(names.down).type.name
    gate_up = common_format(*types).name
    compact = "iq3" if types == ("IQ3_S", "IQ3_S") else gate_up
    compact_down = "iq3" if down == "IQ3_S" else formats_of(down)[0].name
    shared = [source.info(f"{block}.ffn_{name}_shexp.weight").type.name for name in ("gate", "up", "down")]

    def kind(gate_up: str, down: str, ff: int) -> ExpertKind:
        return ExpertKind(gate_up=gate_up, down=down, hidden=spec.hidden, ff=ff)

    return ExpertLayout(
        experts=spec.experts,
        used=spec.experts_used,
        kind=kind(gate_up, formats_of(down)[0].name, spec.expert_ff),
        host_kind=kind(compact, compact_down, spec.expert_ff),
        shared_kind=kind(common_format(shared[0], shared[1]).name, formats_of(shared[2])[0].name, spec.shared_ff),
    )


def layer_experts(
    source: Source, block: str, spec: ModelSpec, *, layout: ExpertLayout, anchor: torch.Tensor
) -> LayerExperts:
    """Router, shared expert and an empty table, which the expert store fills."""
    parts = [f"{block}.ffn_{name}_shexp.weight" for name in ("gate", "up", "down")]
    gate, up, down = ((source.info(name).type.name, source.blocks(name)) for name in parts)
    shared = pack_expert(gate, up, down, kind=layout.shared_kind)
    floats = [source.floats(f"{block}.ffn_{name}.weight").reshape(-1, spec.hidden) for name in _ROUTING]
    router, starts = join([_full(one) for one in floats])
    table = torch.zeros(spec.experts + 1, dtype=torch.int64, device=source.device)
    table[-1] = table_entry(shared, anchor, host=False)
    return LayerExperts(
        layout=layout,
        router=router,
        gate_column=starts[1],
        table=table,
        anchor=anchor,
        shared=shared,
        counts=torch.zeros(spec.experts, dtype=torch.int32, device=source.device),
    )


_ROUTING = ("gate_inp", "gate_inp_shexp")


def packed_experts(
    source: Source, block: str, spec: ModelSpec, *, kind: ExpertKind, first: int, count: int
) -> torch.Tensor:
    """Neighbouring experts of a block as int32 [count, words of one]."""
    names = expert_tensors(source, block)
    parts = []
    for at in range(first, first + count, _TOGETHER):
        parts.append(_pack_some(source, names, spec, kind, at, min(_TOGETHER, first + count - at)))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _pack_some(
    source: Source, names: ExpertTensors, spec: ModelSpec, kind: ExpertKind, first: int, count: int
) -> torch.Tensor:
    ff, hidden = spec.expert_ff, spec.hidden
    types = [source.info(name).type.name for name in (names.gate, names.up, names.down)]
    down = source.blocks(names.down, first_row=first * hidden, rows=count * hidden)
    if names.fused:
        both = source.blocks(names.gate, first_row=2 * first * ff, rows=2 * count * ff).view(count, 2, ff, -1)
        gate, up = both[:, 0].reshape(count * ff, -1), both[:, 1].reshape(count * ff, -1)
    else:
        gate, up = (source.blocks(name, first_row=first * ff, rows=count * ff) for name in (names.gate, names.up))
    # Whole strips: many experts below each other are the words of each, one after the other.
    if operand_columns(ff) == ff and hidden % 32 == 0:
        upper = pack_gate_up((types[0], gate), (types[1], up), columns=hidden, form=kind.gate_up).words
        lower = pack(types[2], down, columns=ff, form=kind.down).words
        return torch.cat((upper.view(count, -1), lower.view(count, -1)), 1)
    found = torch.empty((count, kind.words), dtype=torch.int32, device=source.device)
    for number in range(count):
        inner, outer = slice(number * ff, (number + 1) * ff), slice(number * hidden, (number + 1) * hidden)
        pack_expert(
            (types[0], gate[inner]), (types[1], up[inner]), (types[2], down[outer]), kind=kind, out=found[number]
        )
    return found


def _full(values: torch.Tensor) -> Planes:
    """float32 [rows, columns] as planes: the router decides, so it keeps every bit."""
    return pack("F32", values.contiguous().view(torch.uint8).reshape(values.shape[0], -1), columns=values.shape[1])
