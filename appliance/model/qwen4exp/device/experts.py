"""The experts of one layer: router, shared expert, and where each routed one lies."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from appliance.model.qwen4exp.device.homes import LayerRouting
from appliance.model.qwen4exp.device.source import Source
from appliance.model.qwen4exp.spec import ModelSpec
from kernels.experts import ExpertKind, ExpertLayout, pack_expert, table_entry
from kernels.planes import Planes, common_format, formats_of, join, pack
from kernels.planes.fast import can_pack, pack_quickly


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
    source: Source, block: str, spec: ModelSpec, *, layout: ExpertLayout, anchor: torch.Tensor, routing: LayerRouting
) -> LayerExperts:
    """Router, shared expert and the table without the routed experts, whose entries the expert store writes."""
    parts = [f"{block}.ffn_{name}_shexp.weight" for name in ("gate", "up", "down")]
    gate, up, down = ((source.info(name).type.name, source.blocks(name)) for name in parts)
    shared = pack_shared(gate, up, down, kind=layout.shared_kind, quickly=source.device.type == "cuda")
    floats = [source.floats(f"{block}.ffn_{name}.weight").reshape(-1, spec.hidden) for name in _ROUTING]
    router, starts = join([_full(one) for one in floats])
    routing.table[-1] = table_entry(shared, anchor, host=False)
    return LayerExperts(
        layout=layout,
        router=router,
        gate_column=starts[1],
        table=routing.table,
        anchor=anchor,
        shared=shared,
        counts=routing.counts,
    )


def kernel_packs(types: tuple[str, str, str], kind: ExpertKind) -> bool:
    """Whether experts of these types (gate, up, down) come into this form without temporaries."""
    gate, up, down = types
    return gate == up and can_pack(gate, kind.gate_up) and can_pack(down, kind.down)


def pack_shared(
    gate: tuple[str, torch.Tensor],
    up: tuple[str, torch.Tensor],
    down: tuple[str, torch.Tensor],
    *,
    kind: ExpertKind,
    quickly: bool,
) -> torch.Tensor:
    """The words of an expert as `pack_expert` makes them, by the kernel where that is wanted and knows the types."""
    if not quickly or not kernel_packs((gate[0], up[0], down[0]), kind):
        return pack_expert(gate, up, down, kind=kind)
    upper = pack_quickly(gate[0], gate[1], columns=kind.hidden, form=kind.gate_up, beside=up[1])
    lower = pack_quickly(down[0], down[1], columns=kind.ff, form=kind.down)
    return torch.cat((upper.words, lower.words))


_ROUTING = ("gate_inp", "gate_inp_shexp")


def _full(values: torch.Tensor) -> Planes:
    """float32 [rows, columns] as planes: the router decides, so it keeps every bit."""
    return pack("F32", values.contiguous().view(torch.uint8).reshape(values.shape[0], -1), columns=values.shape[1])
