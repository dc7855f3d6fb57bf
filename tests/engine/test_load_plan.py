"""What a rig says of experts on cards reaches the model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from appliance.engine import kernel_cache
from appliance.examine import examine
from appliance.loading import load_model
from appliance.model import Architecture
from appliance.model.plan import LoadPlan
from appliance.rig.load import load_text
from tests.builders.machines import machine


def takes_the_plan(spec: Any, *, plan: LoadPlan, progress: Any) -> LoadPlan:
    return plan


def plan_of(text: str, *, cards: int) -> LoadPlan:
    found = examine(load_text(text), machine(cards=cards))
    row = Architecture(spec=found.architecture.spec, model=f"{__name__}:{takes_the_plan.__name__}")
    try:
        plan = load_model(dataclasses.replace(found, architecture=row), lambda stage, percent: None)
    finally:
        found.model.close()
    assert isinstance(plan, LoadPlan)
    return plan


@pytest.mark.parametrize(
    ("text", "cards", "every", "profile"),
    [
        ("", 0, 0, ""),
        ("", 1, 4, "/kernels/routing-"),
        ("[experts]\nadapt_every = 0\n", 1, 0, "/kernels/routing-"),
        ('[experts]\nadapt_every = 9\nprofile = "/config/mine.npy"\n', 1, 9, "/config/mine.npy"),
    ],
    ids=["cpu", "auto", "fixed", "named"],
)
def test_experts_of_the_rig(text: str, cards: int, every: int, profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernel_cache.VARIABLE, "/kernels")
    plan = plan_of(text, cards=cards)
    assert plan.adapt_every == every
    assert plan.profile.startswith(profile)
    assert bool(plan.profile) == bool(cards)


def test_a_profile_lies_beside_the_kernels_and_names_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another model with the same folder has another file; its name holds no path."""
    monkeypatch.setenv(kernel_cache.VARIABLE, "/kernels")
    path = Path(plan_of("", cards=1).profile)
    assert path.parent == Path("/kernels")
    assert path.name.removesuffix(".npy").replace("-", "").isalnum()
