"""Lets conversations decode on a device model as the engine does, window by window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from appliance.model.interface import Ask, Stepped
from appliance.model.qwen4exp.device.model import DeviceModel
from appliance.model.window import Span, Window
from tests.device.models import open_slot

Step = Callable[[Window, Sequence[Ask]], tuple[Stepped, ...]]


def decode(model: DeviceModel, prompts: Sequence[Sequence[int]], *, draft_max: int) -> Iterator[Callable[[Step], None]]:
    """Yields one window after the other, the prompts first; each is to be called once with what runs it.

    Args:
        model: with a slot for each prompt.
        prompts: short enough to be read in one window.
        draft_max: drafts to ask for.
    """
    for slot in range(len(prompts)):
        open_slot(model, slot)
    given = [(tuple(prompt), 0) for prompt in prompts]
    asks = [Ask(draft_max=draft_max)] * len(given)
    while True:
        spans = tuple(
            Span(slot=slot, start=model.length(slot), tokens=tokens, draft_count=drafts)
            for slot, (tokens, drafts) in enumerate(given)
        )
        found: list[Stepped] = []
        yield lambda step, spans=spans, found=found: found.extend(step(Window(spans), asks))  # type: ignore[misc]
        given = []
        for one, span in zip(found, spans, strict=True):
            accepted = one.kept - len(span.tokens) + span.draft_count
            given.append(((one.tokens[accepted], *one.drafts), len(one.drafts)))
