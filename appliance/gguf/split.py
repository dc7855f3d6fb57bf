"""Which files make up a model: a single file, the parts of a split set, or a folder that holds one model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.errors import ModelFileError
from appliance.gguf.metadata import Metadata
from appliance.gguf.part import OpenedPart

_NAME: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_COMPANIONS: Final = ("mmproj", "mtp-")
_MAX_PARTS: Final = 4096


@dataclass(frozen=True)
class PartName:
    """What a file name of the form NAME-00001-of-00003.gguf says; number counts from 1."""

    stem: str
    number: int
    count: int

    def sibling(self, number: int) -> str:
        """The file name of another part of the set."""
        return f"{self.stem}-{number:05d}-of-{self.count:05d}.gguf"


def part_name(path: Path) -> PartName | None:
    """The set, number and count in a file name; None for a file not named like a part."""
    match = _NAME.fullmatch(path.name)
    return PartName(match["stem"], int(match["number"]), int(match["count"])) if match else None


def model_file(path: Path) -> Path:
    """The file to open first: the path itself, or for a folder the first part of the one model in it.

    Raises:
        ModelFileError: no such path, an empty folder, or one that holds several models.
    """
    try:
        if not path.is_dir():
            return path
        files = sorted(f for f in path.iterdir() if f.suffix.lower() == ".gguf")
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror}", hint="check model.path") from error
    models: dict[str, Path] = {}
    for file in files:
        name = part_name(file)
        models.setdefault(f"{name.stem} ({name.count} parts)" if name else file.name, file)
    own = {n: f for n, f in models.items() if not n.lower().startswith(_COMPANIONS)} or models
    if len(own) == 1:
        return next(iter(own.values()))
    if not own:
        raise ModelFileError(f"{path}: the folder holds no .gguf file; give a folder that holds one model")
    raise ModelFileError(
        f"{path}: the folder holds {len(own)} models: {', '.join(list(own)[:20])}; "
        "give the first file of the one to load"
    )


def part_count(metadata: Metadata) -> int:
    """Parts of the set as the metadata says; 1 for a single file.

    Raises:
        ModelFileError: not a possible number.
    """
    count = metadata.int_("split.count", 1)
    if not 0 <= count <= _MAX_PARTS:
        raise ModelFileError(f"{metadata.where}: metadata key split.count is {count}; 1 to {_MAX_PARTS} are possible")
    return max(count, 1)


def sibling_paths(path: Path, metadata: Metadata) -> tuple[Path, ...]:
    """All parts of the set that the file belongs to, in order.

    Args:
        path: one part, whose metadata say that there are several.
        metadata: of that part.

    Raises:
        ModelFileError: the name and the metadata disagree, or parts are missing; each is named.
    """
    count, number = part_count(metadata), metadata.int_("split.no")
    name = part_name(path)
    if name is None:
        raise ModelFileError(
            f"{path.name}: this is part {number + 1} of {count} by its metadata, so its name must end in "
            f"-{number + 1:05d}-of-{count:05d}.gguf",
            hint="give the parts their original names",
        )
    _check_name(path.name, name, metadata)
    paths = tuple(path.parent / name.sibling(n) for n in range(1, count + 1))
    missing = [p.name for p in paths if not p.exists() and p != path]
    if missing:
        shown = ", ".join(missing[:50]) + (f" and {len(missing) - 50} more" if len(missing) > 50 else "")
        raise ModelFileError(
            f"{path.name}: {len(missing)} of the {count} parts are missing in {path.parent}: {shown}",
            hint="download the missing parts into the same folder",
        )
    return tuple(path if n == name.number else p for n, p in enumerate(paths, start=1))


def check_set(parts: Sequence[OpenedPart]) -> None:
    """Checks what the parts say of each other, in part order.

    Raises:
        ModelFileError: numbers or counts that disagree, a name in two parts, or tensors missing from the total.
    """
    first = parts[0].part.metadata
    total = first.int_("split.tensors.count", None)
    owners: dict[str, str] = {}
    entries = 0
    for opened in parts:
        part = opened.part
        name = part_name(part.path)
        assert name is not None
        _check_name(part.path.name, name, part.metadata)
        stated = part.metadata.int_("split.tensors.count", total)
        if stated != total:
            raise ModelFileError(
                f"{part.path.name}: metadata key split.tensors.count is {stated} and {total} in the first part",
                hint="the parts come from different sets; download them again",
            )
        entries += len(part.header.entries)
        for entry in part.header.entries:
            other = owners.setdefault(entry.name, part.path.name)
            if other != part.path.name:
                raise ModelFileError(f"{part.path.name}: the tensor {entry.name:.80} is in {other} too")
    if total is not None and entries != total:
        raise ModelFileError(
            f"{first.where}: the {len(parts)} parts hold {entries} tensors and split.tensors.count is {total}",
            hint="the parts come from different sets; download them again",
        )


def _check_name(file: str, name: PartName, metadata: Metadata) -> None:
    count, number = part_count(metadata), metadata.int_("split.no")
    if (name.number, name.count) != (number + 1, count):
        raise ModelFileError(
            f"{file}: the name says part {name.number} of {name.count} and the metadata part {number + 1} of {count} "
            f"(split.no {number}, split.count {count})",
            hint="give the parts their original names, or download them again",
        )
