"""Owns the page: which checks in which order, its lines, and the exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from appliance import __version__
from appliance.doctor import machine, service
from appliance.doctor.facts import Facts, Finding, Verdict
from appliance.errors import ExitCode

WIDTH = 10


CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    service.rig,
    service.model,
    machine.driver,
    machine.cards,
    machine.docker,
    machine.memlock,
    machine.memory,
    machine.disk,
    service.address,
    service.keys,
    machine.compiler,
)


def examine_promises(facts: Facts) -> tuple[Finding, ...]:
    """All findings, in the order of the page."""
    return tuple(finding for check in CHECKS for finding in check(facts))


def exit_code(findings: tuple[Finding, ...]) -> ExitCode:
    """What the first failure means; OK without one."""
    return next((finding.exit_code for finding in findings if finding.verdict is Verdict.FAIL), ExitCode.OK)


def page(facts: Facts, findings: tuple[Finding, ...]) -> list[str]:
    """The page as lines."""
    found = facts.machine
    where = f", in {found.container}" if found.container else ""
    lines = [f"strata doctor {__version__}, {datetime.now(UTC).date().isoformat()}, {found.system}{where}", ""]
    for finding in findings:
        lines.append(f"{finding.verdict.value:<8} {finding.check:<{WIDTH}} {finding.says}".rstrip())
        if finding.fix and finding.verdict in (Verdict.FAIL, Verdict.NOTE):
            lines.append(f"{'':<8} {'fix:':>{WIDTH}} {finding.fix}")
    failed = sum(finding.verdict is Verdict.FAIL for finding in findings)
    lines += ["", f"{failed} failed" if failed else "everything that was promised holds"]
    return lines
