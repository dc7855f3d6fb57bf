"""Status, metrics, readiness, and that they stay quick (API-13)."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import subprocess
import sys

import httpx
import pytest

from appliance.engine.handle import DraftPlan, ExpertStatus, StageStatus, WindowCost
from appliance.server.backend import Readiness
from tests.builders.fake_engine import FakeEngine, endless, hold
from tests.builders.live_server import FakeBackend, ids, live
from tests.server.asking import USER, Chat

KEYS = {
    "ready",
    "model",
    "rig",
    "stages",
    "slots",
    "queue",
    "cache",
    "timings",
    "drafts",
    "drafting",
    "requests_finished",
    "nonfinite_rows",
    "sampling",
    "versions",
    "last_fault",
}
METRICS = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:e2e_request_latency_seconds_bucket",
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    "strata:ready",
    "strata:nonfinite_rows_total",
]


def test_status_is_one_object():
    chat = Chat(slots=2)
    with chat.client() as client:
        client.post("/v1/chat/completions", json={"messages": [USER]})
        status = client.get("/v1/status").json()
    assert set(status) == KEYS
    assert status["model"]["id"] == "strata-tiny"
    assert status["stages"] == []
    assert status["rig"] == {"path": "rig.toml", "settings": {"serving.draft_max": 4}}
    assert status["drafts"] == {"offered": [10, 6, 3, 1], "accepted": [8, 4, 1, 0]}
    assert [slot["drafts"]["offered"] for slot in status["slots"]] == [[2, 1], [2, 1]]
    assert status["queue"] == {"waiting": 0, "limit": 8, "oldest_wait_s": 0.0}
    assert {"python", "litestar"} <= set(status["versions"])
    assert status["requests_finished"] == {"stop": 1}


STAGES = tuple(
    StageStatus(
        device=f"cuda:{number}",
        first_layer=24 * number,
        past_layer=24 * number + 24,
        windows=400,
        busy_s=3.0,
        idle_s=1.0,
        handoff_s=0.02 * (number == 0),
        route="ram" if number == 0 else "",
    )
    for number in range(2)
)


def test_several_cards_show_milliseconds_idle_share_and_the_way_between_them():
    chat = Chat()
    chat.engine.stages = STAGES
    with chat.client() as client:
        first, last = client.get("/v1/status").json()["stages"]
        text = client.get("/metrics").text
    assert first == {
        "device": "cuda:0",
        "first_layer": 0,
        "past_layer": 24,
        "windows": 400,
        "window_ms": 7.5,
        "idle_share": 0.25,
        "handoff_ms": 0.05,
        "route": "ram",
    }
    assert (last["first_layer"], last["route"], last["handoff_ms"]) == (24, "", 0.0)
    card = 'model_name="strata-tiny",stage="0"'
    for line in (
        f'strata:stage_layers{{device="cuda:0",{card}}} 24.0',
        f'strata:stage_windows_total{{device="cuda:0",{card}}} 400.0',
        f'strata:stage_busy_seconds_total{{device="cuda:0",{card}}} 3.0',
        f'strata:stage_idle_seconds_total{{device="cuda:0",{card}}} 1.0',
        f'strata:stage_handoff_seconds_total{{device="cuda:0",{card}}} 0.02',
        'strata:stage_route{device="cuda:0",model_name="strata-tiny",route="ram",stage="0"} 1.0',
    ):
        assert line in text
    assert text.count("strata:stage_route{") == 1


def test_drafts_are_planned_in_the_open_spec_09():
    """SPEC-09: how many drafts whom, why, and what windows took."""
    chat = Chat()
    with chat.client() as client:
        assert client.get("/v1/status").json()["drafting"] == {"plans": [], "costs": []}
        chat.engine.plans = (
            DraftPlan(group=0, depths=(4, 1), rows=7, steps=4, tokens=4.5, window_s=0.008, why="because"),
        )
        chat.engine.costs = (WindowCost(groups=1, conversations=2, rows=7, steps=4, seconds=0.008, windows=8),)
        shown = client.get("/v1/status").json()["drafting"]
    assert shown["plans"] == [
        {"group": 0, "depths": [4, 1], "rows": 7, "steps": 4, "tokens": 4.5, "window_s": 0.008, "why": "because"}
    ]
    assert shown["costs"] == [{"groups": 1, "conversations": 2, "rows": 7, "steps": 4, "seconds": 0.008, "windows": 8}]


def test_the_host_gap_is_shown_where_there_is_one():
    chat = Chat()
    with chat.client() as client:
        assert client.get("/v1/status").json()["timings"]["host_gap_p99_s"] is None
        assert "strata:host_gap_seconds" not in client.get("/metrics").text
        chat.engine.gaps = (0.0001, 0.0002)
        assert client.get("/v1/status").json()["timings"]["host_gap_p99_s"] == 0.0002
        assert 'strata:host_gap_seconds{model_name="strata-tiny",quantile="0.99"} 0.0002' in client.get("/metrics").text


@pytest.mark.parametrize(
    ("experts", "shown", "lines"),
    [
        (None, None, []),
        (
            ExpertStatus(on_card=0.5, hits=None, swaps=0),
            {"on_card": 0.5, "hits": None, "swaps": 0},
            ["strata:experts_on_card_ratio", "strata:expert_swaps_total"],
        ),
        (
            ExpertStatus(on_card=0.25, hits=0.75, swaps=12),
            {"on_card": 0.25, "hits": 0.75, "swaps": 12},
            [
                'strata:experts_on_card_ratio{model_name="strata-tiny"} 0.25',
                'strata:expert_hit_ratio{model_name="strata-tiny"} 0.75',
                'strata:expert_swaps_total{model_name="strata-tiny"} 12.0',
            ],
        ),
    ],
    ids=["cpu", "before-the-first-look", "swapping"],
)
def test_experts_on_cards_show_hits_and_swaps(
    experts: ExpertStatus | None, shown: dict[str, float | None] | None, lines: list[str]
):
    chat = Chat()
    chat.engine.experts = experts
    with chat.client() as client:
        assert client.get("/v1/status").json()["cache"]["experts"] == shown
        text = client.get("/metrics").text
    assert all(line in text for line in lines)
    assert text.count("# HELP strata:expert") == len(lines)


def test_a_card_that_did_nothing_yet_has_no_share():
    chat = Chat()
    chat.engine.stages = (dataclasses.replace(STAGES[0], windows=0, busy_s=0.0, idle_s=0.0, handoff_s=0.0),)
    with chat.client() as client:
        (only,) = client.get("/v1/status").json()["stages"]
    assert (only["window_ms"], only["idle_share"], only["handoff_ms"]) == (0.0, 0.0, 0.0)


def test_metrics_have_vllms_names():
    chat = Chat()
    with chat.client() as client:
        client.post("/v1/chat/completions", json={"messages": [USER]})
        answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    names = {line.partition("{")[0].partition(" ")[0] for line in answer.text.splitlines() if not line.startswith("#")}
    assert set(METRICS) <= names
    assert 'vllm:time_to_first_token_seconds_count{model_name="strata-tiny"} 1.0' in answer.text
    assert (
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="strata-tiny",position="1"} 4.0' in answer.text
    )
    assert 'finished_reason="stop"' in answer.text


def test_metrics_before_there_is_an_engine():
    backend = FakeBackend(FakeEngine(hold()), loaded=False)
    backend.state = Readiness(stage="loading", percent=3, ready=False, device="cpu")
    with Chat(engine=backend.fake, backend=backend).client() as client:
        assert "strata:ready 0.0" in client.get("/metrics").text


def test_two_applications_do_not_share_metrics():
    first, second = Chat(), Chat()
    first.ask()
    with second.client() as client:
        assert "vllm:time_to_first_token_seconds_count" not in client.get("/metrics").text


def test_api_13_status_answers_while_a_long_prompt_is_tokenised_and_others_decode():
    """API-13: 1.5 MB of text. The answer's header follows the tokenising, so pages that come before were not held."""
    text = "The quick brown fox jumps over the lazy dog. " * 33_400
    with live(FakeEngine(endless(ids(" a")[0]), max_tokens=500_000), body_limit_bytes=4_000_000) as server:

        async def main():
            rounds = 0
            async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
                body = {"messages": [{"role": "user", "content": text}], "stream": True, "max_tokens": 400}
                asked = client.build_request("POST", "/v1/chat/completions", json=body)
                header = asyncio.create_task(client.send(asked, stream=True))
                short = asyncio.create_task(
                    client.post("/v1/chat/completions", json={"messages": [USER], "stream": True, "max_tokens": 400})
                )
                for path in itertools.cycle(("/health", "/v1/status", "/v1/models")):
                    assert (await client.get(path)).status_code == 200
                    if header.done():
                        break
                    rounds += 1
                long = await header
                return rounds, (await long.aread()).decode(), await short

        rounds, long, short = asyncio.run(main())
    assert "[DONE]" in long
    assert "[DONE]" in short.text
    assert rounds >= 3


def test_the_server_never_loads_torch():
    modules = "appliance.server.app, appliance.server.serve, appliance.server.auth"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
