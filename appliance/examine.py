"""Owns the part of the start-up that only reads: rig, machine, model header, judgement, placement."""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from appliance.errors import MachineError
from appliance.gguf.reader import GgufSet, open_set
from appliance.model import Architecture, architecture
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.placement import Placement, place
from appliance.rig.judge import Device, choose_device, judge, machine_differences
from appliance.rig.load import LoadedRig
from appliance.rig.machine import Machine, probe
from appliance.rig.problem import refuse
from appliance.rig.schema import BUILTIN
from appliance.rig.warnings import driver_problem

BUILTIN_MODEL = Path(__file__).parent / "data" / "strata-tiny.gguf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """Everything that is known before a byte of weights is read.

    Attributes:
        model: the opened file; whoever holds this closes it.
        differences: what changed since the rig's [machine] was written.
    """

    loaded: LoadedRig
    machine: Machine
    device: Device
    model: GgufSet
    architecture: Architecture
    spec: ModelSpec
    placement: Placement
    differences: tuple[str, ...]


def model_path(loaded: LoadedRig) -> Path:
    """The model's file or folder."""
    path = loaded.rig.model.path
    return BUILTIN_MODEL if path == BUILTIN else loaded.resolve(path)


def look(loaded: LoadedRig) -> Machine:
    """The machine, and the disk that the model is on."""
    return probe(model_path(loaded).parent)


def examine(loaded: LoadedRig, machine: Machine) -> Examined:
    """Judges and places; opens the model's header and reads no weights.

    Raises:
        RigError: the rig cannot be honoured here.
        MachineError: what the rig needs is not there.
        ModelFileError: the model cannot be loaded.
        DoesNotFitError: it needs more memory than there is.
    """
    refuse(judge(loaded, machine, None))
    device = choose_device(loaded, machine)
    problem = driver_problem(machine.cards) if device.cards else None
    if problem is not None:
        raise MachineError(problem, hint='update the NVIDIA driver of the host, or write devices = "cpu" in [cards]')
    model = open_set(model_path(loaded))
    draft = loaded.rig.model.draft_path
    companion = open_set(loaded.resolve(draft)) if draft is not None else None
    row = architecture(model.metadata)
    module, _, name = row.spec.partition(":")
    spec = cast(ModelSpec, getattr(importlib.import_module(module), name)(model, draft=companion))
    refuse(judge(loaded, machine, spec))
    placement = place(machine, spec, loaded.rig, device=device)
    chosen = tuple(stage.card for stage in placement.stages)
    return Examined(
        loaded=loaded,
        machine=machine,
        device=dataclasses.replace(device, cards=chosen),
        model=model,
        architecture=row,
        spec=spec,
        placement=placement,
        differences=tuple(machine_differences(loaded, machine)),
    )
