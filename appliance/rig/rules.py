"""Owns the rules that join several keys of a rig, before the machine or the model is known."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

from appliance.rig.problem import Problem
from appliance.rig.schema import Rig


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def security_problems(rig: Rig, where: Callable[[str], str]) -> list[Problem]:
    """Refuses to be reachable by others without keys, unless told so."""
    server = rig.server
    if is_loopback(server.host) or server.keys_file is not None or server.open:
        return []
    return [
        Problem(
            where=where("server.host"),
            key="server.host",
            says=f'"{server.host}" is reachable from other machines and there are no API keys',
            hint='set keys_file in [server] and run "strata keys add NAME", or set open = true to serve anyone',
        )
    ]
