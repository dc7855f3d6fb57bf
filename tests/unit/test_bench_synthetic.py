"""What a synthetic bench says about itself, and refuses, before any card is touched."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from appliance.bench.options import add_options, settle
from appliance.bench.routing import Histogram, write
from appliance.bench.synthetic_bench import CHUNK_ROWS, asked_of, words
from appliance.bench.windows import Bench
from appliance.errors import UsageError


def asked(text: str) -> Bench:
    parser = argparse.ArgumentParser()
    add_options(parser)
    arguments = parser.parse_args(text.split())
    settle(arguments)
    return asked_of(arguments)


def test_uniform_routing_is_said() -> None:
    found = words(asked("--synthetic real:8"))
    assert "8 layers, 512 experts" in found
    assert "uniform routing" in found
    assert "no text has a meaning" in found


@pytest.mark.parametrize(("most", "said"), [(30, False), (500, True)], ids=["within reach", "cut off"])
def test_recorded_routing_is_said(tmp_path: Path, most: int, said: bool) -> None:
    write(tmp_path / "r.json", Histogram(model="Qwen4", used=10, layers=((most, *([10] * 511)),)))
    found = words(asked(f"--synthetic real --routing {tmp_path / 'r.json'}"))
    assert "routing as recorded of Qwen4, the experts used most on the card" in found
    assert ("no expert more often than in 45% of the rows" in found) == said


@pytest.mark.parametrize(
    ("prompts", "context", "chunk"),
    [("", 8192, 0), ("--prompts 512", 8192, 512), ("--prompts 32768", 32768, CHUNK_ROWS[0])],
)
def test_room_for_prompts(prompts: str, context: int, chunk: int) -> None:
    found = asked(f"--synthetic real {prompts}")
    assert (found.context, found.chunk_rows) == (context, chunk)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("--synthetic reel", "allowed are real"),
        ("--synthetic real:6", "a multiple of 4"),
        ("--synthetic real --drafts both", "--drafts both is for a rig's model"),
        ("--synthetic real --routing /absent.json", "/absent.json: no such file"),
    ],
)
def test_refusals(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        asked(text)
