"""What `strata bench --record` writes: the right numbers, into the rig, beside whatever a hand wrote there."""

from __future__ import annotations

import pytest

from appliance.bench.clients import ClientsTime, PromptTime
from appliance.bench.record import bench_values, with_bench
from appliance.bench.rig_bench import Line, RigFound
from appliance.errors import UsageError
from appliance.planning.measured import Subject
from appliance.rig.load import load_text

SUBJECT = Subject(model="m, 1 bytes", machine="2 cores", settings="abc")


def line(clients: int, rate: float, *, draft_max: int = 4, accepted: tuple[float, ...] = (0.8, 0.5)) -> Line:
    time = ClientsTime(
        clients=clients,
        draft_max=draft_max,
        tokens_per_s=rate,
        windows=10,
        rows=2.0,
        window_s=0.01,
        host_s=0.0,
        draft_s=0.0,
        accepted=accepted,
        first_token_s=0.1,
        same=clients,
        host_gap_p99_s=None,
    )
    return Line(time=time, gigabytes=1.0, limit_s=0.005, hit_share=0.9 if draft_max else 0.95)


def found(*lines: Line, prompts: tuple[PromptTime, ...] = ()) -> RigFound:
    return RigFound(gbps=100.0, lines=list(lines), prompts=list(prompts))


def test_the_round_with_drafts_is_kept() -> None:
    run = found(
        line(1, 61.04),
        line(2, 98.0),
        line(1, 30.0, draft_max=0, accepted=()),
        prompts=(
            PromptTime(tokens=512, first_token_s=1.0),
            PromptTime(tokens=8192, first_token_s=4.0),
            PromptTime(tokens=32768, first_token_s=32.0),
        ),
    )
    assert bench_values(run, SUBJECT, today="2026-09-01") == {
        "measured_on": "2026-09-01",
        "model": "m, 1 bytes",
        "machine": "2 cores",
        "settings": "abc",
        "users_1": 61.0,
        "users_2": 98.0,
        "prompt": 2048.0,
        "hit_share": 0.9,
        "acceptance": 0.8,
    }


def test_without_drafts_there_is_no_acceptance() -> None:
    values = bench_values(found(line(1, 30.0, draft_max=0, accepted=())), SUBJECT, today="2026-09-01")
    assert "acceptance" not in values
    assert "prompt" not in values


def test_one_client_is_needed() -> None:
    with pytest.raises(UsageError, match="--clients 1"):
        bench_values(found(line(2, 98.0)), SUBJECT, today="2026-09-01")


VALUES = {"users_1": 61.0, "machine": "2 cores"}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("schema = 1\n", id="no machine"),
        pytest.param("schema = 1\n[machine]\nram_gbps = 20.0\n", id="a machine"),
        pytest.param('schema = 1\n[machine]\n[[machine.card]]\nname = "x" # mine\n', id="behind cards"),
        pytest.param(
            "schema = 1\n[machine.bench]\nusers_8 = 1.0\n[serving] # mine\nparallel = 2\n", id="an earlier one"
        ),
    ],
)
def test_numbers_replace_earlier_ones_and_nothing_else(text: str) -> None:
    written = with_bench(text, VALUES)
    bench = load_text(written).rig.machine.bench
    assert (bench.users_1, bench.users_8, bench.machine) == (61.0, None, "2 cores")
    assert ("# mine" in written) == ("# mine" in text)
    assert load_text(written).rig.serving == load_text(text).rig.serving
    assert load_text(written).rig.machine.card == load_text(text).rig.machine.card
    assert with_bench(written, VALUES) == written
