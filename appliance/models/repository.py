"""Owns what a repository on the hub offers: its GGUF sets with sizes and checksums, and the one that was meant."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.errors import ModelFileError, UsageError
from appliance.gguf.split import part_name
from appliance.models.catalogue import ROLES, Catalogue, Size
from appliance.rig.problem import first_line

REPOSITORY = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(?::(?P<tag>[\w.-]+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """One file of a repository.

    Attributes:
        path: inside the repository.
        size_bytes: as the hub says.
        sha256: of its content; None for a small file that the hub keeps in git.
    """

    path: str
    size_bytes: int
    sha256: str | None

    @property
    def name(self) -> str:
        """Its last part."""
        return Path(self.path).name


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSet:
    """The files of one model.

    Attributes:
        repository, revision: where they are, and the commit that is meant.
        title: what distinguishes the set within its repository.
        files: the parts in order, then a separate drafter.
    """

    repository: str
    revision: str
    title: str
    files: tuple[RemoteFile, ...]

    @property
    def size_bytes(self) -> int:
        """All files together."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What somebody asked for: a repository, the set in it ("" when it holds one), and a drafter beside it."""

    repository: str
    tag: str = ""
    draft_file: str = ""


def wanted(name: str, catalogue: Catalogue) -> Wanted:
    """Reads a catalogue id, OWNER/NAME or OWNER/NAME:SIZE.

    Raises:
        UsageError: none of them.
    """
    match = REPOSITORY.fullmatch(name.removeprefix("https://huggingface.co/").strip("/"))
    if match is not None:
        return Wanted(repository=match["name"], tag=match["tag"] or "")
    size: Size = catalogue.size(name)
    return Wanted(repository=size.repository, tag=size.folder, draft_file=size.draft_file)


def look_up(want: Wanted, *, endpoint: str | None = None, token: str | None = None) -> RemoteSet:
    """Asks the hub for the set; downloads nothing.

    Args:
        want: what is meant.
        endpoint: the hub; $HF_ENDPOINT, then the public one when None.
        token: for private and gated repositories; the client's own ($HF_TOKEN, or its login) when None.

    Raises:
        ModelFileError: the hub, the repository or the set cannot be had; says why.
        UsageError: several sets, and none was named.
    """
    info = _info(want.repository, endpoint, token)
    files = tuple(
        RemoteFile(
            path=entry.rfilename, size_bytes=int(entry.size or 0), sha256=entry.lfs.sha256 if entry.lfs else None
        )
        for entry in info.siblings or ()
        if entry.rfilename.lower().endswith(".gguf")
    )
    title, chosen = _choose(want, files)
    draft = [file for file in files if file.path == want.draft_file]
    if want.draft_file and not draft:
        raise ModelFileError(f"{want.repository}: the drafter {want.draft_file} is not there any more")
    return RemoteSet(repository=want.repository, revision=str(info.sha), title=title, files=(*chosen, *draft))


def _info(repository: str, endpoint: str | None, token: str | None) -> Any:
    from huggingface_hub import HfApi

    api = HfApi(endpoint=endpoint or os.environ.get("HF_ENDPOINT"), token=token)
    try:
        return api.model_info(repository, files_metadata=True, timeout=20)
    except Exception as error:  # the client's own errors and those of its transport
        raise hub_error(error, repository) from error


def hub_error(error: Exception, repository: str) -> ModelFileError:
    """The client's errors in our words."""
    kind = type(error).__name__
    if kind == "GatedRepoError":
        return ModelFileError(
            f"{repository}: its publisher wants to be asked first",
            hint="accept the terms on its page, and set HF_TOKEN",
        )
    if kind in ("RepositoryNotFoundError", "RevisionNotFoundError", "EntryNotFoundError", "RemoteEntryNotFoundError"):
        return ModelFileError(
            f"{repository}: the hub has no such repository or file, or not for this token",
            hint="check the name; for a private one set HF_TOKEN",
        )
    if kind == "OfflineModeIsEnabled":
        return ModelFileError(
            f"{repository}: downloads are switched off here (HF_HUB_OFFLINE)", hint="download on the host instead"
        )
    return ModelFileError(
        f"{repository}: the hub cannot be reached or failed: {first_line(error)}",
        hint="check the network, HF_ENDPOINT and the proxy; what is downloaded already is kept",
    )


def _choose(want: Wanted, files: Sequence[RemoteFile]) -> tuple[str, tuple[RemoteFile, ...]]:
    """The one model set that is meant, its parts in order and all there."""
    sets: dict[str, list[RemoteFile]] = {}
    for file in files:
        if not file.name.lower().startswith(tuple(prefix for prefix, _ in ROLES)):
            path = Path(file.path)
            part = part_name(path)
            sets.setdefault(str(path.parent / (part.stem if part else path.stem)), []).append(file)
    fitting = {title: found for title, found in sets.items() if _fits(title, want.tag)}
    names = ", ".join(sorted(sets)) or "none"
    if not fitting:
        raise ModelFileError(f"{want.repository}: no GGUF set {want.tag or 'at all'}; it has: {names}")
    if len(fitting) > 1:
        raise UsageError(
            f"{want.repository}: {len(fitting)} GGUF sets fit: {', '.join(sorted(fitting))}",
            hint=f"name one, as {want.repository}:SIZE",
        )
    ((title, found),) = fitting.items()
    found.sort(key=lambda file: file.path)
    part = part_name(Path(found[0].path))
    if part is not None and len(found) != part.count:
        raise ModelFileError(f"{want.repository}: {title} has {len(found)} of its {part.count} parts on the hub")
    return title, tuple(found)


def _fits(title: str, tag: str) -> bool:
    """Whether a size is meant: a folder of that name, or a file name that ends in it."""
    parts = title.lower().split("/")
    tag = tag.lower()
    return not tag or tag in parts or parts[-1].endswith((f"-{tag}", f".{tag}", f"_{tag}"))
