"""Owns the plan of a rig as it stands, so that a changed value is priced at once; "auto" is what is recommended."""

from __future__ import annotations

import dataclasses

from appliance.model.qwen4exp.spec import ModelSpec
from appliance.planning.advise import WANTED, kv_type, recommend, usable_cards, wish_for
from appliance.planning.plan import PlanView, view
from appliance.planning.sketch import Wish
from appliance.rig.cards import Card
from appliance.rig.load import LoadedRig
from appliance.rig.machine import Machine


def cards_of(loaded: LoadedRig, machine: Machine) -> tuple[Card, ...]:
    """The cards that the rig means, in stage order, as far as they are here; "auto": those that help."""
    devices = loaded.rig.cards.devices
    if devices == "cpu":
        return ()
    if devices == "auto":
        return usable_cards(machine)[0]
    by_name: dict[int | str, Card] = {}
    for card in machine.cards.cards:
        by_name |= {card.index: card, card.uuid: card}
    return tuple(by_name[name] for name in devices if name in by_name)


def wish_of(loaded: LoadedRig, machine: Machine, spec: ModelSpec) -> Wish:
    """What the rig asks for; stated values are kept as they are (CFG-19)."""
    rig = loaded.rig
    chosen = cards_of(loaded, machine)
    inner = dataclasses.replace(machine, cards=dataclasses.replace(machine.cards, cards=chosen))
    advice = recommend(inner, spec)
    parallel, tokens = WANTED[-1]
    base = advice.wish if advice and advice.wish else wish_for(machine, spec, parallel=parallel, tokens=tokens)
    max_tokens = base.max_tokens if rig.context.max_tokens == "auto" else rig.context.max_tokens
    kv = kv_type(max_tokens) if rig.context.kv == "auto" else rig.context.kv
    cache, reserve = rig.experts.cache, rig.cards.vram_reserve
    split = rig.cards.layer_split
    return Wish(
        parallel=base.parallel if rig.serving.parallel == "auto" else rig.serving.parallel,
        max_tokens=max_tokens,
        kv=kv,
        ngram_home=base.ngram_home if rig.ngram.home == "auto" else rig.ngram.home,
        draft=spec.has_draft and rig.serving.draft_max > 0,
        prompt_chunk=base.prompt_chunk if rig.serving.prompt_chunk == "auto" else rig.serving.prompt_chunk,
        reserve_bytes=max(reserve) if isinstance(reserve, tuple) else reserve,
        layer_split=base.layer_split if split == "auto" else split,
        cache_bytes=None if cache == "auto" else sum(cache) if isinstance(cache, tuple) else cache,
    )


def plan_rig(loaded: LoadedRig, machine: Machine, spec: ModelSpec, *, title: str = "") -> PlanView:
    """Bars, hits and speeds of the rig; recorded speeds where its [machine.bench] holds any.

    A layer_split that does not fit the number of cards is `judge`'s to refuse; here it reads as a refusal too.
    """
    cards = cards_of(loaded, machine)
    wish = wish_of(loaded, machine, spec)
    if wish.layer_split is not None and len(wish.layer_split) != len(cards) - 1:
        refusal = f"layer_split names {len(wish.layer_split)} boundaries for {len(cards)} cards"
        return PlanView(title=title, sketch=None, speed=None, source="", refusal=refusal)
    serving = loaded.rig.serving
    return view(
        machine,
        spec,
        cards,
        wish,
        title=title,
        draft_max=serving.draft_max,
        batch_mtp=serving.batch_mtp,
        bench=loaded.rig.machine.bench,
    )
