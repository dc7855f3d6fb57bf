"""Owns the plan of a rig as it stands, so that a changed value is priced at once; "auto" is what a start would make."""

from __future__ import annotations

from appliance.errors import ApplianceError
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.placed import Placement
from appliance.placement import place
from appliance.planning.measured import stale, standing, subject_of
from appliance.planning.plan import PlanView, view_of
from appliance.rig.judge import choose_device, judge
from appliance.rig.load import LoadedRig
from appliance.rig.machine import Machine
from appliance.rig.problem import refuse
from appliance.rig.recorded import with_recorded


def plan_rig(loaded: LoadedRig, machine: Machine, spec: ModelSpec, *, title: str = "") -> PlanView:
    """Bars, hits and speeds of the rig; recorded speeds where its [machine.bench] holds any.

    What `strata check` refuses is a refusal here, in the same words.
    """
    try:
        refuse(judge(loaded, machine, spec))
        device = choose_device(loaded, machine)
        placement = place(machine, spec, loaded.rig, device=device)
    except ApplianceError as error:
        return PlanView(title=title, placement=None, speed=None, refusal=str(error))
    if not placement.stages:
        return PlanView(title=title, placement=None, speed=None, refusal="the CPU computes; its speed is not estimated")
    return placed_view(loaded, machine, spec, placement, title=title)


def placed_view(
    loaded: LoadedRig, machine: Machine, spec: ModelSpec, placement: Placement, *, title: str = ""
) -> PlanView:
    """A rig's placement on cards with its speeds: recorded ones where they still stand, else estimates that say why."""
    bench, subject = loaded.rig.machine.bench, subject_of(loaded, machine, spec, placement)
    return view_of(
        with_recorded(machine, loaded.rig.machine),
        spec,
        placement,
        title=title,
        bench=standing(bench, subject),
        left_out=stale(bench, subject),
    )
