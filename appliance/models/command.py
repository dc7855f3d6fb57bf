"""Owns `strata models`: what is here, what is published, and the download of one without screens."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from appliance.errors import ExitCode
from appliance.models.catalogue import Catalogue, read_catalogue
from appliance.models.download import Progress, check_space, download, missing_bytes, target
from appliance.models.find import FoundSet, find_models
from appliance.models.place import models_folder
from appliance.models.repository import look_up, wanted
from appliance.rig.paths import find_rig
from appliance.rig.size import format_size

STEPS = 20  # lines of a download where no terminal shows one that changes


def models(arguments: argparse.Namespace) -> ExitCode:
    """Lists models, or brings one.

    Raises:
        ApplianceError: the model cannot be had; see `look_up` and `download`.
    """
    given = arguments.folder
    folder = models_folder(find_rig(None, os.environ).path) if given is None else Path(given).expanduser().absolute()
    if arguments.action == "get":
        _get(arguments.name, folder)
    else:
        print("\n".join(model_lines(folder, find_models(folder), read_catalogue())))
    return ExitCode.OK


def model_lines(folder: Path, found: tuple[FoundSet, ...], catalogue: Catalogue) -> Iterator[str]:
    """The list: the folder's sets with what is wrong with each, then the published sizes."""
    yield f"in {folder}:"
    for one in found:
        name = one.facts.name if one.facts else one.role
        wrong = "" if one.complete else f", incomplete: {one.sentence()}"
        yield f"  {one.path}  {name}, {format_size(one.size_bytes)}{wrong or (one.problem and f', {one.problem}')}"
    if not found:
        yield "  nothing"
    yield ""
    yield "published, to be downloaded with `strata models get NAME`:"
    width = max(len(size.id) for size in catalogue.sizes)
    for size in catalogue.sizes:
        yield f"  {size.id:{width}}  {format_size(size.file_bytes):>10}  {size.name} ({size.repository})"
    yield ""
    yield "any other repository of GGUF files: `strata models get OWNER/NAME` or OWNER/NAME:SIZE"


def _get(name: str, folder: Path) -> None:
    remote = look_up(wanted(name, read_catalogue()))
    check_space(remote, folder)
    left = format_size(missing_bytes(remote, folder))
    print(
        f"{remote.repository}, {remote.title}: {left} of {format_size(remote.size_bytes)} to {target(remote, folder)}"
    )
    shown = Line(sys.stderr)
    try:
        first = download(remote, folder, progress=shown.tell)
    except KeyboardInterrupt:
        shown.end()
        print("stopped; what is here stays, and the same command goes on from it", file=sys.stderr)
        raise
    shown.end()
    drafter = next((file.name for file in remote.files if file.name.lower().startswith("mtp-")), None)
    print("complete; for the rig:\n\n[model]")
    print(f'path = "{first}"')
    if drafter is not None:
        print(f'draft_path = "{first.with_name(drafter)}"')


class Line:
    """Progress on one line of a terminal; elsewhere a line for every twentieth."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._live = stream, stream.isatty()
        self._last = ""

    def tell(self, at: Progress) -> None:
        """Writes what is new."""
        share = at.set_done_bytes / max(1, at.set_total_bytes)
        number = int(share * (100 if self._live else STEPS)) * (1 if self._live else 100 // STEPS)
        line = f"{at.stage} {at.file}: {number} % of {format_size(at.set_total_bytes)}"
        if line != self._last:
            self._stream.write(f"\r{line:<{len(self._last)}}" if self._live else f"{line}\n")
            self._stream.flush()
            self._last = line

    def end(self) -> None:
        """Leaves the line."""
        if self._live and self._last:
            self._stream.write("\n")
