"""Ranges for Nsight Systems: named around what is launched when the plan asks, and otherwise not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from appliance.model.qwen4exp.device.ranges import Ranges


@pytest.mark.parametrize(("on", "seen"), [(True, ["window", "stage"]), (False, [])])
def test_ranges_are_named_only_when_on(monkeypatch: pytest.MonkeyPatch, on: bool, seen: list[str]) -> None:
    found: list[str] = []

    @contextmanager
    def named(name: str) -> Iterator[None]:
        found.append(name)
        yield

    monkeypatch.setattr(torch.cuda.nvtx, "range", named)
    ranges = Ranges(on=on)
    with ranges("window"), ranges("stage"):
        assert found == seen
