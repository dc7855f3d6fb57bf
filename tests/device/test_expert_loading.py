"""Experts come to their homes by the packing kernel as they come by torch; scales that are no numbers are named."""

from __future__ import annotations

import math
import zlib
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from appliance.errors import ModelFileError
from appliance.gguf.part import GgufPart
from appliance.gguf.reader import TensorInfo
from appliance.gguf.types import BY_NAME
from appliance.model.qwen4exp import loading_footprint
from appliance.model.qwen4exp.device.experts import pack_shared
from appliance.model.qwen4exp.device.loading import build_stages, give_stores
from appliance.model.qwen4exp.device.source import FileSource
from appliance.model.qwen4exp.device.stage import Common
from appliance.model.qwen4exp.device.staging import Staging
from appliance.model.qwen4exp.device.store import ExpertStore
from appliance.model.qwen4exp.device.store_loading import load_experts
from appliance.model.qwen4exp.loading_footprint import (
    PLACES,
    expert_types,
    packed_by_kernel,
    packing_bytes,
    place_bytes,
    stored_expert_bytes,
    together,
)
from appliance.model.qwen4exp.spec import ModelSpec
from kernels.experts import ExpertKind
from kernels.planes import FORMATS_OF_TYPE, choose_format, common_format, formats_of, pack
from kernels.planes.fast import can_pack
from tests.builders.blocks import model_rows
from tests.device.models import DEVICE, plan_of, spec_of


class _Held:
    """A part of a file that is only in memory."""

    def __init__(self, raw: torch.Tensor) -> None:
        self._raw = raw

    def view(self, offset: int, size_bytes: int) -> NDArray[np.uint8]:
        held: NDArray[np.uint8] = self._raw.view(-1).numpy()
        return held[offset : offset + size_bytes]

    def read_into(self, target: memoryview, offset: int) -> None:
        target[:] = self.view(offset, len(target)).data


def stored(shape: tuple[int, ...], type_name: str, name: str, *, damaged: bool = False) -> TensorInfo:
    """Random blocks; the last one has a scale that is no number where the tensor is damaged."""
    rows, kind = math.prod(shape[:-1]), BY_NAME[type_name]
    raw = model_rows(type_name, rows=rows, columns=shape[-1], seed=zlib.crc32(name.encode())).clone()
    if damaged:
        raw.view(-1, kind.block_bytes)[-1, 1] = 0x7C
    return TensorInfo(name, shape, kind, raw.numel(), cast(GgufPart, _Held(raw)), 0)


def spec_with(types: tuple[str, str, str], *, damaged: str = "") -> ModelSpec:
    """One layer of a small model, with fewer experts, stored in these types (gate, up, down)."""
    spec = replace(spec_of("base4"), trunk_layers=1, full_attention=spec_of("base4").full_attention[:1], experts=4)
    found = dict(spec.tensors)
    for layer in range(spec.trunk_layers):
        for part, type_name in zip(("gate", "up", "down"), types, strict=True):
            name = f"blk.{layer}.ffn_{part}_exps.weight"
            shape = (spec.experts, *spec.tensors[name].shape[1:])
            found[name] = stored(shape, type_name, name, damaged=name == damaged)
    return replace(spec, tensors=found)


def empty_store(spec: ModelSpec) -> tuple[ExpertStore, FileSource]:
    """A store without the draft layer, with half of each layer's experts on the card, scattered."""
    plan = plan_of(tokens=40, draft_max=0)
    source = FileSource(spec.tensors, Staging(torch.device(DEVICE)))
    parts = build_stages(Common(spec=spec, plan=plan, pdl=False), [source], draft=False)
    source.check()
    heat = np.arange(spec.trunk_layers * spec.experts, dtype=np.float32).reshape(spec.trunk_layers, -1) * 5 % 7
    (store,) = give_stores(parts, spec, plan, hit_share=0.5, heat=heat)
    return store, source


def words(store: ExpertStore) -> list[torch.Tensor]:
    """All homes."""
    numbers = range(len(store.layers))
    assert all(store.routing.layer(at).table[:-1].tolist() == store.entries(at).tolist() for at in numbers)
    return [store.pool.cpu().clone(), *(store.places(number).clone() for number in numbers)]


@torch.inference_mode()
@pytest.mark.parametrize(
    "types", [("Q8_0", "Q8_0", "IQ4_NL"), ("Q4_0", "Q5_1", "Q8_0"), ("F32", "F32", "F32")], ids="-".join
)
def test_both_ways_leave_the_same_words(types: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Three experts at a time; types that the kernel does not know come by torch all the same."""
    monkeypatch.setattr(loading_footprint, "TOGETHER", 3)
    spec = spec_with(types)
    found = []
    for by_kernel in (True, False):
        store, source = empty_store(spec)
        told: list[int] = []
        load_experts(store, source, spec, done=lambda told=told: told.append(1), by_kernel=by_kernel)
        assert len(told) == spec.trunk_layers
        found.append(words(store))
        store.close()
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@torch.inference_mode()
@pytest.mark.parametrize(("part", "by_kernel"), [("up", True), ("down", True), ("gate", False)])
def test_a_damaged_expert_is_named(part: str, by_kernel: bool) -> None:
    """MEM-04: whichever way packs it, and whatever home it has."""
    name = f"blk.0.ffn_{part}_exps.weight"
    spec = spec_with(("Q4_0", "Q4_0", "Q8_0"), damaged=name)
    store, source = empty_store(spec)
    with pytest.raises(ModelFileError, match=f"tensor {name} has 1 scales"):
        load_experts(store, source, spec, done=lambda: None, by_kernel=by_kernel)
    store.close()


@pytest.mark.parametrize(
    "types", [("Q8_0", "Q8_0", "IQ4_NL"), ("Q4_0", "Q5_1", "Q8_0"), ("F32", "F32", "F32")], ids="-".join
)
def test_a_shared_expert_is_the_same_both_ways(types: tuple[str, str, str]) -> None:
    gate, up, down = (
        (name, model_rows(name, rows=rows, columns=columns, seed=rows).to(DEVICE))
        for name, rows, columns in zip(types, (64, 64, 32), (32, 32, 64), strict=True)
    )
    kind = ExpertKind(
        gate_up=common_format(types[0], types[1]).name, down=formats_of(types[2])[0].name, hidden=32, ff=64
    )
    quick, slow = (pack_shared(gate, up, down, kind=kind, quickly=one) for one in (True, False))
    assert torch.equal(quick, slow)
    assert quick.numel() == kind.words


def test_places_hold_whole_experts() -> None:
    spec = spec_with(("Q8_0", "Q8_0", "IQ4_NL"))
    one = stored_expert_bytes(spec, 0)
    assert place_bytes(spec, draft=False) == 16 * one
    assert [together(spec, 0, place=place) for place in (one - 1, one, 3 * one + 5, 1 << 30)] == [1, 1, 3, 16]
    assert packing_bytes(spec, draft=False) == PLACES * 16 * one
    plain, mixed = spec_of("base4"), spec_with(("Q4_0", "Q5_1", "Q8_0"))
    assert packing_bytes(plain, draft=True) > PLACES * place_bytes(plain, draft=True)
    assert together(mixed, 0, place=1 << 30) == 1


@pytest.mark.parametrize(
    ("types", "kernel"),
    [(("IQ3_S", "IQ3_S", "IQ4_NL"), True), (("Q4_K", "Q5_K", "Q8_0"), False), (("BF16", "BF16", "BF16"), False)],
    ids=["blocks", "two types", "plain"],
)
def test_what_the_plan_says_of_packing_is_what_loading_does(types: tuple[str, str, str], kernel: bool) -> None:
    gate, up, down = types
    form = common_format(gate, up).name
    assert packed_by_kernel(*types) is kernel
    assert (gate == up and can_pack(gate, form) and can_pack(down, formats_of(down)[0].name)) is kernel


def test_every_type_is_planned_as_it_is_packed() -> None:
    for name in FORMATS_OF_TYPE:
        forms = [form.name for form in formats_of(name) if form.name != "wide"]
        assert all(can_pack(name, form) for form in forms) is packed_by_kernel(name, name, name), name
    assert expert_types(spec_with(("Q4_0", "Q5_1", "Q8_0")), 0) == ("Q4_0", "Q5_1", "Q8_0")


@torch.inference_mode()
def test_a_matrix_is_packed_slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a card, where a large matrix comes in whole strips."""
    info = stored((70, 64), "Q4_0", "w")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    staging = Staging(device)
    raw = torch.from_numpy(info.raw()).view(70, -1).to(device)
    monkeypatch.setattr(staging, "slices", lambda info: ((first, raw[first : first + 32]) for first in (0, 32, 64)))
    found = FileSource({"w": info}, staging)._packed(info, choose_format("Q4_0"))
    wanted = pack("Q4_0", raw, columns=64)
    assert torch.equal(found.words, wanted.words)
    assert (found.format, found.rows, found.columns) == (wanted.format, 70, 64)
    staging.check()
