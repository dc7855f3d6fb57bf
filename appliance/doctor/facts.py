"""Owns what the doctor looked at, and how a finding is told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from appliance.errors import ApplianceError, ExitCode
from appliance.examine import Examined
from appliance.models.find import FoundSet
from appliance.rig.containers import Containers
from appliance.rig.load import LoadedRig
from appliance.rig.machine import Machine
from appliance.rig.size import format_size


class Verdict(Enum):
    """How a check ended."""

    OK = "ok"
    NOTE = "note"
    FAIL = "FAIL"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the page.

    Attributes:
        check: what was looked at.
        verdict: how it ended.
        says: what was found.
        fix: what to do, "" when nothing.
        exit_code: what a failure means for the process.
    """

    check: str
    verdict: Verdict
    says: str
    fix: str = ""
    exit_code: ExitCode = ExitCode.MACHINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that was looked at; nothing in it is secret.

    Attributes:
        machine: probed now.
        containers: Docker as seen from here.
        loaded, rig_error: the rig, or why it cannot be read.
        examined, plan_error: the plan, or why there is none.
        sets: files of the model's folder when the model could not be opened.
        running: where an appliance answers, None when none does.
        address_error: why the address cannot be taken.
        keys: how many keys the file holds; None without a file.
        keys_error: why it cannot be read, "" when it can.
        memory_kills: processes that were ended for memory in this container or session.
        toolkit_fix: the command that installs the NVIDIA toolkit here.
        compiler: whether a C compiler is there, for kernels.
    """

    machine: Machine
    containers: Containers
    loaded: LoadedRig | None = None
    rig_error: ApplianceError | None = None
    examined: Examined | None = None
    plan_error: ApplianceError | None = None
    sets: tuple[FoundSet, ...] = ()
    running: str | None = None
    address_error: ApplianceError | None = None
    keys: int | None = None
    keys_error: str = ""
    memory_kills: int = 0
    toolkit_fix: str = ""
    compiler: bool = True

    @property
    def wants_cards(self) -> bool:
        """Whether the rig needs a card, or would use one."""
        devices = self.loaded.rig.cards.devices if self.loaded else "auto"
        return devices not in ("cpu", "auto") or (devices == "auto" and bool(self.machine.cards.cards))


def passed(check: str, says: str) -> Finding:
    """All is well."""
    return Finding(check=check, verdict=Verdict.OK, says=says)


def failed(check: str, error: ApplianceError) -> Finding:
    """An error as a finding, with its own hint and exit code."""
    return Finding(
        check=check, verdict=Verdict.FAIL, says=error.message, fix=error.hint or "", exit_code=error.exit_code
    )


def size_words(size_bytes: int | None) -> str:
    """A size, or that nobody knows."""
    return "unknown" if size_bytes is None else format_size(size_bytes)
