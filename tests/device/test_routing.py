"""What a run says of its routing: every row counted in every layer, and hits where the experts really are."""

from __future__ import annotations

from pathlib import Path

from appliance.bench import routing
from appliance.bench.routing import RoutingCounter
from tests.device.models import load, open_slot, window

TOKENS = (1, 5)


def test_rows_are_counted_and_hits_are_where_experts_are(tmp_path: Path) -> None:
    model = load("base4", draft_max=0, expert_pool_bytes=200_000)
    store = model.parts.stages[0].store
    assert store is not None
    assert 0 < store.hit_share < 1
    open_slot(model, 0)
    window(model, 0, TOKENS[:1], following=TOKENS[1])
    counter = RoutingCounter(model)
    assert counter.hit_share() is None
    assert counter.touched() == 0
    window(model, 0, TOKENS[1:], following=3)
    spec = model.spec
    found = counter.histogram()
    assert [sum(layer) for layer in found.layers] == [spec.experts_used] * spec.trunk_layers
    assert counter.touched() == spec.experts_used  # one row touches what it uses, in every layer
    hits = sum(
        count
        for layer, homes in zip(found.layers, store.homes, strict=True)
        for count, here in zip(layer, homes.resident, strict=True)
        if here
    )
    assert counter.hit_share() == hits / (spec.experts_used * spec.trunk_layers)
    routing.write(tmp_path / "routing.json", found)
    assert routing.read(tmp_path / "routing.json", experts=spec.experts) == found
    model.close()
