"""Owns the command line of `strata-setup`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from appliance import __version__
from appliance.errors import ApplianceError, ExitCode, UsageError
from appliance.rig.machine import probe
from appliance.rig.paths import find_rig
from setup_wizard.headless import set_up


def parser() -> argparse.ArgumentParser:
    """The command line in full."""
    top = argparse.ArgumentParser(prog="strata-setup", description="Writes the rig of this machine.")
    top.add_argument("--version", action="version", version=f"strata-setup {__version__}")
    top.add_argument("--rig", metavar="FILE", help="rig.toml; without it $STRATA_RIG, then the default place")
    top.add_argument("--auto", action="store_true", help="ask nothing; change no key that is there already")
    top.add_argument("--reset", action="store_true", help="with --auto: start anew, the earlier rig kept as a backup")
    return top


def run(arguments: argparse.Namespace) -> ExitCode:
    """Sets up.

    Raises:
        UsageError: without --auto, because this version has no screens.
        ApplianceError: see `set_up`.
    """
    path = find_rig(arguments.rig, os.environ).path
    if not arguments.auto:
        raise UsageError(f"this version asks no questions; run: strata-setup --auto --rig {path}")
    set_up(path, probe(path.parent), reset=arguments.reset, say=print)
    return ExitCode.OK


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    try:
        return run(parser().parse_args(arguments))
    except ApplianceError as error:
        print(f"strata-setup: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
