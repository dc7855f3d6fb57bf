"""Owns the neighbours of a recommendation, each with what it costs, and a plan as keys of rig.toml."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from appliance.model.qwen4exp.spec import ModelSpec
from appliance.planning.advise import Advice, kv_type, usable_cards
from appliance.planning.plan import PlanView, difference, view
from appliance.planning.wish import Wish
from appliance.rig.machine import Machine
from appliance.rig.schema import BUILTIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another choice; a slower one is kept and said so, one that cannot fit is refused with the numbers."""

    title: str
    wish: Wish
    plan: PlanView
    says: str


def alternatives(machine: Machine, spec: ModelSpec, advice: Advice) -> tuple[Alternative, ...]:
    """Neighbouring choices with what each costs against the recommendation."""
    if advice.wish is None or advice.plan is None:
        return ()
    base, found = advice.wish, []
    for title, wish in _neighbours(spec, base):
        plan = view(machine, spec, advice.cards, wish, title=title)
        found.append(Alternative(title=title, wish=wish, plan=plan, says=f"{title}: {difference(advice.plan, plan)}"))
    if len(advice.cards) > 1:
        first = max(advice.cards, key=lambda card: card.free_bytes or 0)
        alone = dataclasses.replace(base, layer_split=None)
        plan = view(machine, spec, [first], alone, title="one card")
        found.append(
            Alternative(title="one card", wish=alone, plan=plan, says=f"one card: {difference(advice.plan, plan)}")
        )
    return tuple(found)


def _neighbours(spec: ModelSpec, base: Wish) -> Sequence[tuple[str, Wish]]:
    found = []
    for parallel in (1, 2, 4, 8):
        if parallel != base.parallel:
            found.append((f"parallel {parallel}", dataclasses.replace(base, parallel=parallel)))
    for tokens in (8192, 32768, 65536, 131072, 262144):
        if tokens != base.max_tokens and tokens <= spec.context_tokens:
            wish = dataclasses.replace(base, max_tokens=tokens, kv=kv_type(tokens))
            found.append((f"context {tokens:,}", wish))
    other = "bf16" if base.kv == "int8" else "int8"
    found.append((f"kv {other}", dataclasses.replace(base, kv=other)))
    home = "vram" if base.ngram_home == "ram" else "ram"
    found.append((f"n-gram table {home}", dataclasses.replace(base, ngram_home=home)))
    if base.draft:
        found.append(("no drafts", dataclasses.replace(base, draft=False)))
    return found


def rig_values(advice: Advice, machine: Machine, model_path: str) -> dict[str, dict[str, Any]]:
    """The recommendation as tables of rig.toml: cards by UUID, which stays true when their numbers change.

    The split is left to every start, which balances what is free then.
    """
    if advice.wish is None or advice.plan is None or advice.plan.placement is None:
        usable, left = usable_cards(machine)
        return {"model": {"path": BUILTIN}, "cards": {"devices": "cpu" if left and not usable else "auto"}}
    wish = advice.wish
    cards: dict[str, Any] = {"devices": [card.uuid for card in advice.cards]}
    return {
        "model": {"path": model_path},
        "cards": cards,
        "context": {"max_tokens": wish.max_tokens, "kv": wish.kv},
        "ngram": {"home": wish.ngram_home},
        "serving": {"parallel": wish.parallel},
    }
