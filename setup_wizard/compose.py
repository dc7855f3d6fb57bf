"""Owns compose.override.yaml: what `docker compose` adds on a machine whose cards the container shall see."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.rig.cards import Card

HEAD = """# Written by strata-setup: hands these cards to the container. Delete it to run without cards.
# Needs Docker Compose 2.20 or newer and the NVIDIA container toolkit on the host.
"""


def override(cards: Sequence[Card]) -> str:
    """The file's text: the cards by UUID, which stays true when their numbers change, never a count beside it.

    Args:
        cards: at least one.

    Raises:
        ValueError: there is no card.
    """
    if not cards:
        raise ValueError("an override reserves at least one card")
    listed = "\n".join(f'                - "{card.uuid}" # {card.index}: {card.name}, {card.bus_id}' for card in cards)
    return f"""{HEAD}services:
  strata:
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              device_ids:
{listed}
              capabilities: [gpu]
    # Experts that no card holds are pinned in RAM.
    ulimits:
      memlock: -1
"""
