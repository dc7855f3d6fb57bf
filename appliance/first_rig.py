"""Owns the very first start: the default rig is not there yet, so the planner writes it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from appliance.errors import RigError
from appliance.log import say, warn
from appliance.rig.load import LoadedRig, load_rig, load_text
from appliance.rig.machine import probe
from appliance.rig.paths import RigPath
from appliance.rig.write import render, write_rig


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
