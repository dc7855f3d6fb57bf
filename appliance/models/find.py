"""Owns finding GGUF sets below a folder: what is complete, what is missing, what is only partly there."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import ModelFileError
from appliance.gguf.reader import open_set
from appliance.gguf.split import PartName, part_name
from appliance.model import architecture
from appliance.model.qwen4exp.footprint import ngram_bytes
from appliance.model.qwen4exp.spec import ModelSpec, read_spec
from appliance.models.catalogue import ROLES

DEPTH = 4  # OWNER/NAME/SIZE/file, as the hub's clients write it
UNFINISHED = (".part", ".partial", ".incomplete", ".tmp", ".crdownload", ".aria2", ".download")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderFacts:
    """What the header of a complete model says.

    Attributes:
        experts_bytes: routed experts, as stored.
        dense_bytes: everything else, the n-gram table not counted.
        table_bytes: the n-gram table.
    """

    name: str
    size_label: str
    layers: int
    context_tokens: int
    has_draft: bool
    draft_note: str | None
    experts_bytes: int
    dense_bytes: int
    table_bytes: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSet:
    """One set of files.

    Attributes:
        path: the file to name in the rig: the first part.
        role: "model", "draft" or "vision".
        present: files that are whole, as far as names and headers tell.
        missing: names of parts that are not there at all.
        partial: names of parts that are only begun, or cut short.
        size_bytes: of what is present.
        facts: from the header; None for an incomplete set, another role, or a file we cannot read.
        problem: why it cannot be served, "" when it can.
    """

    path: Path
    role: str
    present: tuple[Path, ...]
    missing: tuple[str, ...]
    partial: tuple[str, ...]
    size_bytes: int
    facts: HeaderFacts | None = None
    problem: str = ""

    @property
    def complete(self) -> bool:
        """Whether every file is there."""
        return not self.missing and not self.partial

    def sentence(self) -> str:
        """What is there and what is not, in one line."""
        parts = [f"{len(self.present)} present"]
        parts += [f"missing {', '.join(self.missing)}"] if self.missing else []
        parts += [f"partial {', '.join(self.partial)}"] if self.partial else []
        return f"{self.path.name}: {'; '.join(parts)}" if not self.complete else f"{self.path.name}: complete"


def find_models(folder: Path, *, progress: Callable[[str], None] = lambda line: None) -> tuple[FoundSet, ...]:
    """Every set below the folder, complete ones first, by name. Reads headers only.

    Args:
        folder: searched to a depth of four.
        progress: told which file is opened.
    """
    found = [_with_facts(found, progress) for found in _sets(folder)]
    return tuple(sorted(found, key=lambda one: (not one.complete, bool(one.problem), str(one.path))))


def require_complete(found: FoundSet) -> None:
    """Does nothing for a set that can be served.

    Raises:
        ModelFileError: it is incomplete, or its header is refused; a rig must not point at it (CFG-20).
    """
    if not found.complete:
        raise ModelFileError(f"{found.sentence()}: the set is incomplete", hint="finish the download first")
    if found.problem:
        raise ModelFileError(found.problem)


def _sets(folder: Path) -> Iterator[FoundSet]:
    groups: dict[tuple[Path, str], dict[str, Path | None]] = {}
    for path in _walk(folder, DEPTH):
        whole, unfinished = _name(path)
        if whole is None:
            continue
        name = part_name(Path(whole))
        key = (path.parent, f"{name.stem}/{name.count}" if name else whole)
        files = groups.setdefault(key, {})
        if unfinished:
            files.setdefault(whole, None)
        else:
            files[whole] = path
    for (parent, _), files in groups.items():
        yield _group(parent, files)


def _group(parent: Path, files: dict[str, Path | None]) -> FoundSet:
    name = next((found for found in map(part_name, map(Path, files)) if found), None)
    wanted = _siblings(name) if name else list(files)
    present = tuple(path for whole in wanted if (path := files.get(whole)) is not None)
    return FoundSet(
        path=parent / wanted[0],
        role=next((role for prefix, role in ROLES if wanted[0].lower().startswith(prefix)), "model"),
        present=present,
        missing=tuple(whole for whole in wanted if whole not in files),
        partial=tuple(whole for whole in wanted if whole in files and files[whole] is None),
        size_bytes=sum(path.stat().st_size for path in present),
    )


def _siblings(name: PartName) -> list[str]:
    return [name.sibling(number) for number in range(1, name.count + 1)]


def _name(path: Path) -> tuple[str | None, bool]:
    """(name of the finished file, whether this one is unfinished); None for what is no GGUF."""
    if path.suffix.lower() == ".gguf":
        return path.name, False
    if path.suffix.lower() in UNFINISHED and Path(path.stem).suffix.lower() == ".gguf":
        return path.stem, True
    return None, False


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.is_dir() and depth and not entry.name.startswith("."):
            yield from _walk(entry, depth - 1)
        elif entry.is_file():
            yield entry


def _with_facts(found: FoundSet, progress: Callable[[str], None]) -> FoundSet:
    if not found.complete or found.role != "model":
        return found
    progress(f"reading the header of {found.path.name}")
    try:
        return dataclasses.replace(found, facts=header_facts(found.path))
    except ModelFileError as error:
        cut = [path.name for path in found.present if path.name in error.message and "ends" in error.message]
        return dataclasses.replace(found, problem=str(error), partial=tuple(cut))


def header_facts(path: Path) -> HeaderFacts:
    """What a complete model's header says.

    Raises:
        ModelFileError: it cannot be served.
    """
    model = open_set(path)
    with contextlib.closing(model):
        architecture(model.metadata)
        return facts_of(read_spec(model))


def facts_of(spec: ModelSpec) -> HeaderFacts:
    """The same from a spec that is at hand."""
    experts = sum(tensor.byte_count for name, tensor in spec.tensors.items() if "_exps." in name)
    everything = sum(tensor.byte_count for tensor in spec.tensors.values())
    return HeaderFacts(
        name=spec.name,
        size_label=spec.size_label,
        layers=spec.trunk_layers,
        context_tokens=spec.context_tokens,
        has_draft=spec.has_draft,
        draft_note=spec.draft_note,
        experts_bytes=experts,
        dense_bytes=everything - experts - ngram_bytes(spec),
        table_bytes=ngram_bytes(spec),
        warnings=spec.warnings,
    )
