"""Nothing waits for the card between a window's launch and its one wait: torch's own alarm is on in between."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch

from appliance.model.interface import Ask, Stepped
from appliance.model.window import Window
from tests.device.decoding import decode
from tests.device.models import ON_CARD, load

PROMPTS = ((1, 5, 9, 3), (3, 9, 5, 1))


@pytest.mark.skipif(not ON_CARD, reason="needs a CUDA card")
@pytest.mark.parametrize("plain", [False, True], ids=["graphs", "plain"])
def test_no_synchronisation_inside_a_window(plain: bool) -> None:
    model = load("base4", plain=plain, exact=False)
    waits = 0

    def silenced() -> None:
        """Called when everything is launched: what follows is the wait."""
        nonlocal waits
        waits += 1
        torch.cuda.set_sync_debug_mode("default")

    def guarded(window: Window, asks: Sequence[Ask]) -> tuple[Stepped, ...]:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return model.step(window, asks, meanwhile=silenced)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    # Windows of a new size are captured first, and a capture waits; so every size is met once before.
    for step in (model.step, guarded):
        for window in itertools.islice(decode(model, PROMPTS, draft_max=3), 5):
            window(step)
    assert waits >= 5


@pytest.mark.skipif(not ON_CARD, reason="needs a CUDA card")
def test_the_alarm_rings() -> None:
    """Else the test above could not fail."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchroniz"):
            torch.ones(3, device="cuda").sum().item()
    finally:
        torch.cuda.set_sync_debug_mode("default")
