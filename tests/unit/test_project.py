"""What pyproject.toml, requirements.txt and the README promise each other."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKED = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
PINS = {canonicalize_name(name): version for name, version in LOCKED}
WANTED = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["test"]]


@pytest.mark.parametrize("text", WANTED)
def test_every_dependency_is_pinned_within_its_bounds(text: str) -> None:
    wanted = Requirement(text)
    assert PINS[canonicalize_name(wanted.name)] in wanted.specifier


def test_bench_packages_stay_out_of_the_lock() -> None:
    for text in PROJECT["project"]["optional-dependencies"]["bench"]:
        assert canonicalize_name(Requirement(text).name) not in PINS


@pytest.mark.parametrize("name", ["docker", "python", "test"])
def test_the_readme_gives_each_command_in_one_line(name: str) -> None:
    command = subprocess.run([ROOT / ".ci/readme", name], capture_output=True, text=True, check=True).stdout.strip()
    assert "\n" not in command
    assert command in (ROOT / "README.md").read_text()


def test_the_image_and_the_distribution_have_the_same_version() -> None:
    version = PROJECT["project"]["version"]
    assert f"image: strata-appliance:{version}" in (ROOT / "compose.yaml").read_text()
    assert f"\n## {version}\n" in (ROOT / "CHANGELOG.md").read_text()
