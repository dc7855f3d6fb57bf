"""Owns the screens' shared state: the draft, what `strata check` says of it, and the way from step to step."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.geometry import Size

from appliance.errors import ApplianceError, ExitCode
from appliance.examine import Examined
from appliance.models.place import models_folder
from appliance.rig.machine import Machine
from setup_wizard.draft import Answer, Draft, Judged, Model, judged
from setup_wizard.headless import begin, comes_first, present_text
from setup_wizard.recommend import Recommended, recommended
from setup_wizard.screens import STEPS
from setup_wizard.screens.base import Step
from setup_wizard.screens.small import TooSmall, is_small
from setup_wizard.sources import Sources, real_sources
from setup_wizard.style import CSS

T = TypeVar("T")


class SetupApp(App[int]):
    """The wizard.

    Attributes:
        draft: what would be written; None until the machine was looked at.
        judged: what `strata check` says of it.
        advice: the recommendation, which the draft is compared with.
        after: lines to print once the terminal is itself again.
        written: whether the rig was written.
        examined: what was written, with its plan.
        first_key, key_name: a key that was made, and what it is called.
        models_folder: where models are looked for and brought to.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = CSS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q", "leave", "Quit", priority=True),
        Binding("ctrl+c", "leave", "Quit", show=False, priority=True),
    ]

    def __init__(self, path: Path, *, sources: Sources | None = None, reset: bool = False) -> None:
        super().__init__()
        self.path = path
        self.sources = sources or real_sources()
        self.present: str | None = None
        self.draft: Draft | None = None
        self.judged: Judged | None = None
        self.advice: Recommended | None = None
        self.after: list[str] = []
        self.written = False
        self.step = 0
        self.examined: Examined | None = None
        self.first_key: str | None = None
        self.key_name = "office"
        self.models_folder = models_folder(path)
        self._reset = reset
        self._own: dict[str, Answer] = {}

    def on_mount(self) -> None:
        """Signals end the app as a key would, so that the terminal is restored (CFG-16)."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self.stop, number)
        self.present = present_text(self.path, reset=self._reset)
        self.go(0)

    def on_resize(self, event: Resize) -> None:
        """Shows and takes away the sentence for a window that is too small (CFG-15)."""
        self.fit(event.size)

    def fit(self, size: Size) -> None:
        """Covers the step while the window is too small; it is as it was afterwards."""
        covered = isinstance(self.screen, TooSmall)
        if is_small(size) and not covered:
            self.push_screen(TooSmall())
        elif covered and not is_small(size):
            self.pop_screen()

    def stop(self, number: int) -> None:
        """Leaves because of a signal."""
        self.after.append(f"strata-setup: ended by {signal.Signals(number).name}; {self.fate()}")
        self.exit(return_code=128 + number)

    def action_leave(self) -> None:
        """Leaves."""
        if not self.written:
            self.after.append(f"strata-setup: left; {self.fate()}")
        self.exit(int(ExitCode.OK))

    def fate(self) -> str:
        """What became of the rig."""
        return f"{self.path} is written" if self.written else f"{self.path} was not touched"

    def go(self, step: int) -> None:
        """Shows a step."""
        self.step = max(0, min(step, len(STEPS) - 1))
        screen = STEPS[self.step]()
        if len(self.screen_stack) > 1:
            self.switch_screen(screen)
        else:
            self.push_screen(screen)

    def meet(self, machine: Machine) -> None:
        """Begins, or goes on, with what was found of the machine."""
        self._plan(begin(self.path, machine, self.present, answers=tuple(self._own.values())))

    def serve(self, model: Model, *more: Answer) -> None:
        """Takes another model; the recommendation follows it."""
        if self.draft is None:
            return
        for answer in (Answer("model.path", model.path), Answer("model.draft_path", None), *more):
            self._own[answer.key] = answer
        first = tuple(answer for answer in self._own.values() if comes_first(answer.key))
        self._plan(Draft(path=self.path, present=self.present, machine=self.draft.machine, model=model, answers=first))

    def answer(self, *answers: Answer) -> None:
        """Takes answers and plans again at once."""
        if self.draft is None:
            return
        for answer in answers:
            self._own[answer.key] = answer
        if any(comes_first(answer.key) for answer in answers):
            self.serve_again()
            return
        self._judge(self.draft.answer(*answers))

    def serve_again(self) -> None:
        """The recommendation anew for the same model, as after a change of cards."""
        if self.draft is not None:
            first = tuple(answer for answer in self._own.values() if comes_first(answer.key))
            model, machine = self.draft.model, self.draft.machine
            draft = Draft(path=self.path, present=self.present, machine=machine, model=model, answers=first)
            self._plan(draft)

    def forget(self) -> None:
        """Takes the recommendation: own answers go, but for the model, and for who may reach the server."""
        kept = ("model.", "server.")
        self._own = {key: answer for key, answer in self._own.items() if key.startswith(kept)}
        self.serve_again()

    def _plan(self, first: Draft) -> None:
        self.advice = recommended(first)
        self._judge(first.answer(*self.advice.answers, *self._own.values()))

    def _judge(self, draft: Draft) -> None:
        self.draft, self.judged = draft, judged(draft)
        for screen in self.screen_stack:
            if isinstance(screen, Step):
                screen.show_plan()

    def beside(
        self,
        work: Callable[[Callable[[Any], None]], T],
        *,
        tell: Callable[[Any], None],
        done: Callable[[T], None],
        failed: Callable[[ApplianceError], None],
    ) -> None:
        """Runs slow work beside the screens; what it tells and gives arrives in the app's own turn.

        An error that is no ApplianceError is a fault of ours: it ends the app, which restores the terminal first.
        """

        def later(do: Callable[..., None], *values: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the app has left meanwhile
                self.call_later(do, *values)

        def run() -> None:
            try:
                found = work(lambda value: later(tell, value))
            except ApplianceError as error:
                later(failed, error)
            except Exception as error:
                later(_raise, error)
            else:
                later(done, found)

        self.sources.spawn(run)


def _raise(error: Exception) -> None:
    raise error
