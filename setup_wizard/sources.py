"""Owns what the screens reach outside with: probes, models, the hub, Docker; tests give their own."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from appliance.models.catalogue import read_catalogue
from appliance.models.download import Tell, check_space, download
from appliance.models.find import FoundSet, find_models
from appliance.models.place import project_folder
from appliance.models.repository import RemoteSet, look_up, wanted
from appliance.probe_command import running_appliance
from appliance.rig.containers import IMAGE
from appliance.rig.machine import Machine, probe
from appliance.rig.measure import Measured, Progress, measure
from setup_wizard.draft import Draft
from setup_wizard.recommend import Offered, offers
from setup_wizard.start import Tools, real_tools


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The outside.

    Attributes:
        probe: looks at the machine; the folder is the model's.
        measure: measures it, which takes about a minute.
        find: models below a folder.
        offers: the catalogue beside this machine, which takes seconds with many cards; the folder is the models'.
        look_up: a set on the hub by catalogue id or OWNER/NAME:SIZE.
        download: brings it, and gives the first part.
        tools: Docker and the server.
        project: folder of compose.yaml; None without one.
        spawn: runs slow work beside the screens.
    """

    probe: Callable[[Path], Machine]
    measure: Callable[[Machine, Path, Progress], Measured]
    find: Callable[[Path], tuple[FoundSet, ...]]
    offers: Callable[[Draft, Path], tuple[Offered, ...]]
    look_up: Callable[[str], RemoteSet]
    download: Callable[[RemoteSet, Path, Tell], Path]
    tools: Tools
    project: Path | None
    spawn: Callable[[Callable[[], None]], None]


def real_sources() -> Sources:
    """The real outside."""
    return Sources(
        probe=probe,
        measure=_measure,
        find=find_models,
        offers=real_offers,
        look_up=lambda name: look_up(wanted(name, read_catalogue())),
        download=_download,
        tools=real_tools(),
        project=project_folder(),
        spawn=spawn,
    )


def real_offers(draft: Draft, folder: Path) -> tuple[Offered, ...]:
    """The catalogue's entries as offers."""
    return offers(draft, read_catalogue(), str(folder))


def spawn(work: Callable[[], None]) -> None:
    """A thread that does not hold the exit back: a probe may take a minute, and leaving must not."""
    context = contextvars.copy_context()
    threading.Thread(target=lambda: context.run(work), name="setup", daemon=True).start()


def _measure(machine: Machine, folder: Path, progress: Progress) -> Measured:
    return measure(machine, folder, image=IMAGE, running=running_appliance(None), progress=progress)


def _download(remote: RemoteSet, folder: Path, tell: Tell) -> Path:
    check_space(remote, folder)
    return download(remote, folder, progress=tell)
