"""Owns the first step: welcome, what the machine is, and its speeds when asked."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import ClassVar

from textual.widget import Widget
from textual.widgets import Button, Static

from appliance.errors import ApplianceError
from appliance.rig.machine import Machine
from appliance.rig.measure import Measured
from appliance.rig.measure import Step as Probe
from appliance.rig.migrate import older_schema
from appliance.rig.schema import SCHEMA
from setup_wizard.screens.base import Step
from setup_wizard.words import machine_lines, speed_lines

WELCOME = "This writes rig.toml, the one file that says what this machine serves. Nothing is written before step 7."


class MachineStep(Step):
    """What the box has."""

    NUMBER, NAME = 1, "welcome and machine"
    ABOUT: ClassVar[str] = "Tab moves, Enter takes, ctrl+n goes on, Escape goes back, ctrl+q leaves."

    def body(self) -> Iterable[Widget]:
        """What was found, and the button to measure."""
        yield Static(WELCOME, markup=False)
        yield Static("looking at the machine ...", id="found", markup=False)
        yield Button("Measure speeds (about a minute, disturbs nothing)", id="measure", compact=True)
        yield Static("", id="progress", markup=False)

    def on_mount(self) -> None:
        """Looks, unless that was done."""
        self._lines: list[str] = []
        if self.setup.draft is not None:
            self._show(self.setup.draft.machine)
            return
        probe, folder = self.setup.sources.probe, self.setup.path.parent
        self.setup.beside(lambda tell: probe(folder), tell=lambda line: None, done=self._met, failed=self._failed)

    def _met(self, machine: Machine) -> None:
        try:
            self.setup.meet(machine)
        except ApplianceError as error:
            self._failed(error)
            return
        if self.shown:
            self._show(machine)

    def _show(self, machine: Machine) -> None:
        advice = self.setup.advice
        lines = machine_lines(machine) + [f"        {line}" for line in speed_lines(machine)]
        if self.setup.draft is not None and self.setup.draft.present is not None:
            lines.append(f"rig     {self.setup.path} is there: only what you answer changes")
            older = older_schema(tomllib.loads(self.setup.draft.present))
            if older is not None:
                lines.append(f"        it is of schema {older}: writing it in step 7 makes it schema {SCHEMA}")
        lines += [f"advice  {reason}" for reason in (advice.reasons if advice else ())]
        self.query_one("#found", Static).update("\n".join(lines))

    def _failed(self, error: ApplianceError) -> None:
        if self.shown:
            self.query_one("#found", Static).update(f"REFUSED: {error}")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Measures."""
        draft = self.setup.draft
        if draft is None or event.button.id != "measure":
            return
        event.button.disabled = True
        self._lines.clear()
        measure, folder = self.setup.sources.measure, self.setup.path.parent
        self.setup.beside(
            lambda tell: measure(draft.machine, folder, tell),
            tell=self._tell,
            done=self._measured,
            failed=self._failed,
        )

    def _tell(self, step: Probe) -> None:
        line = f"[{step.number}/{step.of}] {step.probe}: {step.says}"
        if step.done and self._lines:
            self._lines[-1] = line
        else:
            self._lines.append(line)
        if self.shown:
            self.query_one("#progress", Static).update("\n".join(self._lines))

    def _measured(self, measured: Measured) -> None:
        self._met(measured.machine)
        if self.shown:
            self.query_one("#measure", Button).disabled = False
