"""Owns the download of a set: space first, each file continued where it stopped, each checksum compared."""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.errors import DoesNotFitError, ModelFileError
from appliance.models.repository import RemoteFile, RemoteSet, hub_error
from appliance.rig.size import GIB, format_size

# The hub gives larger files through Xet only, which begins anew after an interruption.
PLAIN_BYTES = 50 * 10**9
PART = ".part"
HEADROOM_BYTES = GIB
READ_BYTES = 8 * 1024**2


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a download is.

    Attributes:
        file: name of the file at work.
        stage: "download" or "checksum".
        done_bytes, total_bytes: of that file.
        set_done_bytes, set_total_bytes: of the set, downloads only.
    """

    file: str
    stage: str
    done_bytes: int
    total_bytes: int
    set_done_bytes: int
    set_total_bytes: int


Tell = Callable[[Progress], None]


def target(wanted: RemoteSet, folder: Path) -> Path:
    """The folder of a set below the models' folder: the repository's name and the set's."""
    return folder / wanted.repository.rpartition("/")[2] / Path(wanted.title).name


def missing_bytes(wanted: RemoteSet, folder: Path) -> int:
    """What is still to be downloaded into the models' folder."""
    place = target(wanted, folder)
    return sum(max(0, file.size_bytes - _have(place, file)) for file in wanted.files)


def check_space(wanted: RemoteSet, folder: Path, *, free_bytes: int | None = None) -> None:
    """Refuses before the first byte when the disk cannot hold the rest (CFG-20).

    Args:
        wanted: the set.
        folder: the models' folder.
        free_bytes: of its disk; asked when None.

    Raises:
        DoesNotFitError: names needed and free.
    """
    place = folder
    while not place.is_dir() and place != place.parent:
        place = place.parent
    free = shutil.disk_usage(place).free if free_bytes is None else free_bytes
    need = missing_bytes(wanted, folder)
    if need + HEADROOM_BYTES > free:
        raise DoesNotFitError(
            f"{folder}: {wanted.title} needs {format_size(need)} more and {format_size(HEADROOM_BYTES)} to spare; "
            f"{format_size(free)} are free",
            hint="free some space, choose a smaller size, or another folder",
        )


def download(
    wanted: RemoteSet,
    folder: Path,
    *,
    endpoint: str | None = None,
    token: str | None = None,
    progress: Tell = lambda found: None,
) -> Path:
    """Brings the set; may be called again after any interruption and goes on.

    Args:
        wanted: the set.
        folder: the models' folder.
        endpoint: the hub; $HF_ENDPOINT, then the public one when None.
        token: the client's own when None.
        progress: told about every block; what it raises stops the download, and what is there stays.

    Returns:
        The first part, for the rig.

    Raises:
        DoesNotFitError: too little space.
        ModelFileError: the hub failed, or a file is not what the hub says; says which.
    """
    check_space(wanted, folder)
    place = target(wanted, folder)
    place.mkdir(parents=True, exist_ok=True)
    done = 0
    for file in wanted.files:
        whole = place / file.name
        if not (whole.exists() and whole.stat().st_size == file.size_bytes):
            _bring(wanted, file, place, endpoint, token, _Counting(progress, wanted, file, done))
        done += file.size_bytes
    return place / wanted.files[0].name


def _bring(
    wanted: RemoteSet, file: RemoteFile, place: Path, endpoint: str | None, token: str | None, tell: _Counting
) -> None:
    part = place / (file.name + PART)
    try:
        _fetch(wanted, file, part, endpoint or os.environ.get("HF_ENDPOINT"), token, tell)
    except Exception as error:  # the client's own errors and those of its transport
        if error is tell.raised:
            raise
        raise hub_error(error, wanted.repository) from error
    found = part.stat().st_size
    if found != file.size_bytes:
        raise ModelFileError(
            f"{part}: has {found} bytes and the hub says {file.size_bytes}", hint="delete it and start again"
        )
    if file.sha256 is not None and (sha256 := _checksum(part, tell)) != file.sha256:
        part.unlink()
        raise ModelFileError(
            f"{file.name}: its checksum is {sha256} and the hub says {file.sha256}; the file was deleted",
            hint="start the download again; if it happens twice, check disk and RAM",
        )
    part.replace(place / file.name)


def _fetch(
    wanted: RemoteSet, file: RemoteFile, part: Path, endpoint: str | None, token: str | None, tell: _Counting
) -> None:
    from huggingface_hub import hf_hub_download, hf_hub_url
    from huggingface_hub.file_download import http_get

    utils: Any = importlib.import_module("huggingface_hub.utils")

    have = part.stat().st_size if part.exists() else 0
    if have > file.size_bytes:
        part.unlink()
        have = 0
    if not have and file.size_bytes > PLAIN_BYTES:
        found = hf_hub_download(
            wanted.repository,
            file.path,
            revision=wanted.revision,
            local_dir=part.parent / ".download",
            endpoint=endpoint,
            token=token,
            tqdm_class=tell.bar(0),
        )
        Path(found).replace(part)
        shutil.rmtree(part.parent / ".download", ignore_errors=True)
        return
    url = hf_hub_url(wanted.repository, file.path, revision=wanted.revision, endpoint=endpoint)
    with part.open("ab") as stream:
        stream.seek(0, os.SEEK_END)
        http_get(
            url,
            stream,
            resume_size=have,
            headers=utils.build_hf_headers(token=token),
            expected_size=file.size_bytes,
            displayed_filename=file.name,
            tqdm_class=tell.bar(have),
        )


def _checksum(path: Path, tell: _Counting) -> str:
    digest, done = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as stream:
        while block := stream.read(READ_BYTES):
            digest.update(block)
            done += len(block)
            tell.at("checksum", done)
    return digest.hexdigest()


def _have(place: Path, file: RemoteFile) -> int:
    for name in (file.name, file.name + PART):
        if (place / name).exists():
            return (place / name).stat().st_size
    return 0


class _Counting:
    """Turns the client's progress bar into our progress."""

    def __init__(self, tell: Tell, wanted: RemoteSet, file: RemoteFile, before: int) -> None:
        self._tell, self._file = tell, file
        self._before, self._total = before, wanted.size_bytes
        self.raised: Exception | None = None

    def at(self, stage: str, done: int) -> None:
        """Tells."""
        file = self._file
        set_done = self._before + (done if stage == "download" else file.size_bytes)
        try:
            self._tell(Progress(file.name, stage, done, file.size_bytes, set_done, self._total))
        except Exception as error:  # the caller wants to stop; not to be taken for the hub's failure
            self.raised = error
            raise

    def bar(self, have: int) -> Any:
        """A bar class for the client, which draws nothing and counts from what is there already."""
        tqdm: Any = importlib.import_module("huggingface_hub.utils").tqdm
        counting = self

        class Bar(tqdm):  # type: ignore[misc]  # the client's own bar, known at run time only
            def __init__(self, *arguments: Any, **options: Any) -> None:
                super().__init__(*arguments, **{**options, "disable": True})
                self.seen = have

            def update(self, n: float | None = 1) -> None:
                self.seen += int(n or 0)
                counting.at("download", self.seen)

        return Bar
