"""Owns a wish: what a plan is asked for, as the rig that would ask for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.rig.card_schema import CardsTable, ExpertsTable
from appliance.rig.cards import Card
from appliance.rig.schema import ContextTable, NgramTable, Rig, ServingTable

DRAFTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a plan is asked for; see the keys of rig.toml."""

    parallel: int
    max_tokens: int
    kv: str
    ngram_home: str
    draft: bool
    reserve_bytes: int
    layer_split: tuple[int, ...] | None = None
    cache_bytes: int | None = None

    def rig(self, cards: Sequence[Card] | None = None) -> Rig:
        """The rig that states it.

        Args:
            cards: in stage order; None leaves them to the placement.
        """
        return Rig.model_construct(
            cards=CardsTable.model_construct(
                devices="auto" if cards is None else tuple(card.uuid for card in cards),
                layer_split="auto" if self.layer_split is None else self.layer_split,
                vram_reserve=self.reserve_bytes,
            ),
            experts=ExpertsTable.model_construct(cache="auto" if self.cache_bytes is None else self.cache_bytes),
            context=ContextTable.model_construct(max_tokens=self.max_tokens, kv=self.kv),
            ngram=NgramTable.model_construct(home=self.ngram_home),
            serving=ServingTable.model_construct(parallel=self.parallel, draft_max=DRAFTS if self.draft else 0),
        )
