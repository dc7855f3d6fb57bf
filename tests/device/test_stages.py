"""SPLIT-08 and groups: stages with windows of several groups on their way give the tokens of one stage, to the bit."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from appliance.errors import EngineFault
from appliance.model.interface import Ask
from appliance.model.qwen4exp.device.handoff import PEER, RAM, Border, copy_async, proves
from appliance.model.qwen4exp.device.model import DeviceModel
from appliance.model.window import Span, Window
from tests.device.conversations import Conversation, collect, decode, submit
from tests.device.models import ON_CARD, load, open_slot

# Rows in the interpreter cost seconds each.
PROMPTS = ((3, 8, 1), (5, 9), (2,), (7, 7, 4, 1, 2)) if ON_CARD else ((3,), (5,))
ROUNDS = 12 if ON_CARD else 2
DRAFTS = (3, 2, 0, 1) if ON_CARD else (1, 0)
SPLITS = [((1,), 1), ((2,), 2), ((3,), 2), ((1, 3), 3), ((1, 2, 3), 4)] if ON_CARD else [((1, 3), 2)]


@cache
def staged(split: tuple[int, ...], groups: int, *, plain: bool = True) -> DeviceModel:
    return load("base4", slots=len(PROMPTS), layer_split=split, groups=groups, plain=plain)


def conversations() -> list[Conversation]:
    return [
        Conversation(slot, prompt, drafts) for slot, (prompt, drafts) in enumerate(zip(PROMPTS, DRAFTS, strict=True))
    ]


@cache
def alone() -> list[Conversation]:
    """One stage, launch by launch, one conversation after the other."""
    model, found = staged((), 1), conversations()
    for one in found:
        decode(model, [[one]], ROUNDS)
    return found


@pytest.mark.parametrize(
    "plain", [True, False] if ON_CARD else [True], ids=lambda plain: "plain" if plain else "graphs"
)
@pytest.mark.parametrize(("split", "groups"), SPLITS, ids=str)
def test_groups_in_flight_give_the_bits_of_one_stage(split: tuple[int, ...], groups: int, plain: bool) -> None:
    model, found = staged(split, groups, plain=plain), conversations()
    decode(model, [found[number::groups] for number in range(groups)], ROUNDS)
    assert found == alone()
    counts = [stage.windows for stage in model.stages]
    assert counts == [ROUNDS * groups] * (len(split) + 1)
    assert [(stage.first_layer, stage.past_layer) for stage in model.stages] == list(
        zip((0, *split), (*split, model.spec.trunk_layers), strict=True)
    )


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs a CUDA card, and a second one")
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("devices", [("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")], ids=str)
def test_two_cards_give_the_bits_of_one(devices: tuple[str, ...], groups: int) -> None:
    model = load(
        "base4", slots=len(PROMPTS), layer_split=(2,), devices=devices, groups=groups, plain=False, ngram_home="vram"
    )
    found = conversations()
    decode(model, [found[number::groups] for number in range(groups)], ROUNDS)
    assert found == alone()
    assert [stage.device for stage in model.stages] == list(devices)


@pytest.mark.skipif(not ON_CARD, reason="needs a CUDA card")
@pytest.mark.parametrize("plain", [True, False], ids=["plain", "graphs"])
def test_nothing_waits_but_collect(plain: bool) -> None:
    """Conversations join and windows are sent while others are on their way; torch's own alarm is on meanwhile."""
    model, first = staged((1, 3), 3, plain=plain), conversations()
    decode(model, [first[number::3] for number in range(3)], ROUNDS)  # captures what is needed
    found, flying = conversations(), []
    groups = [found[number::3] for number in range(3)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for group, some in enumerate(groups):
            for one in some:
                open_slot(model, one.slot)
            flying.append(submit(model, some, lane=group))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for some, ticket in zip(groups, flying, strict=True):
        collect(model, some, ticket)
    assert [one.tokens[0] for one in found] == [one.tokens[0] for one in alone()]


def test_a_prompt_is_read_ahead_of_its_windows() -> None:
    """Windows that draw nothing count at once: the prompt's next one follows before the first is back."""
    model, (ids, found) = staged(*SPLITS[-1]), ((3, 8, 1), [])
    open_slot(model, 1)
    tickets = [
        model.submit(
            Window((Span(slot=1, start=at, tokens=(token,)),)),
            [Ask(next_token=ids[at + 1]) if at < 2 else Ask()],
            lane=lane,
        )
        for at, (token, lane) in enumerate(zip(ids, (model.plan.groups, model.plan.groups + 1, 0), strict=True))
    ]
    for ticket in tickets:
        found.append(model.collect(ticket)[0])
    assert [one.kept for one in found] == [1, 1, 1]
    assert [len(one.tokens) for one in found] == [0, 0, 1]
    assert model.length(1) == len(ids)
    whole = staged((), 1)
    open_slot(whole, 1)
    assert whole.step(Window((Span(slot=1, start=0, tokens=ids),)), [Ask()])[0].tokens == found[-1].tokens


@pytest.mark.parametrize("devices", [()] if torch.cuda.device_count() < 2 else [(), ("cuda:1", "cuda:0")], ids=str)
def test_chunks_on_every_stage_leave_what_one_stage_leaves(devices: tuple[str, ...]) -> None:
    """A long prompt's chunks follow each other through the stages before the first is back; then windows go on."""
    size = 40 if ON_CARD else 14
    ids = tuple((7 * place + 3) % 256 for place in range(2 * size))
    found = []
    for split, groups in (((), 1), ((2,), 2)):
        plan = {"devices": devices if split else (), "layer_split": split, "groups": groups, "chunk_rows": size}
        plan["draft_max"] = DRAFTS[0] if ON_CARD else 0
        model = load("base4", tokens=2 * size + 20, **plan)
        open_slot(model, 1)
        lanes = (groups, groups + 1) if split else (0, 0)
        tickets, stepped = [], []
        for at, lane, ask in zip((0, size), lanes, (Ask(next_token=ids[size]), Ask(draft_max=2)), strict=True):
            span = Span(slot=1, start=at, tokens=ids[at : at + size], logits_from=size - (ask.next_token is None))
            tickets.append(model.submit(Window((span,)), [ask], lane=lane))
            if not split:
                stepped += model.collect(tickets.pop())
        for ticket in tickets:
            stepped += model.collect(ticket)
        going = Conversation(1, ids, 2, tokens=list(stepped[-1].tokens), offered=stepped[-1].drafts)
        collect(model, [going], submit(model, [going], lane=0))
        found.append((stepped, going))
        model.close()
    assert found[0] == found[1]
    assert [one.kept for one in found[0][0]] == [size, size]


def test_one_stage_has_no_stages_to_tell_of() -> None:
    assert staged((), 1).stages == ()


def test_a_lane_has_one_window_on_its_way() -> None:
    model = staged(*SPLITS[-1])
    for slot in (0, 1):
        open_slot(model, slot)
    windows = [Window((Span(slot=slot, start=0, tokens=(3,)),)) for slot in (0, 1)]
    ticket = model.submit(windows[0], [Ask()])
    for lane in (0, model.plan.groups + model.reads, -1):
        with pytest.raises(EngineFault, match=f"lane {lane} of"):
            model.submit(windows[1], [Ask()], lane=lane)
    assert model.collect(ticket)[0].kept == 1


@pytest.mark.parametrize(
    ("copy", "route"),
    [
        pytest.param(copy_async, PEER, id="right"),
        pytest.param(lambda target, source: target.zero_(), RAM, id="zeros"),
        pytest.param(lambda target, source: None, RAM, id="nothing arrives"),
        pytest.param(lambda target, source: target[:, :-1].copy_(source[:, :-1]), RAM, id="the end is missing"),
    ],
)
@torch.inference_mode()
def test_a_copy_that_lies_is_not_used_split_01(copy: object, route: str, caplog: pytest.LogCaptureFixture) -> None:
    model = staged(*SPLITS[-1])
    before, after = model.parts.stages[:2]
    border = Border(before, after, lanes=2, copy=copy)  # type: ignore[arg-type]
    assert border.route == route
    assert ("event=peer_copy_wrong" in caplog.text) == (route == RAM)
    sent, landed = (stage.bucket(2)[1].buffers.x for stage in (before, after))
    for group in (1, 0):
        with before.on():
            sent.copy_(torch.randn(sent.shape, generator=torch.Generator().manual_seed(group)))
            border.send(2, group)
        with after.on():
            border.await_landing(group)
            landed.fill_(float("nan"))
            border.receive(2, group)
            assert torch.equal(landed.cpu(), sent.cpu())
            carried = border.carry(sent)
            assert torch.equal(carried.cpu(), sent.cpu())
            assert (carried is sent) == (route == PEER)


def test_a_copy_that_lies_once_is_found() -> None:
    """SPLIT-01: a copy between cards that brings old bytes is found at start, so the border goes through RAM."""
    calls = []

    def second_is_stale(target: torch.Tensor, source: torch.Tensor) -> None:
        calls.append(source)
        target.copy_(calls[0] if len(calls) == 2 else source)

    assert not proves(second_is_stale, torch.zeros(2, 40), source=torch.device("cpu"))
