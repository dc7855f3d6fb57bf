"""How long prompts are cut for several stages."""

from __future__ import annotations

import math

import pytest

from appliance.scheduler.stages import FIXED_ROWS, pipelined_rows


@pytest.mark.parametrize(
    ("tokens", "stages", "rows"),
    [
        pytest.param(8192, 1, 8192, id="one stage reads it whole"),
        pytest.param(8192, 2, 4096, id="two stages, two chunks"),
        pytest.param(32768, 2, 8192, id="two stages, four chunks"),
        pytest.param(8192, 4, 2731, id="more stages, shorter chunks"),
        pytest.param(600, 2, 600, id="too short to cut"),
        pytest.param(1, 4, 1, id="one token"),
    ],
)
def test_chunks_of_equal_length(tokens: int, stages: int, rows: int) -> None:
    assert pipelined_rows(tokens, stages=stages) == rows


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("tokens", [500, 3000, 8192, 20000, 131072])
def test_no_other_number_of_chunks_is_much_sooner(tokens: int, stages: int) -> None:
    def end(rows: int) -> float:
        return (math.ceil(tokens / rows) + stages - 1) * (FIXED_ROWS + rows)

    best = min(end(math.ceil(tokens / count)) for count in range(1, 200))
    assert end(pipelined_rows(tokens, stages=stages)) <= 1.05 * best
