"""Owns reading the model that a rig names, as far as its header."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from appliance.errors import ModelFileError
from appliance.examine import BUILTIN_MODEL
from appliance.gguf.reader import open_set
from appliance.model import architecture
from appliance.model.qwen4exp.spec import ModelSpec, read_spec
from appliance.rig.schema import BUILTIN
from setup_wizard.draft import Model


def builtin() -> Model:
    """The small model in the package."""
    return Model(path=BUILTIN, spec=_spec(BUILTIN_MODEL, None))


def read_model(path: str, *, folder: Path, draft_path: str | None = None) -> Model:
    """The model of a path as the rig writes it; one that cannot be read carries the reason.

    Args:
        path: file, folder or "builtin".
        folder: of the rig, where relative paths start.
        draft_path: a separate drafter.
    """
    if path == BUILTIN:
        return builtin()
    drafter = None if draft_path is None else folder / Path(draft_path).expanduser()
    try:
        return Model(path=path, spec=_spec(folder / Path(path).expanduser(), drafter))
    except ModelFileError as error:
        return dataclasses.replace(builtin(), path=path, problem=str(error))


def _spec(path: Path, drafter: Path | None) -> ModelSpec:
    model = open_set(path)
    architecture(model.metadata)
    return read_spec(model, draft=None if drafter is None else open_set(drafter))
