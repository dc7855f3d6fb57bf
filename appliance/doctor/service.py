"""Owns the checks of what is served: rig, model, address, keys."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.doctor.facts import Facts, Finding, Verdict, failed, passed
from appliance.errors import ExitCode
from appliance.rig.rules import is_loopback


def rig(facts: Facts) -> Iterator[Finding]:
    """The rig is valid."""
    if facts.rig_error is not None:
        yield failed("rig", facts.rig_error)
    elif facts.loaded is not None:
        yield passed("rig", f"{facts.loaded.path} is valid, schema {facts.loaded.rig.schema_}")


def model(facts: Facts) -> Iterator[Finding]:
    """The model is complete and fits (CFG-20)."""
    if facts.plan_error is not None:
        yield failed("plan", facts.plan_error)
        for found in facts.sets:
            if not found.complete:
                yield Finding(
                    check="model",
                    verdict=Verdict.FAIL,
                    says=found.sentence(),
                    fix="finish the download into the same folder",
                    exit_code=ExitCode.MODEL_FILE,
                )
    elif facts.examined is not None:
        spec, placement = facts.examined.spec, facts.examined.placement
        yield passed(
            "model", f"{spec.name} on {placement.device}, {placement.parallel} x {placement.max_tokens} tokens"
        )


def address(facts: Facts) -> Iterator[Finding]:
    """The address can be taken (CFG-13)."""
    if facts.loaded is None:
        return
    server = facts.loaded.rig.server
    if facts.running:
        yield passed("address", f"an appliance answers: {facts.running}")
    elif facts.address_error is not None:
        yield failed("address", facts.address_error)
    else:
        yield passed("address", f"{server.host} port {server.port} can be taken")


def keys(facts: Facts) -> Iterator[Finding]:
    """Who may ask (CTR-11); counts only, never a key."""
    if facts.loaded is None:
        return
    server = facts.loaded.rig.server
    if facts.keys_error:
        yield Finding(
            check="keys",
            verdict=Verdict.FAIL,
            says=facts.keys_error,
            fix="strata keys add NAME",
            exit_code=ExitCode.RIG,
        )
    elif facts.keys is not None:
        empty = facts.keys == 0
        yield Finding(
            check="keys",
            verdict=Verdict.FAIL if empty else Verdict.OK,
            says="the keys file holds no key, so nobody could ask" if empty else f"{facts.keys} key(s)",
            fix="strata keys add NAME" if empty else "",
            exit_code=ExitCode.RIG,
        )
    elif server.open and not is_loopback(server.host):
        inside = facts.machine.image
        yield Finding(
            check="keys",
            verdict=Verdict.OK if inside else Verdict.NOTE,
            says="open = true: whoever reaches the address may ask"
            + ("; compose publishes it to this machine only" if inside else ""),
            fix="" if inside else "set keys_file below [server] and run strata keys add NAME",
        )
    else:
        yield passed("keys", "none needed: only this machine reaches the address")
