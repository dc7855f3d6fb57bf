"""Owns sizes: "14.5 GiB" in rig.toml, bytes in the program."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

KIB, MIB, GIB, TIB = 1024, 1024**2, 1024**3, 1024**4

UNITS: dict[str, int] = {
    "b": 1,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def parse_size(value: object) -> int:
    """Bytes of a size such as "14.5 GiB".

    Raises:
        PydanticCustomError: a bare number, an unknown unit, anything that is not text.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise PydanticCustomError("size", 'which unit? a size is text with a unit, such as "14.5 GiB"')
    if not isinstance(value, str):
        raise PydanticCustomError("size", 'a size is text with a unit, such as "14.5 GiB"')
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        bare = re.fullmatch(r"[\d.]+", value.strip())
        raise PydanticCustomError("size", "which unit? write GiB or MiB" if bare else 'write it as "14.5 GiB"')
    factor = UNITS.get(match[2].lower())
    if factor is None:
        raise PydanticCustomError("size", "which unit? it knows B, KiB, MiB, GiB, TiB, KB, MB, GB and TB")
    return round(float(match[1]) * factor)


def format_size(size_bytes: int) -> str:
    """The largest binary unit that keeps the number readable, such as "14.5 GiB"."""
    for name, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(size_bytes) >= factor:
            return f"{size_bytes / factor:.2f}".rstrip("0").rstrip(".") + f" {name}"
    return f"{size_bytes} B"


Size = Annotated[int, BeforeValidator(parse_size, json_schema_input_type=str)]
