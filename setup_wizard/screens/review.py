"""Owns the review: the rig with explanations, the difference from the one that is there, and the writing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import Button, Static

from appliance.errors import ApplianceError
from setup_wizard.finish import add_key, finish
from setup_wizard.screens.base import Step
from setup_wizard.words import changes, explained


class ReviewStep(Step):
    """What will be written."""

    NUMBER, NAME = 7, "review"
    ABOUT: ClassVar[str] = "ctrl+s writes the file; the earlier one is kept beside it. Tab and arrows scroll."
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+s", "write", "Write", priority=True)]

    def body(self) -> Iterable[Widget]:
        """Difference, text, button."""
        draft, judged = self.setup.draft, self.setup.judged
        if draft is None or judged is None:
            return
        yield Button(f"Write {draft.path}", id="write", compact=True, disabled=bool(self._refusals()))
        yield Static("\n".join(f"REFUSED: {line}" for line in self._refusals()), id="outcome", markup=False)
        found = changes(draft.present, judged.text)
        with VerticalScroll(id="text"):
            if draft.present is not None:
                yield Static("\n".join(found) if found else "nothing changes", id="changes", markup=False)
            yield Static("\n".join(explained(judged.text)), id="explained", markup=False)

    def _refusals(self) -> tuple[str, ...]:
        draft, judged = self.setup.draft, self.setup.judged
        if draft is None or judged is None:
            return ("the machine was not looked at",)
        if draft.model.size is not None:
            return (f"{draft.model.size.name} is not here yet: download it in step 2",)
        return judged.problems

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """The same as ctrl+s."""
        if event.button.id == "write":
            self.action_write()

    def action_next(self) -> None:
        """The start is only for a rig that is written."""
        if self.setup.written:
            super().action_next()
        else:
            self.query_one("#outcome", Static).update("not written yet: ctrl+s writes it")

    def action_write(self) -> None:
        """Checks for real, writes, makes the first key."""
        app = self.setup
        if self._refusals() or app.draft is None or app.judged is None:
            return
        lines: list[str] = []
        try:
            examined = finish(app.draft.path, app.judged.text, app.draft.machine, say=lines.append)
        except ApplianceError as error:
            app.after += [*lines, f"strata-setup: {error}"]  # the text, so that nothing is lost with the place
            self.query_one("#outcome", Static).update(f"REFUSED: {error}")
            return
        app.written, app.examined = True, examined
        app.present = app.judged.text
        keys_file = examined.loaded.rig.server.keys_file
        if keys_file is not None and not examined.loaded.resolve(keys_file).exists():
            try:
                app.first_key = add_key(app.draft.path, app.key_name or "office")
                lines.append(f"key {app.key_name}, shown this once: {app.first_key}")
            except ApplianceError as error:
                lines.append(str(error))
        app.after += lines
        app.go(app.step + 1)
