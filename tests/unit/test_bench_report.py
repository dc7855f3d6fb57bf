"""The tables of `strata bench`: every number under its word, and what is not there as a dash."""

from __future__ import annotations

import pytest

from appliance.bench.clients import ClientsTime, PromptTime
from appliance.bench.kernels import KernelTime
from appliance.bench.report import CLIENT_HEAD, WINDOW_HEAD, client_line, kernel_lines, prompt_line, window_line
from appliance.bench.rig_bench import Line
from appliance.bench.windows import WindowTime

TIME = ClientsTime(
    clients=4,
    draft_max=4,
    tokens_per_s=250.0,
    windows=40,
    rows=16.5,
    window_s=0.02,
    host_s=0.0,
    draft_s=0.0,
    accepted=(0.9, 0.75),
    first_token_s=0.125,
    same=3,
    host_gap_p99_s=None,
)


@pytest.mark.parametrize(
    ("hits", "one", "wanted"),
    [
        (0.925, 100.0, "4 4 250 2.50 20.00 16.5 125 1.500 75 10.000 50% 92.5% 3 of 4 0.90 0.75"),
        (None, None, "4 4 250 - 20.00 16.5 125 1.500 75 10.000 50% - 3 of 4 0.90 0.75"),
    ],
    ids=["a card", "the CPU"],
)
def test_clients(hits: float | None, one: float | None, wanted: str) -> None:
    line = client_line(Line(time=TIME, gigabytes=1.5, limit_s=0.01, hit_share=hits), one=one)
    assert line.split() == wanted.split()
    # The word "share" stands over the share, whatever the widths are.
    assert CLIENT_HEAD.index("share") + len("share") == line.index("50%") + len("50%")


def test_windows() -> None:
    line = window_line(
        WindowTime(
            rows=8,
            sequences=8,
            drafts=0,
            milliseconds=6.29,
            device_milliseconds=6.2,
            experts=74.9,
            gigabytes=16.73,
            limit_milliseconds=4.24,
            share=0.674,
            hit_share=1.0,
        )
    )
    assert line.split() == ["8", "8", "0", "6.290", "6.200", "1272", "74.9", "16.73", "2660", "4.240", "67%", "100.0%"]
    assert len(line) == len(WINDOW_HEAD)


def test_prompts_and_kernels() -> None:
    assert "4096 tok/s, first token 2.000 s" in prompt_line(PromptTime(tokens=8192, first_token_s=2.0))
    lines = list(kernel_lines([KernelTime(name="run_experts", launches=48.0, microseconds=600.0, share=0.6)]))
    assert lines[0] == "kernels: 1000 us a window"
    assert lines[2].split() == ["run_experts", "48.0", "600.0", "60.0%"]
