"""The command line of `strata bench`: what belongs together, and what cannot be; no torch."""

from __future__ import annotations

import argparse

import pytest

from appliance.bench.options import add_options, settle
from appliance.errors import UsageError


def parsed(text: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_options(parser)
    arguments = parser.parse_args(text.split())
    settle(arguments)
    return arguments


def test_defaults_of_a_rig() -> None:
    found = parsed("")
    assert (found.drafts, found.tokens, found.clients, found.prompts, found.record) == ("both", 128, None, None, False)


def test_defaults_of_a_synthetic_model() -> None:
    found = parsed("--synthetic real")
    assert (found.rows, found.context, found.hits, found.kv, found.drafts) == (
        [1, 2, 4, 8, 16],
        8192,
        1.0,
        "bf16",
        "off",
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("--rows 3", "--rows is for a synthetic model", id="rows of a rig"),
        pytest.param("--plain", "--plain is for a synthetic model", id="plain of a rig"),
        pytest.param("--routing x", "--routing is for a synthetic model", id="routing of a rig"),
        pytest.param("--synthetic real --clients 2", "--clients is for a rig's model", id="clients of a synthetic one"),
        pytest.param("--synthetic real --record", "--record is for a rig's model", id="nothing to record"),
        pytest.param("--synthetic real --model x", "--model is for a rig's model", id="a file and a shape"),
        pytest.param("--synthetic real --rows 41", "--rows 41: windows have 1 to 40 rows", id="one row too many"),
        pytest.param("--synthetic real --rows 0 4", "--rows 0 4", id="no row"),
        pytest.param("--synthetic real --hits 1.01", "a share is from 0 to 1", id="more than all"),
        pytest.param("--synthetic real --hits nan", "a share is from 0 to 1", id="no number"),
        pytest.param("--clients 0", "clients are 1 to 64", id="no client"),
        pytest.param("--tokens 7", "answers have 8 to 4,096 tokens", id="one token too few"),
        pytest.param("--prompts 1", "prompts have 2 to", id="no prompt"),
        pytest.param("--record --set a.b=1", "as it is written", id="a record of another rig"),
        pytest.param("--record --model x", "as it is written", id="a record of another model"),
    ],
)
def test_refusals(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parsed(text)


@pytest.mark.parametrize("text", ["--synthetic real --rows 40 --hits 0", "--clients 64 --tokens 8 --prompts 2"])
def test_edges_are_allowed(text: str) -> None:
    assert parsed(text).json is False
