"""Owns the rules that join several keys of a rig, before the machine or the model is known."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from urllib.parse import urlsplit

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


_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*")


def name_problems(rig: Rig, where: Callable[[str], str]) -> list[Problem]:
    """Refuses names that no client ever sends: they would be accepted and let nobody in."""
    rows = (
        ("allowed_hosts", rig.server.allowed_hosts, _is_host, "names alone, without *, scheme, port or path"),
        ("cors_origins", rig.server.cors_origins, _is_origin, "origins alone, such as https://chat.example:8443"),
    )
    return [
        Problem(where=where(f"server.{key}"), key=f"server.{key}", says=f'"{name}" matches no client', allowed=allowed)
        for key, names, fits, allowed in rows
        for name in names
        if not fits(name)
    ]


def _is_host(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return _HOST_NAME.fullmatch(name) is not None
    return True


def _is_origin(origin: str) -> bool:
    """Scheme, name and port as a browser writes them."""
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return False
    name = parts.hostname or ""
    shown = f"[{name}]" if ":" in name else name
    exact = f"{parts.scheme}://{shown}" + ("" if port is None else f":{port}")
    return _is_host(name) and origin.lower() == exact.lower()
