"""Histograms of routing: written and read, refused, and made again by a router of random weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from appliance.bench.routing import MOST_SHARE, Histogram, capped, read, scales, write
from appliance.errors import UsageError

EXPERTS, USED, HIDDEN = 64, 4, 256


def histogram(spread: float) -> Histogram:
    """Log-normal counts of two layers."""
    random = np.random.default_rng(4)
    layers = tuple(tuple(int(n) + 1 for n in np.exp(random.normal(0, spread, EXPERTS)) * 1000) for _ in range(2))
    return Histogram(model="m", used=USED, layers=layers)


def test_written_and_read(tmp_path: Path) -> None:
    found = histogram(1.0)
    write(tmp_path / "routing.json", found)
    assert read(tmp_path / "routing.json", experts=EXPERTS) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("", "no JSON", id="empty"),
        pytest.param("[1]", 'no "routing": 1', id="another object"),
        pytest.param('{"routing": 2}', 'no "routing": 1', id="another version"),
        pytest.param('{"routing": 1, "used": 4, "layers": []}', "rows of whole numbers", id="no layers"),
        pytest.param('{"routing": 1, "used": 4, "layers": [[1, 2.5]]}', "rows of whole numbers", id="a fraction"),
        pytest.param('{"routing": 1, "used": 4, "layers": [[1, -2]]}', "rows of whole numbers", id="below zero"),
        pytest.param('{"routing": 1, "used": 4, "layers": [[1, 2]]}', "64 experts", id="another model's"),
        pytest.param('{"routing": 1, "used": 65, "layers": [[1]]}', "whole numbers", id="more used than there are"),
        pytest.param(json.dumps({"routing": 1, "used": 4, "layers": [[0] * 64]}), "some rows", id="nothing counted"),
    ],
)
def test_refused_files(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "routing.json").write_text(text)
    with pytest.raises(UsageError, match=words):
        read(tmp_path / "routing.json", experts=EXPERTS)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent.json: no such file"):
        read(tmp_path / "absent.json", experts=EXPERTS)


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0])
def test_a_scaled_router_chooses_by_the_histogram(spread: float) -> None:
    """The most used quarter of the experts gets its share of the choices, and windows touch as many experts."""
    wanted = histogram(spread)
    shares = wanted.shares(0)
    generator = torch.Generator().manual_seed(2)
    router = torch.randn(EXPERTS, HIDDEN, generator=generator) * HIDDEN**-0.5 * scales(shares).unsqueeze(1)
    ids = (torch.randn(2000, HIDDEN, generator=generator) @ router.T).topk(USED, 1).indices
    counts = torch.bincount(ids.flatten(), minlength=EXPERTS).numpy() / 2000
    quarter = EXPERTS // 4
    assert abs(counts[:quarter].sum() - shares[:quarter].sum()) / USED < 0.03
    distinct = np.mean([len(set(some.flatten().tolist())) for some in ids.split(8)])
    assert distinct == pytest.approx(Histogram(model="", used=USED, layers=wanted.layers[:1]).distinct(8), rel=0.03)


def test_what_cannot_be_made_is_said() -> None:
    one = Histogram(model="", used=USED, layers=((1000, *([1] * (EXPERTS - 1))),))
    assert capped(one, [0])
    assert not capped(histogram(0.5), [0, 1])
    assert bool(torch.isfinite(scales(one.shares(0))).all())
    assert MOST_SHARE < 0.5
