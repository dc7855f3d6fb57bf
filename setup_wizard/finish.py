"""Owns the end of every way through the wizard: check for real, write, say what was written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from appliance.errors import ApplianceError, RigError
from appliance.examine import Examined, examine
from appliance.rig.card_rules import cards_of
from appliance.rig.cards import Card
from appliance.rig.load import LoadedRig, load_text
from appliance.rig.machine import Machine
from appliance.rig.size import format_size
from appliance.rig.write import write_rig
from setup_wizard.compose import override

OVERRIDE = "compose.override.yaml"
KEYS_S = 60.0


def finish(path: Path, text: str, machine: Machine, *, say: Callable[[str], None]) -> Examined:
    """Checks the rig as `strata check` does, then writes it and, for cards, the override beside it.

    Args:
        path: the rig.
        text: what it shall be.
        machine: what was measured.
        say: told each line; the whole text where the place cannot be written, so that nothing is lost.

    Raises:
        ApplianceError: it is refused, or cannot be written; the file is as it was.
    """
    examined = examine(load_text(text, path=path), machine)
    examined.model.close()
    placement = examined.placement
    try:
        written = write_rig(path, text)
    except ApplianceError:
        say(text)
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
    for stage in placement.stages:
        used = f"{format_size(stage.used_bytes)} of {format_size(stage.budget_bytes)}"
        say(f"card {stage.card.index} {stage.card.name}: layers {stage.first_layer} to {stage.past_layer - 1}, {used}")
    cards = reserved(examined.loaded, machine)
    if cards:
        _write_override(path.parent / OVERRIDE, cards, say)
    return examined


def reserved(loaded: LoadedRig, machine: Machine) -> tuple[Card, ...]:
    """The cards that the container shall see: those the rig names, all of them for "auto"."""
    return machine.cards.cards if loaded.rig.cards.devices == "auto" else cards_of(loaded.rig, machine)


def add_key(path: Path, name: str) -> str:
    """The first key of the rig's keys file, by the appliance's own command; it cannot be read again.

    Raises:
        RigError: the command refuses; in its words.
    """
    words = [sys.executable, "-m", "appliance", "keys", "add", name, "--rig", str(path)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=KEYS_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RigError(f"no key could be made: {error}", hint=f"strata keys add {name} --rig {path}") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise RigError(f"no key could be made: {lines[-1]}", hint=f"strata keys add {name} --rig {path}")
    return done.stdout.strip()


def _write_override(path: Path, cards: tuple[Card, ...], say: Callable[[str], None]) -> None:
    written = write_rig(path, override(cards))
    if written.changed:
        say(f"wrote {path}: put it beside compose.yaml to hand {len(cards)} card{'s' if len(cards) > 1 else ''} over")
