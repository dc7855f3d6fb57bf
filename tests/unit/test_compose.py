"""CTR-02, CTR-08, CTR-09, CTR-11: what compose.yaml and the Dockerfile promise, read from their text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def service() -> dict[str, Any]:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    assert list(compose["services"]) == ["strata"]
    return dict(compose["services"]["strata"])


@pytest.fixture(scope="module")
def dockerfile() -> str:
    return (ROOT / "Dockerfile").read_text()


def test_ctr_02_compose_reserves_no_device(service: dict[str, Any]) -> None:
    assert not {"deploy", "gpus", "devices", "runtime", "ulimits"} & set(service)


def test_ctr_08_the_grace_period_is_longer_than_a_drain(service: dict[str, Any]) -> None:
    assert int(re.fullmatch(r"(\d+)s", service["stop_grace_period"])[1]) > 8  # type: ignore[index]
    assert service["restart"] == "on-failure"
    assert service["init"] is True


def test_ctr_09_a_slow_load_is_not_killed(dockerfile: str) -> None:
    minutes = re.search(r"HEALTHCHECK .*--start-period=(\d+)m .*CMD \[\"strata\", \"health\"\]", dockerfile)
    assert minutes
    assert int(minutes[1]) >= 10


def test_ctr_11_published_on_loopback_only(service: dict[str, Any]) -> None:
    assert service["ports"] == ["127.0.0.1:8080:8080"]


def test_the_image_needs_no_frontend_of_another_registry(dockerfile: str) -> None:
    assert "# syntax" not in dockerfile
    assert "<<" not in dockerfile
    assert set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) == {"debian:trixie-slim", "system", "environment"}
    assert re.search(r"^USER 1000$", dockerfile, re.MULTILINE)


def test_the_image_installs_by_hash_and_without_test_tools(dockerfile: str) -> None:
    assert "--require-hashes" in dockerfile
    marker = "# tests only"
    assert f"/^{marker}/,$d" in dockerfile
    shipped = (ROOT / "requirements.txt").read_text().split(f"\n{marker}")
    assert len(shipped) == 2
    assert "pytest==" in shipped[1]
    assert "pytest==" not in shipped[0]
    assert "torch==" in shipped[0]


def test_requirements_name_no_index_and_hash_everything() -> None:
    text = (ROOT / "requirements.txt").read_text()
    assert not re.search(r"https?:|--index|--extra-index|--find-links", text)
    pins = re.findall(r"^[\w.-]+==.*(?:\n    .*)*", text, re.MULTILINE)
    assert len(pins) > 50
    assert all("--hash=sha256:" in pin for pin in pins)
