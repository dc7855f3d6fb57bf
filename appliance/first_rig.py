"""Owns the very first start: the default rig is not there yet, so the wizard asks for it or the planner writes it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from appliance.errors import ExitCode, RigError
from appliance.log import say, warn
from appliance.rig.load import LoadedRig, load_rig, load_text
from appliance.rig.machine import probe
from appliance.rig.paths import RigPath
from appliance.rig.write import render, write_rig


def ask_first(
    found: RigPath, *, image: bool, terminal: bool, run: Callable[[Sequence[str]], int] = subprocess.call
) -> ExitCode | None:
    """Opens the wizard where a person starts the image in a terminal and there is no rig yet.

    Args:
        found: where the rig would be.
        image: whether this is the appliance's own image.
        terminal: whether a person may be there.
        run: runs a command and gives its exit code.

    Returns:
        What to leave with, since the person left without a rig; None to go on.
    """
    if found.given or found.path.exists() or not (image and terminal):
        return None
    code = run([sys.executable, "-m", "setup_wizard", "--rig", str(found.path)])
    if code == ExitCode.USAGE or found.path.exists():  # nobody is at that terminal, or the rig is written
        return None
    say("no rig was written, so nothing is served", rig=found.path)
    return ExitCode(code) if code in set(ExitCode) else ExitCode.OK


def load_or_write(
    found: RigPath, *, environment: Mapping[str, str] = os.environ, flags: Sequence[tuple[str, str, str]] = ()
) -> LoadedRig:
    """The rig; an absent one in the default place is written first, and held in memory where it cannot be written.

    Raises:
        RigError: the rig cannot be read or accepted, or was named and is absent.
    """
    if found.given or found.path.exists():
        return load_rig(found.path, environment=environment, flags=flags)
    text = render(None, probe(found.path.parent))
    loaded = load_text(text, path=found.path, environment=environment, flags=flags)
    try:
        write_rig(found.path, text)
    except RigError as error:
        warn("no rig here and none can be written; serving from defaults", rig=found.path, reason=str(error))
    else:
        say("wrote a rig, since there was none", rig=found.path)
    return loaded
