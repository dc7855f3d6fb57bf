"""Owns `strata-setup` without screens: --auto fills in what is missing, --answers gives the rig of the screens."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

from appliance.errors import RigError, UsageError
from appliance.models.find import find_models, require_complete
from appliance.rig.load import load_text
from appliance.rig.machine import Machine
from appliance.rig.migrate import migrate, older_schema
from appliance.rig.paths import read_rig_text
from appliance.rig.schema import BUILTIN, SCHEMA, TABLES
from appliance.rig.write import render
from setup_wizard.draft import Answer, Draft
from setup_wizard.finish import OVERRIDE, finish
from setup_wizard.models import read_model
from setup_wizard.recommend import recommended

__all__ = ["OVERRIDE", "begin", "comes_first", "read_answers", "set_up", "set_up_with"]


def set_up(path: Path, machine: Machine, *, reset: bool, say: Callable[[str], None]) -> None:
    """Writes a rig that `strata check` accepts.

    On an existing rig no key changes that is there already, comments stay, and [machine] is measured anew. Nothing is
    written unless the result was checked against this machine and the model.

    Args:
        path: the rig.
        machine: what was measured.
        reset: start anew instead; the earlier file is kept as a backup.
        say: prints a line.

    Raises:
        ApplianceError: the present rig is not valid, the result does not fit, or the place cannot be written.
    """
    present = present_text(path, reset=reset)
    if present is not None:
        older = load_text(present, path=path).migrated_from
        if older is not None:
            say(f"{path} is of schema {older} and becomes schema {SCHEMA}")
    finish(path, render(present, machine), machine, say=say)


def set_up_with(
    path: Path, machine: Machine, answers: tuple[Answer, ...], *, reset: bool, say: Callable[[str], None]
) -> None:
    """Writes what the screens would with these answers, the recommendation for what they leave open.

    Raises:
        ApplianceError: see `set_up`; an incomplete model too (CFG-20).
    """
    draft = begin(path, machine, present_text(path, reset=reset), answers=answers)
    chosen = draft.model.path
    if chosen != BUILTIN:
        where = path.parent / Path(chosen).expanduser()
        for found in find_models(where.parent if where.suffix == ".gguf" else where):
            if found.path == where or found.path.parent == where:
                require_complete(found)
    text = draft.answer(*recommended(draft).answers, *answers).text()
    finish(path, text, machine, say=say)


def begin(path: Path, machine: Machine, present: str | None, *, answers: tuple[Answer, ...] = ()) -> Draft:
    """The draft before anything was asked: the present rig's model, or the answers'.

    Raises:
        RigError: the present rig is not TOML, so that nothing of it could be kept.
    """
    tree = {} if present is None else _tree(present, path)
    stated = tree.get("model", {})
    named = {answer.key: answer.value for answer in answers}
    chosen = named.get("model.path", stated.get("path", BUILTIN))
    drafter = named.get("model.draft_path", stated.get("draft_path"))
    model = read_model(str(chosen), folder=path.parent, draft_path=None if drafter is None else str(drafter))
    first = tuple(answer for answer in answers if comes_first(answer.key))
    return Draft(path=path, present=present, machine=machine, model=model, answers=first)


def comes_first(key: str) -> bool:
    """Whether the recommendation follows from a key: the model and the cards."""
    return key.startswith("model.") or key == "cards.devices"


def read_answers(path: Path) -> tuple[Answer, ...]:
    """The answers of a file, which has the rig's own tables and keys.

    Raises:
        RigError: it cannot be read, or names what no rig has.
        UsageError: it answers what is measured.
    """
    text = read_rig_text(path)
    load_text(text, path=path)  # for the sentences; what it states stays as it is written
    tree = tomllib.loads(text)
    if "machine" in tree:
        raise UsageError(f"{path}: [machine] is measured, not answered", hint="take the table out")
    return tuple(
        Answer(f"{table}.{key}", value) for table in TABLES if table in tree for key, value in tree[table].items()
    )


def present_text(path: Path, *, reset: bool = False) -> str | None:
    """The rig that is there; an empty file, as an editor or a mount leaves it, is a rig not yet written."""
    if reset or not path.exists() or (path.is_file() and path.stat().st_size == 0):
        return None
    return read_rig_text(path)


def _tree(text: str, path: Path) -> dict[str, dict[str, object]]:
    try:
        tree = tomllib.loads(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        raise RigError(
            f"{path}: not TOML: {error}", hint="correct it, or start anew with strata-setup --auto --reset"
        ) from error
    older = older_schema(tree)
    if older is not None:
        migrate(tree, older)
    return {name: table for name, table in tree.items() if isinstance(table, dict)}
