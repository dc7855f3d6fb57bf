"""What loading takes on a card beside what it leaves there, in bytes; torch-free arithmetic over the spec."""

from __future__ import annotations

import functools
from typing import Final

from appliance.gguf.reader import TensorInfo
from appliance.model.qwen4exp.device_footprint import TILE_WORDS
from appliance.model.qwen4exp.spec import ModelSpec

MIB: Final = 1 << 20
PLACES: Final = 4
"""Stored weights on the card at once: some are packed while the others arrive."""
PLACE_BYTES: Final = 40 * MIB
TOGETHER: Final = 16
"""Experts packed together, where a place holds so many."""
ALIGN: Final = 256

PIECE_BYTES: Final = 8 * MIB
PIECES_EACH: Final = 2
READERS: Final = 12
STAGING_BYTES: Final = PIECE_BYTES * PIECES_EACH * READERS
"""Pinned for a while, for each card that weights are sent to."""

SLICED_BYTES: Final = 64 * MIB
"""Whole tensors above this come in slices, a place at a time."""

PLAIN: Final = ("F32", "F16", "BF16")
"""Types that torch packs, as well as gate and up matrices of two types."""
TORCH_BYTES: Final = 256 * MIB
"""The most that torch needs for slices of weights on their way into planes, and for what it made of a place."""
TORCH_BYTES_A_WEIGHT: Final = 100


def expert_types(spec: ModelSpec, layer: int) -> tuple[str, str, str]:
    """Types of the gate, up and down matrices of a layer's experts."""
    gate, up, down = (tensor.type.name for tensor in _tensors(spec, layer))
    return gate, up, down


def packed_by_kernel(gate: str, up: str, down: str) -> bool:
    """Whether experts of these types are packed without temporaries."""
    return gate == up and all(name in TILE_WORDS and name not in PLAIN for name in (gate, down))


def stored_expert_bytes(spec: ModelSpec, layer: int) -> int:
    """One expert of a layer as stored, each of its matrices aligned."""
    own = {tensor.name: tensor.byte_count for tensor in _tensors(spec, layer)}
    return sum(-(-size // spec.experts // ALIGN) * ALIGN for size in own.values())


@functools.lru_cache(maxsize=16)
def place_bytes(spec: ModelSpec, *, draft: bool) -> int:
    """Of one place: experts are never parted."""
    found = [stored_expert_bytes(spec, layer) for layer in _layers(spec, draft=draft)]
    sliced = any(one.byte_count > SLICED_BYTES and "_exps." not in name for name, one in spec.tensors.items())
    wanted = PLACE_BYTES if sliced else min(PLACE_BYTES, TOGETHER * max(found, default=ALIGN))
    return max([wanted, *found])


def together(spec: ModelSpec, layer: int, *, place: int) -> int:
    """Experts of a layer that come in one place; torch widens those of two types whole, so one by one."""
    gate, up, _ = expert_types(spec, layer)
    return max(1, min(TOGETHER if gate == up else 1, place // stored_expert_bytes(spec, layer)))


@functools.lru_cache(maxsize=16)
def packing_bytes(spec: ModelSpec, *, draft: bool) -> int:
    """What is on a card for a while when the last weights are packed and everything else is in place."""
    place = place_bytes(spec, draft=draft)
    by_torch = [_torch_bytes(spec, layer, place=place) for layer in _layers(spec, draft=draft)]
    return PLACES * place + max(by_torch, default=0)


def _torch_bytes(spec: ModelSpec, layer: int, *, place: int) -> int:
    """What torch needs to pack a layer's experts; nothing where the kernel does."""
    gate, up, down = expert_types(spec, layer)
    if packed_by_kernel(gate, up, down):
        return 0
    weights = 3 * spec.hidden * spec.expert_ff * together(spec, layer, place=place)
    return weights * TORCH_BYTES_A_WEIGHT if gate != up else min(TORCH_BYTES, weights * TORCH_BYTES_A_WEIGHT)


def _tensors(spec: ModelSpec, layer: int) -> tuple[TensorInfo, TensorInfo, TensorInfo]:
    """Gate, up and down of a layer; the first two are one where they are stored together."""
    block, found = f"blk.{layer}", spec.tensors
    down = found[f"{block}.ffn_down_exps.weight"]
    fused = found.get(f"{block}.ffn_gate_up_exps.weight")
    if fused is not None:
        return fused, fused, down
    return found[f"{block}.ffn_gate_exps.weight"], found[f"{block}.ffn_up_exps.weight"], down


def _layers(spec: ModelSpec, *, draft: bool) -> range:
    return range(spec.trunk_layers + int(draft))
