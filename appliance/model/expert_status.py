"""How the routed experts lie, and how often they were where they were wanted; torch-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpertStatus:
    """Of all stages together; totals since start.

    Attributes:
        on_card: share of the experts that the cards hold.
        hits: share of the routed rows whose expert was on its card; None before the first look at the routing.
        swaps: exchanges of an expert on a card for one in RAM.
    """

    on_card: float
    hits: float | None
    swaps: int
