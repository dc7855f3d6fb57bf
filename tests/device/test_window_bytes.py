"""What windows of the real shape hold is what the plan says; kernels are left out, so no memory is touched."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from triton.runtime.interpreter import GridExecutor
from triton.runtime.jit import JITFunction

from appliance.bench.synthetic import SyntheticShape, synthetic_spec
from appliance.gguf.reader import TensorInfo
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.device import experts, tables
from appliance.model.qwen4exp.device.held import held_bytes
from appliance.model.qwen4exp.device.loading import LoadedStages, build_stages, give_stores, take_room
from appliance.model.qwen4exp.device.ngram import ngram_table
from appliance.model.qwen4exp.device.pipeline import Launcher
from appliance.model.qwen4exp.device.shapes import StepShape
from appliance.model.qwen4exp.device.stage import Common
from appliance.model.qwen4exp.device.work import Draws
from appliance.model.qwen4exp.device_footprint import expert_bytes
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.model.qwen4exp.window_footprint import BUCKETS, WindowAsk, buffer_bytes, splits
from kernels import linear
from kernels.planes import Planes, choose_format, word_count

SLOTS = 4


class Unread:
    """A source of the right sizes whose memory nobody has touched."""

    device = torch.device("cpu")

    def __init__(self, tensors: dict[str, TensorInfo]) -> None:
        self._tensors = tensors

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def info(self, name: str) -> TensorInfo:
        return self._tensors[name]

    def planes(self, name: str) -> Planes:
        info = self._tensors[name]
        return empty_planes(info.type.name, math.prod(info.shape[:-1]), info.shape[-1])

    def floats(self, name: str) -> torch.Tensor:
        return torch.empty(self._tensors[name].shape)

    def blocks(self, name: str) -> torch.Tensor:
        info = self._tensors[name]
        return torch.empty((info.byte_count // info.row_bytes, info.row_bytes), dtype=torch.uint8)

    def table(self, name: str, *, on_device: bool) -> torch.Tensor:
        return self.blocks(name)

    def release(self) -> None:
        """Nothing is held."""


def empty_planes(type_name: str, rows: int, columns: int) -> Planes:
    form = choose_format(type_name)
    return Planes(
        form.name, rows, columns, torch.empty(word_count(form, rows=rows, columns=columns), dtype=torch.int32)
    )


def empty_pack(type_name: str, raw: torch.Tensor, *, columns: int, **_: Any) -> Planes:
    return empty_planes(type_name, raw.shape[0], columns)


def empty_expert(*parts: Any, kind: Any) -> torch.Tensor:
    return torch.empty(kind.words, dtype=torch.int32)


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every launch is left out; on the CPU attention is shared between as many programs as on a card."""
    monkeypatch.setattr(GridExecutor, "__call__", lambda *_, **__: None)
    monkeypatch.setattr(JITFunction, "run", lambda *_, **__: None)
    monkeypatch.setattr(experts, "pack", empty_pack)
    monkeypatch.setattr(experts, "pack_expert", empty_expert)
    real: Callable[..., tables.Splits] = tables.dense_splits
    monkeypatch.setattr(tables, "dense_splits", lambda kind, count=None: real(kind=kind))


def build(spec: ModelSpec, *, tokens: int) -> tuple[LoadedStages, Launcher]:
    """The real shape with four layers on one card, every window's room taken."""
    plan = LoadPlan(
        device="cpu",
        slots=SLOTS,
        pages=SLOTS * (tokens // 64 + 1),
        page_tokens=64,
        max_tokens=tokens,
        max_window_rows=40,
        draft_max=3,
        ngram_home="ram",
        kv_type="bf16",
        expert_pool_bytes=expert_bytes(spec, draft=True).total,
    )
    source = Unread(dict(spec.tensors))
    parts = build_stages(Common(spec=spec, plan=plan, pdl=False), [source], draft=True)
    give_stores(parts, spec, plan)
    for stage in parts.stages:
        if stage.has_ngram:
            stage.give_ngrams(ngram_table(source, spec, home="ram"))
    take_room(parts, slots=SLOTS)
    return parts, Launcher(parts, plan)


@torch.inference_mode()
@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("tokens", [8192, 131072])
def test_buffers_of_the_real_shape(tokens: int) -> None:
    """Within 3 %, after the first window as after those of every size: nothing is left to be taken later."""
    spec = synthetic_spec(SyntheticShape(layers=4), draft=True)
    parts, launcher = build(spec, tokens=tokens)
    ask = WindowAsk(tokens=tokens, slots=SLOTS, head=True, drafts=True, ngram=True)
    rules = (SLOTS + 1) * spec.vocabulary * 9
    held = []
    for rows in (1, 2, 6, 40):
        shape = StepShape(rows=rows, spans=min(rows, SLOTS), steps=3, draws=Draws(wide=False, greedy=True))
        for launch in launcher._launches(rows, lambda shape=shape: launcher._step(shape)):  # type: ignore[misc]
            launch()
        held.append(held_bytes(parts, launcher)[0]["card: buffers"])
    assert held[0] == pytest.approx(held[-1], rel=0.01)
    assert held[-1] == pytest.approx(buffer_bytes(spec, ask) + rules, rel=0.03)
    parts.stages[0].close()


def test_the_plan_knows_buckets_and_splits() -> None:
    assert BUCKETS == tables.BUCKETS
    for rows, columns in ((16512, 2560), (2560, 6144), (248320, 2560), (112, 2560), (10240, 2048), (32, 128)):
        assert splits(rows, columns) == linear.splits(rows, columns), (rows, columns)
