"""Owns the fields of the screens: a line to type, a choice by marks, the boundary between cards; all by keyboard."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from textual.containers import Horizontal
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, Label, OptionList
from textual.widgets.option_list import Option

from appliance.rig.problem import found_text
from setup_wizard.fields import options, parse, question


class Answered(Message):
    """A key was answered."""

    def __init__(self, key: str, value: Any) -> None:
        super().__init__()
        self.key, self.value = key, value


class Helped:
    """A widget that has help; the schema's own sentence where it stands for a key."""

    help_words: str = ""


class KeyInput(Input, Helped):
    """What is typed for a key."""

    def __init__(self, key: str, value: Any, *, why_not: str = "") -> None:
        asked = question(key)
        super().__init__(
            value=shown(value),
            placeholder=why_not or asked.default or "none",
            id=key.replace(".", "-"),
            compact=True,
            disabled=bool(why_not),
        )
        self.key = key
        self.help_words = asked.help()
        self._last = self.value

    def on_input_changed(self, event: Input.Changed) -> None:
        """Every letter plans anew."""
        event.stop()
        if event.value != self._last:
            self._last = event.value
            self.post_message(Answered(self.key, parse(self.key, event.value)))


class Line(Horizontal):
    """A key's name and what is typed for it."""

    def __init__(self, key: str, value: Any, *, why_not: str = "") -> None:
        super().__init__(classes="row")
        self._key, self._value, self._why_not = key, value, why_not

    def compose(self) -> Iterable[Widget]:
        """Name and field."""
        yield Label(self._key)
        yield KeyInput(self._key, self._value, why_not=self._why_not)


@dataclass(frozen=True, slots=True)
class Row:
    """One choice: what it stands for, its words, and why it cannot be taken ("" when it can)."""

    value: Any
    words: str
    why_not: str = ""

    def label(self) -> str:
        """Its words, with the reason."""
        return f"{self.words} - {self.why_not}" if self.why_not else self.words


class Choice(OptionList, Helped):
    """Rows with marks: `(x)` is chosen, `>` is at hand."""

    class Chosen(Message):
        """A row was taken."""

        def __init__(self, choice: Choice, row: Row) -> None:
            super().__init__()
            self.choice, self.row = choice, row

    def __init__(self, name: str, rows: Sequence[Row], value: Any, *, help_words: str = "") -> None:
        super().__init__(id=name.replace(".", "-"), compact=True, markup=False)
        self.rows: tuple[Row, ...] = tuple(rows)
        self.value = value
        self.help_words = help_words

    def on_mount(self) -> None:
        """Fills the list."""
        self.fill(self.rows, self.value)

    def fill(self, rows: Sequence[Row], value: Any) -> None:
        """Other rows."""
        self.rows, self.value = tuple(rows), value
        self.clear_options()
        self.add_options(Option(self._marked(number), disabled=bool(row.why_not)) for number, row in enumerate(rows))
        chosen = next((n for n, row in enumerate(rows) if row.value == value and not row.why_not), None)
        if chosen is not None:
            self.highlighted = chosen

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Moves the mark."""
        event.stop()
        self._mark()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Takes a row."""
        event.stop()
        self.value = self.take(event.option_index)
        self._mark()
        self.post_message(self.Chosen(self, self.rows[event.option_index]))

    def take(self, number: int) -> Any:
        """The value once a row was taken."""
        return self.rows[number].value

    def mark(self, row: Row) -> str:
        """What stands in the brackets before a row."""
        return "x" if row.value == self.value else " "

    def _mark(self) -> None:
        for number in range(len(self.rows)):
            self.replace_option_prompt_at_index(number, self._marked(number))

    def _marked(self, number: int) -> str:
        row = self.rows[number]
        return f"{'>' if number == self.highlighted else ' '} ({self.mark(row)}) {row.label()}"


class KeyChoice(Choice):
    """The words a key may be; those this version cannot honour are shown as such and cannot be taken."""

    def __init__(self, key: str, value: Any, *, card: bool) -> None:
        asked = question(key)
        rows = [
            Row(parse(key, one.value), one.value, "" if one.available else "not available in this version")
            for one in options(key, card=card)
        ]
        default = parse(key, asked.default) if value is None else value
        super().__init__(key, rows, default, help_words=asked.help())
        self.key = key

    def on_choice_chosen(self, event: Choice.Chosen) -> None:
        """An answer like any other."""
        event.stop()
        self.post_message(Answered(self.key, event.row.value))


def shown(value: Any) -> str:
    """A value as it is typed."""
    return "" if value is None else value if isinstance(value, str) else found_text(value)
