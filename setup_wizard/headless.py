"""Owns `strata-setup --auto`: look, fill in, check, show, write; nothing is asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from appliance.errors import ApplianceError
from appliance.examine import examine
from appliance.rig.cards import Card
from appliance.rig.load import load_text
from appliance.rig.machine import Machine
from appliance.rig.paths import read_rig_text
from appliance.rig.size import format_size
from appliance.rig.write import render, write_rig
from setup_wizard.compose import override

OVERRIDE = "compose.override.yaml"


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
    present = None if reset or not path.exists() or _blank(path) else read_rig_text(path)
    if present is not None:
        load_text(present, path=path)
    text = render(present, machine)
    loaded = load_text(text, path=path)
    examined = examine(loaded, machine)
    examined.model.close()
    placement = examined.placement
    try:
        written = write_rig(path, text)
    except ApplianceError:
        say(text)  # so that the work is not lost with the place
        raise
    for sentence in placement.notes:
        say(f"note: {sentence}")
    if written.backup is not None:
        say(f"kept the earlier rig as {written.backup}")
    say(f"{'wrote' if written.changed else 'nothing to change in'} {path}")
    say(
        f"{examined.spec.name}: {placement.parallel} conversations of {placement.max_tokens} tokens, "
        f"{format_size(placement.total_bytes)} of {format_size(placement.budget_bytes)}"
    )
    if machine.cards.cards:
        _write_override(path.parent / OVERRIDE, machine.cards.cards, say)


def _blank(path: Path) -> bool:
    """An empty file, as an editor or a mount leaves it, is a rig not yet written."""
    return path.is_file() and path.stat().st_size == 0


def _write_override(path: Path, cards: tuple[Card, ...], say: Callable[[str], None]) -> None:
    written = write_rig(path, override(cards))
    if written.changed:
        say(f"wrote {path}: put it beside compose.yaml to hand {len(cards)} card{'s' if len(cards) > 1 else ''} over")
