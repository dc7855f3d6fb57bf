"""Owns the last step: the start through Docker with its progress, the address, a first answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.widget import Widget
from textual.widgets import Button, Static

from appliance.errors import ApplianceError
from setup_wizard.screens.base import Step
from setup_wizard.start import host_commands, start

LINES = 6  # of what Docker and the server say; the last one is the newest


class StartStep(Step):
    """Starts what was written."""

    NUMBER, NAME = 8, "start"
    ABOUT: ClassVar[str] = "The start builds the image where it is not there, which takes minutes; ctrl+q leaves."
    PLANS: ClassVar[bool] = False

    def body(self) -> Iterable[Widget]:
        """What was written, then the start or the command for it."""
        app = self.setup
        yield Static("\n".join(app.after), id="written", markup=False)
        if app.draft is not None and app.draft.machine.image:
            commands = "\n".join(f"  {line}" for line in host_commands(app.path))
            yield Static(f"Start it on the host, beside compose.yaml:\n{commands}", id="command", markup=False)
        elif app.sources.project is None:
            commands = "\n".join(f"  {line}" for line in host_commands(app.path))
            yield Static(f"There is no compose.yaml here. Start it with:\n{commands}", id="command", markup=False)
        else:
            yield Button("Start with Docker", id="start", compact=True)
            commands = "; ".join(host_commands(app.path))
            yield Static(f"or, without Docker: {commands}", id="command", markup=False)
        yield Static("", id="log", markup=False)
        yield Button("Leave", id="leave", compact=True)

    def on_mount(self) -> None:
        """Nothing was told yet."""
        self._lines: list[str] = []

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Starts, or leaves."""
        app = self.setup
        if event.button.id == "leave":
            app.action_leave()
        project, examined = app.sources.project, app.examined
        if event.button.id != "start" or project is None or examined is None:
            return
        event.button.disabled = True
        machine, tools, key = examined.machine, app.sources.tools, app.first_key
        app.beside(
            lambda tell: start(examined.loaded, machine, project, say=tell, tools=tools, key=key),
            tell=self._tell,
            done=self._answered,
            failed=self._failed,
        )

    def _tell(self, line: str) -> None:
        self._lines = [*self._lines[1 - LINES :], line]
        if self.shown:
            self.query_one("#log", Static).update("\n".join(self._lines))

    def _answered(self, answer: str) -> None:
        server = self.setup.examined.loaded.rig.server if self.setup.examined else None
        where = f"http://{server.host}:{server.port}/v1" if server else ""
        line = f"it answers at {where}: {answer}"
        self.setup.after.append(line)
        self._tell(line)

    def _failed(self, error: ApplianceError) -> None:
        self.setup.after.append(f"strata-setup: {error}")
        self._tell(f"REFUSED: {error}")
        if self.shown:
            self.query_one("#start", Button).disabled = False
