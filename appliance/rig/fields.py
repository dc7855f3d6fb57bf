"""Owns the vocabulary the schema is written in: what every key carries beside its type."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

Auto = Literal["auto"]


class Table(BaseModel):
    """A table of rig.toml: frozen, typed strictly, unknown keys refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """What the schema says of one key.

    Attributes:
        says: one sentence.
        allowed: what is accepted, in words.
        example: a value as TOML writes it.
        only: the values this version honours; None for all that are allowed.
        on_card: those it honours where a card computes, instead of `only`; empty for all that are allowed.
    """

    says: str
    allowed: str
    example: str
    only: tuple[object, ...] | None
    on_card: tuple[object, ...] | None = None

    def honoured(self, *, card: bool) -> tuple[object, ...] | None:
        """The values that are honoured on the CPU or on a card; None for all that are allowed."""
        if card and self.on_card is not None:
            return self.on_card or None
        return self.only


def key(
    default: Any,
    says: str,
    *,
    allowed: str,
    example: str,
    only: tuple[object, ...] | None = None,
    on_card: tuple[object, ...] | None = None,
) -> Any:
    """A key of a table.

    `only` names the values this version can honour; every other allowed value is refused as "not available in this
    version" and not ignored. `on_card` takes its place where a card computes; empty: everything that is allowed.
    """
    extra: dict[str, Any] = {"allowed": allowed, "example": example}
    if only is not None:
        extra["only"] = list(only)
    if on_card is not None:
        extra["on_card"] = list(on_card)
    return Field(default=default, description=says, json_schema_extra=extra)


def facts(field: FieldInfo) -> KeyFacts:
    """Reads back what `key` stored."""
    extra = cast("dict[str, Any]", field.json_schema_extra or {})
    only, on_card = extra.get("only"), extra.get("on_card")
    return KeyFacts(
        says=field.description or "",
        allowed=extra.get("allowed", ""),
        example=extra.get("example", ""),
        only=None if only is None else tuple(only),
        on_card=None if on_card is None else tuple(on_card),
    )


def _no_space(value: str) -> str:
    if not value or value != value.strip() or any(ord(character) < 32 for character in value):
        raise PydanticCustomError("text", "it is empty, or begins or ends with a space")
    return value


def _no_repeat(value: tuple[Any, ...]) -> tuple[Any, ...]:
    if not value:
        raise PydanticCustomError("list", "the list is empty")
    if len(set(value)) != len(value):
        raise PydanticCustomError("list", "it names something twice")
    return value


def _host(value: str) -> str:
    if value.startswith("[") or "://" in value or "/" in value:
        raise PydanticCustomError("host", "write the address alone, without brackets, scheme or path")
    return value


def _origin(value: str) -> str:
    if value == "*" or not re.fullmatch(r"https?://[^/\s]+", value):
        raise PydanticCustomError("origin", "an origin is scheme and host, such as https://chat.example, and never *")
    return value


Text = Annotated[str, AfterValidator(_no_space)]
Host = Annotated[Text, AfterValidator(_host)]
Origin = Annotated[Text, AfterValidator(_origin)]
CardIndex = Annotated[int, Field(ge=0, le=63)]
CardUuid = Annotated[str, Field(pattern=r"^(GPU|MIG)-[0-9A-Za-z/-]+$")]
CardList = Annotated[tuple[CardIndex | CardUuid, ...], AfterValidator(_no_repeat)]
