"""Bytes of a window against sums that are done by hand from the shape."""

from __future__ import annotations

import pytest

from appliance.bench.bytes import (
    cpu_bytes_read,
    distinct_experts,
    draft_bytes_read,
    window_bytes_read,
)
from appliance.bench.synthetic import SyntheticShape, synthetic_spec
from appliance.model.qwen4exp.device_footprint import dense_bytes, expert_bytes, matrix_bytes
from appliance.model.qwen4exp.spec import ModelSpec

CONTEXT = 8192


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return synthetic_spec(SyntheticShape(layers=4), draft=True)


@pytest.mark.parametrize(("rows", "wanted"), [(1, 10.0), (2, 19.8046875), (512, 511.98)])
def test_uniform_routing(rows: int, wanted: float) -> None:
    assert distinct_experts(512, 10, rows) == pytest.approx(wanted, abs=0.02)


def window(spec: ModelSpec, **changes: int) -> int:
    sizes = {"context": CONTEXT, "rows": 1, "sequences": 1, **changes}
    return window_bytes_read(spec, kv_type="bf16", **sizes)


def test_a_window_reads_dense_weights_and_ten_experts_a_layer(spec: ModelSpec) -> None:
    """Besides: three linear layers' states twice, pooled keys of one full layer, 2,048 selected tokens of it."""
    embedding = spec.tensors["token_embd.weight"].byte_count
    states = 2 * 3 * 48 * 128**2 * 4
    pooled = CONTEXT // 4 * 128 * 2
    selected = 2048 * 2 * 2 * 256 * 2
    wanted = dense_bytes(spec, draft=False) - embedding + 10 * sum(expert_bytes(spec, draft=False).layers)
    assert window(spec) == pytest.approx(wanted + states + pooled + selected, abs=1)


def test_what_more_rows_and_more_sequences_cost(spec: ModelSpec) -> None:
    experts = sum(expert_bytes(spec, draft=False).layers)
    more = window(spec, rows=2) - window(spec)
    assert more == pytest.approx((distinct_experts(512, 10, 2) - 10) * experts + 2048 * 2 * 2 * 256 * 2, abs=1)
    assert window(spec, rows=2, sequences=2) - window(spec, rows=2) == 2 * 3 * 48 * 128**2 * 4 + CONTEXT // 4 * 256
    assert window(spec, context=4 * CONTEXT) - window(spec) == 3 * CONTEXT // 4 * 256


def test_every_draft_reads_the_head_and_the_layer_once_more(spec: ModelSpec) -> None:
    sizes = [
        draft_bytes_read(spec, context=CONTEXT, kv_type="bf16", rows=1, sequences=1, steps=steps) for steps in range(4)
    ]
    head = matrix_bytes(spec.tensors["output.weight"])
    assert sizes[1] - sizes[0] == head
    assert sizes[2] - sizes[1] == sizes[3] - sizes[2] == sizes[1]


def test_the_cpu_reads_a_share_of_its_weights(spec: ModelSpec) -> None:
    """Never the embedding, ten of 512 experts for one row, the head once more for each draft."""
    held = 10**9
    one, all_rows = (cpu_bytes_read(spec, weight_bytes=held, rows=n, sequences=1, steps=0) for n in (1, 10**6))
    assert 0 < one < all_rows < held
    drafting = cpu_bytes_read(spec, weight_bytes=held, rows=1, sequences=1, steps=1)
    assert drafting > one
