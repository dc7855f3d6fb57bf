"""Owns whether recorded speeds still stand: of which model, machine and settings they are."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Final

from appliance.model.qwen4exp.spec import ModelSpec
from appliance.placed import Placement
from appliance.rig.load import LoadedRig
from appliance.rig.machine import Machine
from appliance.rig.machine_schema import BenchTable

# How the mark of the settings is made; another number makes every older record stale.
_VERSION: Final = 1
# Who may ask, where, and with which defaults changes no speed.
_NO_SPEED: Final = {"schema_", "machine", "server", "sampling"}
_CHANGED: Final = {"model": "the model", "machine": "the machine", "settings": "the rig"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a measurement is of; the fields of [machine.bench]."""

    model: str
    machine: str
    settings: str


def subject_of(loaded: LoadedRig, machine: Machine, spec: ModelSpec, placement: Placement) -> Subject:
    """The model by name and bytes, the cards or cores that compute, and a mark of the settings and what "auto" made."""
    size = sum(tensor.byte_count for tensor in spec.tensors.values())
    cards = ", ".join(stage.card.uuid for stage in placement.stages)
    where = f"{cards}, driver {machine.cards.driver}" if cards else f"{machine.cores.usable} cores"
    settings = loaded.rig.model_dump(mode="json", exclude=_NO_SPEED)
    # A path says where the model is, not what it is.
    settings["model"] = {}
    made = [placement.parallel, placement.max_tokens, placement.draft_max, placement.kv_type]
    text = json.dumps([_VERSION, settings, made], sort_keys=True)
    return Subject(
        model=f"{spec.name}, {size:,} bytes", machine=where, settings=hashlib.sha256(text.encode()).hexdigest()[:12]
    )


def stale(bench: BenchTable, subject: Subject) -> str:
    """Why recorded speeds are left out, in a sentence; "" where they stand, or where there are none."""
    if bench.users_1 is None:
        return ""
    changed = [words for name, words in _CHANGED.items() if getattr(bench, name) != getattr(subject, name)]
    if not changed:
        return ""
    verb = "have" if len(changed) > 1 else "has"
    return f"recorded speeds are left out: {' and '.join(changed)} {verb} changed since; strata bench --record"


def standing(bench: BenchTable, subject: Subject) -> BenchTable | None:
    """The record, where it stands."""
    return None if bench.users_1 is None or stale(bench, subject) else bench
