"""Owns a key of the rig as a question: its sentence from the schema, what this version honours, text to value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from appliance.rig.describe import value_text
from appliance.rig.fields import facts
from appliance.rig.schema import TABLES
from appliance.rig.sources import Values, add_flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a screen says of one key.

    Attributes:
        key: dotted, such as "serving.parallel".
        says, allowed, example: the schema's own words.
        choices: the words it may be, () when it takes more than words.
        default: as TOML writes it, "" for none.
    """

    key: str
    says: str
    allowed: str
    example: str
    choices: tuple[str, ...]
    default: str

    def help(self) -> str:
        """The field's help."""
        return f"{self.key}: {self.says} Allowed: {self.allowed}."


@dataclass(frozen=True, slots=True)
class Option:
    """One choice; one that this version cannot honour is shown with the reason and cannot be taken."""

    value: str
    available: bool

    def label(self) -> str:
        """The choice in words, without colour."""
        return self.value if self.available else f"{self.value} - not available in this version"


def question(key: str) -> Question:
    """The question of a dotted key of the schema."""
    table_name, _, name = key.partition(".")
    table = TABLES[table_name]
    field = table.model_fields[name]
    known = facts(field)
    return Question(
        key=key,
        says=known.says,
        allowed=known.allowed,
        example=known.example,
        choices=_words(field.annotation),
        default="" if field.default is None else value_text(table, name, field.default).strip('"'),
    )


def options(key: str, *, card: bool) -> tuple[Option, ...]:
    """The choices of a key on the CPU or on a card."""
    table_name, _, name = key.partition(".")
    honoured = facts(TABLES[table_name].model_fields[name]).honoured(card=card)
    return tuple(Option(word, honoured is None or word in honoured) for word in question(key).choices)


def available(key: str, *, card: bool) -> bool:
    """Whether anything but the default may be chosen in this version."""
    table_name, _, name = key.partition(".")
    honoured = facts(TABLES[table_name].model_fields[name]).honoured(card=card)
    return honoured is None or len(honoured) > 1


def parse(key: str, text: str) -> Any:
    """What was typed as TOML reads it, else the text itself; None for nothing. The rig's own rules judge it later."""
    text = text.strip()
    if not text:
        return None
    values = Values()
    add_flags([(key, key, text)], values)
    table, _, name = key.partition(".")
    return values.tree.get(table, {}).get(name)


def _words(annotation: Any) -> tuple[str, ...]:
    """The words of a type made of nothing but literals; true and false are words too."""
    if annotation is bool:
        return ("true", "false")
    if get_origin(annotation) is Literal:
        return tuple(str(word) for word in get_args(annotation))
    parts = [_words(part) for part in get_args(annotation)]
    return tuple(word for part in parts for word in part) if parts and all(parts) else ()
