"""Owns the step of the model: built-in, found, or downloaded from the catalogue or a repository."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import Button, Input, Label, Static

from appliance.errors import ApplianceError, UsageError
from appliance.models.catalogue import ROLES, Size, read_catalogue
from appliance.models.download import Progress
from appliance.models.find import FoundSet
from appliance.models.outline import outline
from appliance.models.repository import RemoteSet
from appliance.rig.size import format_size
from setup_wizard.draft import Answer, Draft, Model
from setup_wizard.models import builtin, read_model
from setup_wizard.recommend import Offered, best
from setup_wizard.screens.base import Step
from setup_wizard.screens.widgets import Choice, Row


class ModelStep(Step):
    """What is served."""

    NUMBER, NAME = 2, "model"
    ABOUT: ClassVar[str] = "Enter takes a model and plans it. Download brings one that is not here; it goes on later."

    def body(self) -> Iterable[Widget]:
        """The list, the folder, a repository, the download."""
        yield Choice("models", [Row("builtin", "the built-in small model")], "builtin", help_words=self.ABOUT)
        with Horizontal(classes="row"):
            yield Label("folder of models")
            yield Input(value=str(self.setup.models_folder), id="folder", compact=True)
        with Horizontal(classes="row"):
            yield Label("OWNER/NAME:SIZE")
            yield Input(placeholder="another repository on the hub", id="repository", compact=True)
        yield Button("Download", id="download", compact=True)
        yield Static("searching for models ...", id="progress", markup=False)

    def on_mount(self) -> None:
        """Searches."""
        self._stopping = False
        self._offered: tuple[Offered, ...] = ()
        self._search()

    def _search(self) -> None:
        draft = self.setup.draft
        if draft is None:
            return
        sources, folder = self.setup.sources, self.setup.models_folder
        self.setup.beside(
            lambda tell: (sources.find(folder), sources.offers(draft, folder)),
            tell=lambda line: None,
            done=self._show,
            failed=self._failed,
        )

    def _show(self, found: tuple[tuple[FoundSet, ...], tuple[Offered, ...]]) -> None:
        sets, self._offered = found
        draft = self.setup.draft
        if draft is None or not self.shown:
            return
        size = draft.model.size
        value = draft.model.path if size is None else f"catalogue:{size.id}"
        self.query_one("#models", Choice).fill(rows(draft, sets, self._offered), value)
        recommended = best(self._offered)
        name = "the built-in model" if recommended is None else recommended.size.name
        self._say(f"recommended for this machine: {name}")

    def on_choice_chosen(self, event: Choice.Chosen) -> None:
        """Takes a model and plans it."""
        chosen = str(event.row.value)
        if chosen == "builtin":
            self.setup.serve(builtin())
        elif chosen.startswith("catalogue:"):
            size = read_catalogue().size(chosen.partition(":")[2])
            path = f"{self.setup.models_folder}/{size.id}.gguf"
            self.setup.serve(Model(path=path, spec=outline(size), size=size))
            self._say(f"{size.name} is not here: Download brings {format_size(size.file_bytes)}")
        else:
            self.setup.serve(read_model(chosen, folder=self.setup.path.parent))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Another folder is searched at once."""
        if event.input.id == "folder":
            self.setup.models_folder = Path(event.value).expanduser()
            self._search()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Downloads what was named, else the catalogue entry that was taken; pressed again, stops."""
        if str(event.button.label) == "Stop":
            self._stopping = True
            return
        size = self.setup.draft.model.size if self.setup.draft else None
        name = self.query_one("#repository", Input).value.strip() or (size.id if size else "")
        if not name:
            self._say("take a catalogue entry, or name a repository, first")
            return
        self._stopping = False
        event.button.label = "Stop"
        sources, folder = self.setup.sources, self.setup.models_folder

        def bring(tell: Callable[[Any], None]) -> tuple[RemoteSet, Path]:
            remote = sources.look_up(name)
            return remote, sources.download(remote, folder, lambda at: self._at(at, tell))

        self.setup.beside(bring, tell=self._say, done=self._brought, failed=self._failed)

    def _at(self, at: Progress, tell: Callable[[Any], None]) -> None:
        if self._stopping or not self.is_running:
            raise UsageError("stopped; what is here stays, and Download goes on from it")
        share = at.set_done_bytes / max(1, at.set_total_bytes)
        tell(f"{at.stage} {at.file}: {share:.0%} of {format_size(at.set_total_bytes)}")

    def _brought(self, brought: tuple[RemoteSet, Path]) -> None:
        remote, first = brought
        drafter = next((file.name for file in remote.files if _role(file.name) == "draft"), None)
        path = None if drafter is None else str(first.parent / drafter)
        model = read_model(str(first), folder=self.setup.path.parent, draft_path=path)
        self.setup.serve(model, Answer("model.draft_path", path))
        if self.shown:
            self.query_one("#download", Button).label = "Download"
            self._say(f"{first} is here and complete")
            self._search()

    def _failed(self, error: ApplianceError) -> None:
        if self.shown:
            self.query_one("#download", Button).label = "Download"
            self._say(f"REFUSED: {error}")

    def _say(self, line: str) -> None:
        if self.shown:
            self.query_one("#progress", Static).update(line)


def rows(draft: Draft, sets: tuple[FoundSet, ...], offered: tuple[Offered, ...]) -> list[Row]:
    """Built-in, what the folder has, what the catalogue has; an incomplete set cannot be taken (CFG-20)."""
    found = [Row("builtin", "the built-in small model: shows that everything works")]
    known = {"builtin"}
    for one in sets:
        if one.role != "model":
            continue
        why_not = one.problem or ("" if one.complete else f"incomplete: {one.sentence()}")
        name = one.facts.name if one.facts else one.path.name
        found.append(Row(str(one.path), f"{name}, {format_size(one.size_bytes)}, {one.path}", why_not))
        known.add(str(one.path))
    if draft.model.path not in known and draft.model.size is None:
        found.append(Row(draft.model.path, f"{draft.model.path}, as the rig says"))
    return found + [_offer(offer.size, offer.sentence()) for offer in offered]


def _offer(size: Size, sentence: str) -> Row:
    return Row(f"catalogue:{size.id}", f"{size.name}, {format_size(size.file_bytes)} to download: {sentence}")


def _role(name: str) -> str:
    return next((role for prefix, role in ROLES if name.lower().startswith(prefix)), "model")
