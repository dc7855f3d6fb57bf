"""Windows sent before the last one is back, of rows that only the device knows: the tokens and drafts of the others."""

from __future__ import annotations

import pytest

from appliance.model.interface import Ask, Stepped
from appliance.model.qwen4exp.device.model import DeviceModel
from appliance.model.window import Span, Window
from tests.device.decoding import decode
from tests.device.models import ON_CARD, load, open_slot

PROMPTS = ((1, 5, 9, 3), (3, 9, 5, 1, 2)) if ON_CARD else ((1, 5), (3, 9, 5))
WINDOWS = 9 if ON_CARD else 3
DRAFTS = 3 if ON_CARD else 1


def told(model: DeviceModel) -> list[tuple[Stepped, ...]]:
    """What became of windows of which the host knew everything, the prompts first."""
    found: list[tuple[Stepped, ...]] = []

    def step(window: Window, asks: object) -> tuple[Stepped, ...]:
        found.append(model.step(window, asks))  # type: ignore[arg-type]
        return found[-1]

    for window in decode(model, PROMPTS, draft_max=DRAFTS):
        window(step)
        if len(found) == WINDOWS:
            break
    return found


def ahead(model: DeviceModel) -> list[tuple[Stepped, ...]]:
    """The same, each window sent while the one before is on its way."""
    for slot in range(len(PROMPTS)):
        open_slot(model, slot)
    asks = [Ask(draft_max=DRAFTS)] * len(PROMPTS)
    first = [Span(slot=slot, start=0, tokens=prompt) for slot, prompt in enumerate(PROMPTS)]
    # The very same window again and again: from its second time on a lane on, it is sent as it was packed.
    later = Window(tuple(Span(slot=slot, start=-1, tokens=(), draft_count=DRAFTS) for slot in range(len(PROMPTS))))
    tickets = [model.submit(Window(tuple(first)), asks, lane=0)]
    found: list[tuple[Stepped, ...]] = []
    for number in range(1, WINDOWS):
        tickets.append(model.submit(later, asks, lane=number % 2))
        found.append(model.collect(tickets.pop(0)))
    return [*found, model.collect(tickets.pop())]


@pytest.mark.parametrize("exact", [True, False] if ON_CARD else [True], ids=str)
def test_nothing_differs(exact: bool) -> None:
    model = load("base4", plain=False, exact=exact)
    assert model.ahead
    want = told(model)
    lengths = [model.length(slot) for slot in range(len(PROMPTS))]
    assert ahead(model) == want
    assert [model.length(slot) for slot in range(len(PROMPTS))] == lengths


def test_a_prompt_goes_on_beside_one_that_decodes() -> None:
    """Rows that the host knows and rows that it does not, in one window; then the prompt's last, which draws."""
    model = load("base4", plain=False)
    alone = told(model)
    for slot in range(2):
        open_slot(model, slot)
    ask, prompt = Ask(draft_max=DRAFTS), PROMPTS[1]
    unknown = Span(slot=0, start=-1, tokens=(), draft_count=DRAFTS)
    tickets = [model.submit(Window((Span(slot=0, start=0, tokens=PROMPTS[0]),)), [ask], lane=0)]
    part = Span(slot=1, start=0, tokens=prompt[:2], logits_from=2)
    tickets.append(model.submit(Window((unknown, part)), [ask, Ask(next_token=prompt[2])], lane=1))
    found = [model.collect(tickets[0])]
    rest = Span(slot=1, start=2, tokens=prompt[2:], logits_from=len(prompt) - 3)
    tickets.append(model.submit(Window((unknown, rest)), [ask, ask], lane=0))
    found += [model.collect(ticket) for ticket in tickets[1:]]
    assert [one[0] for one in found] == [one[0] for one in alone[:3]]
    assert found[1][1].tokens == ()
    assert found[2][1].tokens == alone[0][1].tokens
    assert found[2][1].drafts == alone[0][1].drafts
    assert model.length(1) == len(prompt)


@pytest.mark.parametrize(
    ("settings", "possible"),
    [({"plain": False}, True), ({"plain": True}, False), ({"plain": False, "ngram_home": "mmap"}, False)],
    ids=["as served", "launch by launch", "n-grams on storage"],
)
def test_where_it_is_possible(settings: dict[str, object], possible: bool) -> None:
    assert load("base4", **settings).ahead is possible
