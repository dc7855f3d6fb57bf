"""Which device loads what: the bytes of its own layers, the ends where they are used, and nothing twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from appliance.model.qwen4exp.device.shares import EMBEDDING, own_tensors
from tests.device.models import plan_of, spec_of

SPEC = spec_of("base4")
FIRST, SECOND = (torch.device(name) for name in ("cuda:0", "cuda:1"))


def names(draft: bool, *, split: tuple[int, ...], devices: tuple[str, ...]) -> dict[torch.device, list[str]]:
    plan = replace(plan_of(), layer_split=split, devices=devices)
    return {device: [info.name for info in infos] for device, infos in own_tensors(SPEC, plan, draft=draft).items()}


def block(name: str) -> int:
    return int(name.split(".")[1]) if name.startswith("blk.") else -1


@pytest.mark.parametrize("draft", [True, False], ids=["drafts", "no drafts"])
@pytest.mark.parametrize("split", [1, 2, 3])
def test_two_devices_share_what_one_would_load(split: int, draft: bool) -> None:
    (whole,) = names(draft, split=(), devices=("cuda:0",)).values()
    both = names(draft, split=(split,), devices=("cuda:0", "cuda:1"))
    assert set(both[FIRST]) | set(both[SECOND]) == set(whole)
    embedded_twice = draft or "output.weight" not in SPEC.tensors
    assert set(both[FIRST]) & set(both[SECOND]) == ({EMBEDDING} if embedded_twice else set())
    assert {block(name) for name in both[FIRST]} - {-1} == set(range(split))
    assert {name for name in both[FIRST] if block(name) < 0} == {EMBEDDING}
    assert {block(name) for name in both[SECOND]} - {-1} == set(range(split, SPEC.trunk_layers + int(draft)))


def test_stages_of_one_device_load_everything_once_and_in_order() -> None:
    (whole,) = names(True, split=(), devices=("cuda:0",)).values()
    (stages,) = names(True, split=(1, 3), devices=("cuda:0",) * 3).values()
    assert stages == whole
    assert len(set(whole)) == len(whole)
    blocks = [block(name) for name in whole if block(name) >= 0]
    assert blocks == sorted(blocks)
    assert not any("_exps." in name or ".ple_" in name for name in whole)
