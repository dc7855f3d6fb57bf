"""Where a layer's routed experts are: unpacked once in stacked matrices, or stored blocks unpacked when touched."""

from __future__ import annotations

import torch

from appliance.gguf.reader import TensorInfo
from appliance.model.qwen4exp.tensors import Tensors, raw_bytes
from kernels.moe import run_experts, run_fetched
from kernels.quant import dequantise


class StackedExperts:
    """All experts in float32: gate_up [experts, hidden, 2 * ff], down [experts, ff, hidden]."""

    def __init__(self, gate_up: torch.Tensor, down: torch.Tensor) -> None:
        self._gate_up = gate_up
        self._down = down

    def run(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """See `Experts`."""
        return run_experts(x, ids, weights, self._gate_up, self._down)


class StoredExperts:
    """Stored blocks; a window unpacks the experts that it touches."""

    def __init__(self, gates: tuple[TensorInfo, ...], down: TensorInfo, device: torch.device) -> None:
        self._gates = gates
        self._down = down
        self._device = device

    def run(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """See `Experts`."""
        return run_fetched(x, ids, weights, self._fetch)

    def _fetch(self, expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        gate_up = torch.cat([self._one(info, expert) for info in self._gates], 0)
        return gate_up.t(), self._one(self._down, expert).t()

    def _one(self, info: TensorInfo, expert: int) -> torch.Tensor:
        rows = info.shape[1]
        raw = raw_bytes(info)[expert * rows : (expert + 1) * rows].to(self._device)
        return dequantise(raw, info.type.name, columns=info.shape[2])


def stored_experts(tensors: Tensors, block: str) -> StoredExperts:
    """Experts of a block (`blk.N`), fused or split, left as stored."""
    fused = f"{block}.ffn_gate_up_exps.weight"
    names = (fused,) if fused in tensors else (f"{block}.ffn_gate_exps.weight", f"{block}.ffn_up_exps.weight")
    gates = tuple(tensors.info(name) for name in names)
    return StoredExperts(gates, tensors.info(f"{block}.ffn_down_exps.weight"), tensors.device)


def stacked_experts(tensors: Tensors, block: str) -> StackedExperts:
    """Experts of a block (`blk.N`), fused or split, unpacked and transposed."""
    fused = f"{block}.ffn_gate_up_exps.weight"
    names = (fused,) if fused in tensors else (f"{block}.ffn_gate_exps.weight", f"{block}.ffn_up_exps.weight")
    gate_up = torch.cat([tensors.matrix(name) for name in names], 1).transpose(1, 2).contiguous()
    return StackedExperts(gate_up, tensors.matrix(f"{block}.ffn_down_exps.weight").transpose(1, 2).contiguous())
