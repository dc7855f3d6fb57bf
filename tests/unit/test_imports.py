"""What a person waits for never loads torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

PACKAGES = [
    "appliance.__main__",
    "appliance.client_commands",
    "appliance.commands",
    "appliance.boot",
    "appliance.cost",
    "appliance.doctor.command",
    "appliance.engine.config",
    "appliance.engine.handle",
    "appliance.errors",
    "appliance.gguf.reader",
    "appliance.model",
    "appliance.model.plan",
    "appliance.model.window",
    "appliance.model.qwen4exp.footprint",
    "appliance.model.qwen4exp.spec",
    "appliance.models.download",
    "appliance.models.find",
    "appliance.placement",
    "appliance.planning.alternatives",
    "appliance.probe_command",
    "appliance.rig.document",
    "appliance.rig.load",
    "appliance.rig.machine",
    "appliance.rig.measure",
    "appliance.rig.write",
    "appliance.scheduler.scheduler",
    "appliance.server.app",
    "appliance.server.serve",
    "appliance.text.stream",
    "appliance.text.template",
    "setup_wizard.__main__",
    "setup_wizard.app",
]


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    """Heavy modules that are loaded after each import, all in one fresh interpreter."""
    script = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    print(name, *[heavy for heavy in ('torch', 'triton', 'kernels') if heavy in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *PACKAGES], capture_output=True, text=True, check=True)
    return {words[0]: words[1:] for words in map(str.split, done.stdout.splitlines())}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_torch(loaded: dict[str, list[str]], package: str) -> None:
    assert loaded[package] == []
