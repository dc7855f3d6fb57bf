"""Owns the command line of `strata-setup`: screens in a terminal, --auto and --answers without."""

from __future__ import annotations

import argparse
import os
import select
import sys
import termios
import tty
from collections.abc import Sequence
from pathlib import Path

from appliance import __version__
from appliance.errors import ApplianceError, ExitCode, UsageError
from appliance.rig.machine import probe
from appliance.rig.paths import find_rig
from setup_wizard.headless import read_answers, set_up, set_up_with

ANSWER_S = 3.0


def parser() -> argparse.ArgumentParser:
    """The command line in full."""
    top = argparse.ArgumentParser(prog="strata-setup", description="Writes the rig of this machine.")
    top.add_argument("--version", action="version", version=f"strata-setup {__version__}")
    top.add_argument("--rig", metavar="FILE", help="rig.toml; without it $STRATA_RIG, then the default place")
    top.add_argument("--auto", action="store_true", help="ask nothing; change no key that is there already")
    top.add_argument("--answers", metavar="FILE", help="ask nothing; a rig's keys, the recommendation for the others")
    top.add_argument("--reset", action="store_true", help="start anew, the earlier rig kept as a backup")
    return top


def run(arguments: argparse.Namespace) -> int:
    """Sets up.

    Raises:
        UsageError: there is no terminal for the screens, or --auto and --answers contradict each other.
        ApplianceError: see `set_up`.
    """
    path = find_rig(arguments.rig, os.environ).path
    if arguments.auto and arguments.answers:
        raise UsageError("--auto and --answers: one of them", hint="--answers asks nothing either")
    if arguments.answers:
        answers = read_answers(Path(arguments.answers))
        set_up_with(path, probe(path.parent), answers, reset=arguments.reset, say=print)
        return ExitCode.OK
    if arguments.auto:
        set_up(path, probe(path.parent), reset=arguments.reset, say=print)
        return ExitCode.OK
    if not has_terminal():
        raise UsageError(f"there is no terminal for the screens; run: strata-setup --auto --rig {path}")
    return screens(path, reset=arguments.reset)


def has_terminal() -> bool:
    """Whether screens can be drawn and keys be read (CFG-14)."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") in ("", "dumb"):
        return False
    return answers(sys.stdin.fileno(), sys.stdout.fileno())


def answers(source: int, target: int, *, deadline_s: float = ANSWER_S) -> bool:
    """Whether somebody is at the terminal: it is asked where its cursor is (`docker run -t` without -i is silent).

    Args:
        source, target: descriptors of one terminal.
        deadline_s: how long an answer may take, over a slow line too.
    """
    before = termios.tcgetattr(source)
    said = b""
    try:
        tty.setcbreak(source, termios.TCSANOW)
        os.write(target, b"\x1b[6n")
        while not said.endswith(b"R") and select.select([source], [], [], deadline_s)[0]:
            block = os.read(source, 64)
            if not block:
                break
            said += block
    finally:
        termios.tcsetattr(source, termios.TCSANOW, before)
    return said.endswith(b"R")


def screens(path: Path, *, reset: bool) -> int:
    """Runs the screens; what they leave to say is printed once the terminal is itself again (CFG-16)."""
    from setup_wizard.app import SetupApp  # Textual is only loaded where it draws

    app = SetupApp(path, reset=reset)
    app.run()
    for line in app.after:
        print(line)
    code = app.return_code or ExitCode.OK
    if code == 1:  # Textual printed the fault
        print(f"strata-setup: a fault of the screens; {app.fate()}", file=sys.stderr)
        return ExitCode.FAULT
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    try:
        return run(parser().parse_args(arguments))
    except ApplianceError as error:
        print(f"strata-setup: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
