"""Owns the step of access: this machine or the office, keys, the port."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import Input, Label

from appliance.rig.rules import is_loopback
from setup_wizard.draft import Answer, Draft
from setup_wizard.fields import question
from setup_wizard.screens.base import Step
from setup_wizard.screens.widgets import Choice, Line, Row

KEYS = "keys.json"
LINES = ("server.port", "server.keys_file", "server.allowed_hosts", "server.cors_origins")


class AccessStep(Step):
    """Who may reach the server."""

    NUMBER, NAME = 6, "access"
    ABOUT: ClassVar[str] = "Who may reach the server."
    PLANS: ClassVar[bool] = True

    def body(self) -> Iterable[Widget]:
        """Who, then where."""
        draft = self.setup.draft
        if draft is None:
            return
        yield Choice("access", rows(draft), chosen(draft), help_words=question("server.host").help())
        for key in LINES:
            yield Line(key, draft.value(key))
        with Horizontal(classes="row"):
            yield Label("name of the first key")
            yield Input(value=self.setup.key_name, id="key-name", compact=True)

    def on_choice_chosen(self, event: Choice.Chosen) -> None:
        """Takes the access as the keys that make it."""
        draft = self.setup.draft
        if draft is not None:
            self.setup.answer(*answers(draft, str(event.row.value)))
            self.setup.go(self.setup.step)

    def on_input_changed(self, event: Input.Changed) -> None:
        """The first key's name, which is no key of the rig."""
        if event.input.id == "key-name":
            self.setup.key_name = event.value


def rows(draft: Draft) -> list[Row]:
    """Ways of access; in the image the published port decides who reaches it."""
    if draft.machine.image:
        return [
            Row("loopback", "without keys: whoever reaches the published port, as shipped this machine only"),
            Row("keys", "with keys: before the port is published to the office"),
        ]
    return [
        Row("loopback", "this machine only, without keys"),
        Row("keys", "the office, with API keys"),
        Row("open", "the office, without keys: anybody in the network may ask"),
    ]


def chosen(draft: Draft) -> str:
    """The way that the draft has now."""
    if draft.value("server.keys_file") is not None:
        return "keys"
    if draft.machine.image or is_loopback(str(draft.value("server.host") or "127.0.0.1")):
        return "loopback"
    return "open"


def answers(draft: Draft, way: str) -> tuple[Answer, ...]:
    """The way as keys of the rig."""
    beyond = way != "loopback" or draft.machine.image
    file = draft.value("server.keys_file") or KEYS
    host = draft.value("server.host")
    kept = isinstance(host, str) and is_loopback(host) != beyond  # an address of one's own stays
    return (
        Answer("server.host", host if kept else "0.0.0.0" if beyond else "127.0.0.1"),
        Answer("server.keys_file", file if way == "keys" else None),
        Answer("server.open", True if beyond and way != "keys" else None),
    )
