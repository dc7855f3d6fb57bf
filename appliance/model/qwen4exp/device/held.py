"""What a loaded model really holds on its cards, part by part, in the words of the placement."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

import torch

from appliance.model.qwen4exp.device.loading import LoadedStages
from appliance.model.qwen4exp.device.stage import Stage

_OURS = ("appliance.", "kernels.")


def held_bytes(parts: LoadedStages, beside: object) -> list[dict[str, int]]:
    """Bytes of each part on each stage's device; what is shared counts where it is met first.

    Args:
        parts: the stages.
        beside: whatever else holds memory for windows, such as a launcher.
    """
    seen: set[int] = set()
    found = []
    for stage in parts.stages:
        first, last = stage is parts.stages[0], stage is parts.last_stage
        of_stage = {name: _bytes(roots, stage.device, seen) for name, roots in _named(parts, stage, first, last)}
        found.append(of_stage)
    for stage, of_stage in zip(parts.stages, found, strict=True):
        of_stage["card: buffers"] += _bytes([stage, *([parts, beside])], stage.device, seen)
    return found


def _named(parts: LoadedStages, stage: Stage, first: bool, last: bool) -> Iterator[tuple[str, list[object]]]:
    state, ngram, end = stage.state, stage.ngram, parts.last
    assert stage.store is not None
    yield "card: experts", [stage.store.pool]
    yield "card: KV pages", [state.pools, state.pooled, state.draft_pool]
    yield "card: states", [state]
    yield "card: n-gram table", [] if ngram is None else [ngram.table]
    weights: list[object] = [[block.weights for block in stage.blocks], stage.draft]
    weights += [] if ngram is None else [ngram.weights]
    weights += [parts.embedding] if first else []
    if last:
        weights += [end.head, end.vocabulary.planes]
        weights += [] if end.drafter is None else [end.drafter.embedding, end.drafter.entry, end.drafter.head]
    yield "card: weights", weights
    yield "card: buffers", [end.rules] if last else []


def _bytes(roots: Iterable[object], device: torch.device, seen: set[int]) -> int:
    total = 0
    for tensor in _tensors(roots, set()):
        storage = tensor.untyped_storage()
        if tensor.device == device and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def _tensors(found: object, met: set[int]) -> Iterator[torch.Tensor]:
    """Every tensor that can be reached through our own objects and plain containers."""
    if isinstance(found, torch.Tensor):
        yield found
        return
    if id(found) in met:
        return
    met.add(id(found))
    if isinstance(found, Mapping):
        inner: Iterable[object] = list(found.values())
    elif isinstance(found, list | tuple):
        inner = found
    elif type(found).__module__.startswith(_OURS):
        names = [one.name for one in dataclasses.fields(found)] if dataclasses.is_dataclass(found) else vars(found)
        inner = [getattr(found, name) for name in names]
    else:
        return
    for one in inner:
        yield from _tensors(one, met)
