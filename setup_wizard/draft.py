"""Owns the draft: answers over the present rig, the text they make, and what `strata check` would say of it."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit

from appliance.errors import ApplianceError, MachineError, RigError
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.models.catalogue import Size
from appliance.placement import Placement, place
from appliance.plan_words import cpu_speed
from appliance.planning.from_rig import placed_view
from appliance.planning.plan import PlanView
from appliance.rig.judge import Device, choose_device, judge
from appliance.rig.load import LoadedRig, load_text
from appliance.rig.machine import Machine
from appliance.rig.migrate import migrated
from appliance.rig.problem import Problem, refuse
from appliance.rig.schema import TABLES
from appliance.rig.warnings import driver_problem
from appliance.rig.write import HEADER, render


@dataclass(frozen=True, slots=True)
class Answer:
    """A key and its value as TOML holds it; None takes the key out, so that its default counts."""

    key: str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What shall be served.

    Attributes:
        path: as the rig names it.
        spec: from its header, or from the catalogue while it is not here.
        size: catalogue entry that is still to be downloaded; None for files that are here.
        problem: why it cannot be read, "" when it can.
    """

    path: str
    spec: ModelSpec
    size: Size | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A draft beside its machine.

    Attributes:
        text: the rig it would be.
        loaded: the same as values; None when it is not valid.
        problems: sentences of what `strata check` refuses; empty when it accepts.
        notes: what the placement says about it.
        device: what computes; None when refused before that is known.
        placement: bytes of every part; None when refused.
        plan: bars and speeds where a card computes.
        cpu_speed: what is known of the speed where the CPU does.
    """

    text: str
    loaded: LoadedRig | None
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    device: Device | None = None
    placement: Placement | None = None
    plan: PlanView | None = None
    cpu_speed: str = ""

    @property
    def accepted(self) -> bool:
        """Whether `strata check` accepts it."""
        return not self.problems

    @property
    def on_card(self) -> bool:
        """Whether a card computes."""
        return self.device is not None and bool(self.device.cards)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A rig in the making.

    Attributes:
        path: where it will be written.
        present: text of the rig that is there, None without one.
        machine: what was found.
        model: what shall be served.
        answers: one a key.
    """

    path: Path
    present: str | None
    machine: Machine
    model: Model
    answers: tuple[Answer, ...] = ()

    def answer(self, *answers: Answer) -> Draft:
        """The draft with these answers in place of earlier ones to the same keys."""
        keys = {answer.key for answer in answers}
        kept = tuple(answer for answer in self.answers if answer.key not in keys)
        return dataclasses.replace(self, answers=(*kept, *answers))

    def serve(self, model: Model) -> Draft:
        """The draft with another model."""
        return dataclasses.replace(self, model=model).answer(Answer("model.path", model.path))

    def value(self, key: str) -> Any:
        """The value of a key as the file holds it; None where the default counts."""
        table, _, name = key.partition(".")
        found: dict[str, Any] = tomllib.loads(self.text()).get(table, {})
        return found.get(name)

    def has(self, key: str) -> bool:
        """Whether the rig that is there, or an answer, states a key."""
        base = None if self.present is None else migrated(self.present)
        return any(answer.key == key for answer in self.answers) or key in stated(base)

    def text(self) -> str:
        """The rig as it would be written: only answered keys change, comments stay (CFG-08)."""
        if self.present is not None:
            return render(_edited(migrated(self.present), self.answers), self.machine)
        tree = tomllib.loads(render(None, self.machine))
        tree.pop("machine", None)
        for answer in self.answers:
            table, _, name = answer.key.partition(".")
            tree.setdefault(table, {})
            if answer.value is None:
                tree[table].pop(name, None)
            else:
                tree[table][name] = answer.value
        document = tomlkit.document()
        document.add(tomlkit.comment(HEADER))
        document.add("schema", tree.pop("schema"))
        for table in (name for name in TABLES if tree.get(name)):
            document.add(tomlkit.nl())
            document.add(table, tomlkit.item(tree[table]))
        return render(tomlkit.dumps(document), self.machine)


def stated(text: str | None) -> frozenset[str]:
    """Dotted keys of a rig's text."""
    tree = tomllib.loads(text or "")
    tables = ((table, found) for table, found in tree.items() if isinstance(found, dict))
    return frozenset(f"{table}.{key}" for table, found in tables for key in found)


def _edited(text: str, answers: Iterable[Answer]) -> str:
    document = tomlkit.parse(text)
    for answer in answers:
        table, _, name = answer.key.partition(".")
        found: Any = document.get(table)
        if answer.value is None:
            if found is not None and name in found:
                del found[name]
            continue
        if found is None:
            document.add(tomlkit.nl())
            document.add(table, tomlkit.table())
            found = document[table]
        if name not in found or found[name] != answer.value:
            found[name] = answer.value
    return tomlkit.dumps(document)


def judged(draft: Draft) -> Judged:
    """What `strata check` would say, without opening a file; never raises for what is refused."""
    text = draft.text()
    try:
        loaded = load_text(text, path=draft.path)
    except RigError as error:
        return Judged(text=text, loaded=None, problems=_sentences(error))
    problems: tuple[str, ...] = (draft.model.problem,) if draft.model.problem else ()
    device, placement = None, None
    try:
        device, placement = _placed(loaded, draft)
    except ApplianceError as error:
        problems = problems or _sentences(error)
    return Judged(
        text=text,
        loaded=loaded,
        problems=problems,
        notes=() if placement is None else placement.notes,
        device=device,
        placement=placement,
        plan=_planned(loaded, draft, placement),
        cpu_speed=_cpu_speed(loaded, draft, placement),
    )


def _placed(loaded: LoadedRig, draft: Draft) -> tuple[Device, Placement]:
    """The second pass and the placement, as `strata check` makes them.

    Raises:
        ApplianceError: it refuses.
    """
    machine, spec = draft.machine, draft.model.spec
    refuse(judge(loaded, machine, None))
    device = choose_device(loaded, machine)
    problem = driver_problem(machine.cards) if device.cards else None
    if problem is not None:
        raise MachineError(problem, hint="update the NVIDIA driver of the host")
    refuse(judge(loaded, machine, spec))
    return device, place(machine, spec, loaded.rig, device=device)


def _planned(loaded: LoadedRig, draft: Draft, placement: Placement | None) -> PlanView | None:
    """Bars and speeds of the placement, where cards compute."""
    if placement is None or not placement.stages:
        return None
    return placed_view(loaded, draft.machine, draft.model.spec, placement)


def _cpu_speed(loaded: LoadedRig, draft: Draft, placement: Placement | None) -> str:
    """What is known of the speed where the CPU computes."""
    if placement is None or placement.stages:
        return ""
    return cpu_speed(loaded, draft.machine, draft.model.spec, placement)


def _sentences(error: ApplianceError) -> tuple[str, ...]:
    found: tuple[Problem, ...] = getattr(error, "problems", ())
    return tuple(problem.sentence() for problem in found) or (str(error),)
