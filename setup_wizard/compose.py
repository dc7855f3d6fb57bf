"""Owns compose.override.yaml: what `docker compose` adds on this machine: cards, the rig's folder, the address."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.rig.cards import Card

HEAD = """# Written by strata-setup: hands these cards to the container. Delete it to run without cards.
# Needs Docker Compose 2.20 or newer and the NVIDIA container toolkit on the host.
"""
HOST_HEAD = """# Written by strata-setup for this machine; compose.yaml stays the only definition.
"""
# What the container listens on inside; the rig's own address is what the host publishes.
INSIDE_PORT = 8080


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a rig that lives on the host needs beside its cards.

    Attributes:
        rig: its folder becomes /config.
        models: folder of the model, read-only at the same path; None for the built-in one.
        host, port: where the host publishes the server.
        keyed: whether there is a keys file, so that the server need not be open.
        user: "uid:gid" who may read the rig's folder.
    """

    rig: Path
    models: Path | None
    host: str
    port: int
    keyed: bool
    user: str


def override(cards: Sequence[Card], host: Host | None = None) -> str:
    """The file's text: the cards by UUID, which stays true when their numbers change, never a count beside it.

    Args:
        cards: at least one, unless there is a host.
        host: where the rig is on the host itself; None inside the container.

    Raises:
        ValueError: there is neither.
    """
    if not cards and host is None:
        raise ValueError("an override reserves at least one card")
    text = (HEAD if cards else HOST_HEAD) + "services:\n  strata:\n"
    if host is not None:
        text += _host(host)
    if cards:
        text += _cards(cards)
    return text


def _cards(cards: Sequence[Card]) -> str:
    listed = "\n".join(f'                - "{card.uuid}" # {card.index}: {card.name}, {card.bus_id}' for card in cards)
    return f"""    deploy:
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


def _host(host: Host) -> str:
    """Compose merges volumes and environment by name; ports would be added, so they are replaced where they differ."""
    text = f'    user: "{host.user}"\n    environment:\n      STRATA_SERVER__HOST: "0.0.0.0"\n'
    text += f'      STRATA_SERVER__PORT: "{INSIDE_PORT}"\n'
    text += '      STRATA_RIG: "/config/' + host.rig.name + '"\n'
    if not host.keyed:
        text += '      STRATA_SERVER__OPEN: "true" # without keys; who reaches it is decided by the address below\n'
    if (host.host, host.port) != ("127.0.0.1", INSIDE_PORT):
        name = f"[{host.host}]" if ":" in host.host else host.host
        published = json.dumps(f"{name}:{host.port}:{INSIDE_PORT}")
        text += (
            f"    # Replacing a list needs Docker Compose 2.24.4 or newer.\n    ports: !override\n      - {published}\n"
        )
    text += f"    volumes:\n      - {json.dumps(f'{host.rig.parent}:/config')}\n"
    if host.models is not None:
        text += f"      - {json.dumps(f'{host.models}:{host.models}:ro')}\n"
    return text
