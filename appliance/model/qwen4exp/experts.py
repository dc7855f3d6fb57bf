"""A layer's routed experts: taken apart once, or stored blocks taken apart when a window touches them."""

from __future__ import annotations

from appliance.gguf.reader import TensorInfo
from appliance.model.qwen4exp.tensors import Tensors, raw_bytes
from kernels.compiled.arrays import Floats, Integers
from kernels.matrix import Part, join, stack, stored
from kernels.moe.op import ExpertWeights, add_fetched


class StoredExperts:
    """Stored blocks; a window takes apart the experts that it touches."""

    def __init__(self, gates: tuple[TensorInfo, ...], down: TensorInfo) -> None:
        self._gates = gates
        self._down = down

    def add(self, x: Floats, ids: Integers, shares: Floats, out: Floats) -> None:
        """See `TouchedExperts`."""
        add_fetched(x, ids, shares, self._fetch, out)

    def _fetch(self, expert: int) -> ExpertWeights:
        return _weights(self._gates, self._down, expert, expert + 1)


def stored_experts(tensors: Tensors, block: str) -> StoredExperts:
    """Experts of a block (`blk.N`), fused or split, left as stored."""
    return StoredExperts(*_infos(tensors, block))


def all_experts(tensors: Tensors, block: str) -> ExpertWeights:
    """Experts of a block (`blk.N`), fused or split, taken apart."""
    gates, down = _infos(tensors, block)
    return _weights(gates, down, 0, down.shape[0])


def _infos(tensors: Tensors, block: str) -> tuple[tuple[TensorInfo, ...], TensorInfo]:
    fused = f"{block}.ffn_gate_up_exps.weight"
    names = (fused,) if fused in tensors else (f"{block}.ffn_gate_exps.weight", f"{block}.ffn_up_exps.weight")
    return tuple(tensors.info(name) for name in names), tensors.info(f"{block}.ffn_down_exps.weight")


def _part(info: TensorInfo, first: int, stop: int) -> Part:
    """Experts first to stop, one below the other."""
    rows = info.shape[1]
    return stored(info.type.name, raw_bytes(info)[first * rows : stop * rows], columns=info.shape[2])


def _weights(gates: tuple[TensorInfo, ...], down: TensorInfo, first: int, stop: int) -> ExpertWeights:
    """Gates and ups of each expert, and its down columns, each filled up to whole tiles."""
    gate_up = stack([_part(info, first, stop) for info in gates], runs=stop - first)
    columns = _part(down, first, stop)
    return ExpertWeights(
        gate_up=join([gate_up.filled(down.shape[2])]), down=join([columns.filled(down.shape[1])]), experts=stop - first
    )
