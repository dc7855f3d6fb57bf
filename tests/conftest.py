"""Owns what holds for every test: nothing is skipped, or expected to fail, quietly; no test logs into another one."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator

import pytest

# As the server does, and before torch is imported: on a busy machine waiting threads would spin for minutes.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

CARD = "needs a CUDA card"


def _excused(reason: object) -> bool:
    return CARD in str(reason)


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turns a skip, or an expected failure, into a failure unless its reason is that there is no card."""
    if report.outcome == "skipped" and not _excused(report.longrepr):
        report.outcome = "failed"
        report.longrepr = f"skipped, and only a test that {CARD!r} may be (say so in its reason): {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if hasattr(report, "wasxfail"):
        del report.wasxfail
    _refuse(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse(report)
    return report


@pytest.fixture(autouse=True)
def no_log_of_another_test() -> None:
    """Forgets handlers that write to what an earlier test captured: servers of this one complain of a closed file."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, logging.StreamHandler) and handler.stream.closed:
            root.removeHandler(handler)
