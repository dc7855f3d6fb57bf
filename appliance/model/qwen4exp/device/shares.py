"""Which device computes which layers, and which stored tensors it therefore loads; nothing is loaded for another."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import torch

from appliance.gguf.reader import TensorInfo
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.footprint import NGRAM_TABLE
from appliance.model.qwen4exp.spec import ModelSpec

EMBEDDING: Final = "token_embd.weight"


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Kernels are launched on the current device, whatever device their tensors are on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def stage_ranges(layers: int, split: Sequence[int]) -> list[range]:
    """Layers of each stage from the first layers of the later ones."""
    edges = [0, *split, layers]
    return [range(first, stop) for first, stop in itertools.pairwise(edges)]


def stage_devices(plan: LoadPlan) -> list[torch.device]:
    """Of each stage, in order."""
    return [torch.device(name) for name in plan.devices or (plan.device,) * (len(plan.layer_split) + 1)]


def own_tensors(spec: ModelSpec, plan: LoadPlan, *, draft: bool) -> dict[torch.device, list[TensorInfo]]:
    """Whole tensors that each device's stages are built of, block by block, then the others.

    The embedding is where the first stage is, and where the drafter or an output without a matrix of its own needs it;
    the head and the draft layer are where the last stage is. Experts and the n-gram layer are loaded by other ways.
    """
    devices, ranges = stage_devices(plan), stage_ranges(spec.trunk_layers, plan.layer_split)
    embedded = {devices[0]} | ({devices[-1]} if draft or "output.weight" not in spec.tensors else set())
    homes = {number: {device} for device, layers in zip(devices, ranges, strict=True) for number in layers} | {
        spec.trunk_layers: {devices[-1]} if draft else set()
    }
    found: dict[torch.device, list[TensorInfo]] = {device: [] for device in devices}
    in_order = sorted(spec.tensors.items(), key=lambda item: _block_of(item[0], otherwise=spec.trunk_layers + 1))
    for name, info in in_order:
        number = _block_of(name, otherwise=-1)
        indexer_of_draft = number == spec.trunk_layers and ".indexer." in name
        if "_exps." in name or ".ple_" in name or name == NGRAM_TABLE or indexer_of_draft:
            continue
        others = embedded if name == EMBEDDING else {devices[-1]}
        for device in homes[number] if number >= 0 else others:
            found[device].append(info)
    return found


def ngram_tensors(spec: ModelSpec) -> list[TensorInfo]:
    """Whole tensors of the n-gram layer, which its stage loads last; its table is none of them."""
    return [info for name, info in spec.tensors.items() if ".ple_" in name]


def _block_of(name: str, *, otherwise: int) -> int:
    return int(name.split(".")[1]) if name.startswith("blk.") else otherwise
