"""Owns the catalogue: the published sizes of the model with the bytes of their parts, from a data file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from appliance.errors import UsageError
from appliance.rig.problem import nearest

# How companions of a model are named, and what they are.
ROLES = (("mmproj", "vision"), ("mtp-", "draft"))
FILE = Path(__file__).parents[1] / "data" / "catalogue.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Types:
    """The usual ggml types of a size; real files vary them by layer."""

    gate_up: str
    down: str
    dense: str
    head: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """The model as it was published, which no GGUF server loads."""

    name: str
    repository: str
    parameters: int
    experts_bytes: int
    dense_bytes: int
    table_bytes: int
    estimates: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One published GGUF set.

    Attributes:
        id: short name for the command line.
        name: as its publisher calls it.
        repository, folder: where its files are.
        parts: files of the set, without the drafter.
        experts_bytes: all routed experts.
        dense_bytes: everything else but the n-gram table, the token embedding included.
        step_bytes: dense bytes that one step reads.
        table_bytes: the n-gram table.
        draft_file: path in the repository of a separate drafter, "" when there is none or it is inside.
        draft_bytes: of that file.
        estimates: keys that no source states.
    """

    id: str
    name: str
    repository: str
    folder: str
    parts: int
    experts_bytes: int
    dense_bytes: int
    step_bytes: int
    table_bytes: int
    types: Types
    draft_file: str = ""
    draft_bytes: int = 0
    estimates: tuple[str, ...] = ()

    @property
    def file_bytes(self) -> int:
        """Everything a download brings."""
        return self.experts_bytes + self.dense_bytes + self.table_bytes + self.draft_bytes


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The original and its sizes, the smallest first."""

    original: Original
    sizes: tuple[Size, ...]

    def size(self, name: str) -> Size:
        """The size of an id.

        Raises:
            UsageError: there is none; names the nearest.
        """
        for size in self.sizes:
            if size.id == name.lower():
                return size
        ids = [size.id for size in self.sizes]
        close = nearest(name, ids)
        raise UsageError(
            f"{name}: not in the catalogue, which has {', '.join(ids)}",
            hint=f"did you mean {close}?" if close else "or name a repository as OWNER/NAME",
        )


@cache
def read_catalogue(path: Path = FILE) -> Catalogue:
    """The package's own file, read once."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    sizes = sorted((_size(entry) for entry in found["size"]), key=lambda size: size.file_bytes)
    return Catalogue(Original(**_lists(found["original"])), tuple(sizes))


def _size(entry: dict[str, Any]) -> Size:
    values = _lists(entry)
    return Size(**{**values, "types": Types(**entry["types"])})


def _lists(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
