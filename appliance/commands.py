"""Owns the commands that start nothing: check, plan, keys."""

from __future__ import annotations

import argparse
import json
import os
from datetime import UTC, datetime

from appliance.errors import ExitCode, RigError, UsageError
from appliance.examine import examine, look
from appliance.plan_words import plan_lines, plan_object
from appliance.rig.describe import value_text
from appliance.rig.load import LoadedRig, load_rig
from appliance.rig.paths import find_rig
from appliance.rig.schema import TABLES
from appliance.rig.size import format_size
from appliance.server.auth import add_key, list_keys, remove_key

Flags = list[tuple[str, str, str]]


def load_arguments(arguments: argparse.Namespace) -> LoadedRig:
    """The rig that the command line means; an absent default rig is an error here, since nothing shall be written.

    Raises:
        RigError: it cannot be read or accepted.
        UsageError: a --set that is not TABLE.KEY=VALUE.
    """
    found = find_rig(arguments.rig, os.environ)
    return load_rig(found.path, environment=os.environ, flags=override_flags(arguments))


def override_flags(arguments: argparse.Namespace) -> Flags:
    """(flag, dotted key, text) of --set and its short forms.

    Raises:
        UsageError: a --set that is not TABLE.KEY=VALUE.
    """
    flags: Flags = []
    for text in arguments.set:
        key, equals, value = text.partition("=")
        if not equals or "." not in key:
            raise UsageError(f"--set {text}: found no TABLE.KEY=VALUE", hint="such as --set server.port=8081")
        flags.append((f"--set {key.strip()}", key.strip(), value.strip()))
    for flag, key in (("model", "model.path"), ("host", "server.host"), ("port", "server.port")):
        value = getattr(arguments, flag, None)
        if value is not None:
            flags.append((f"--{flag}", key, value))
    return flags


def require_keys(loaded: LoadedRig) -> None:
    """A keys file that is named must be there and hold a key, or nobody could use the server.

    Raises:
        RigError: it is absent, damaged or empty.
    """
    name = loaded.rig.server.keys_file
    if name is not None and not list_keys(loaded.resolve(name)):
        raise RigError(f"{loaded.where('server.keys_file')}: {name} holds no key", hint="strata keys add NAME")


def check(arguments: argparse.Namespace) -> ExitCode:
    """Says that the rig can be served, or why not (raises)."""
    loaded = load_arguments(arguments)
    require_keys(loaded)
    examined = examine(loaded, look(loaded))
    examined.model.close()
    placement = examined.placement
    for sentence in (*placement.notes, *examined.differences):
        print(f"note: {sentence}")
    memory = [f"{format_size(placement.total_bytes)} of {format_size(placement.budget_bytes)} RAM"]
    for stage in placement.stages:
        used = f"{format_size(stage.used_bytes)} of {format_size(stage.budget_bytes)}"
        layers = f" with layers {stage.first_layer} to {stage.past_layer - 1}" if len(placement.stages) > 1 else ""
        memory.append(f"{used} on card {stage.card.index} ({stage.card.name}, {stage.card.bus_id}){layers}")
    where = "the CPU" if not placement.stages else "1 card" if len(memory) == 2 else f"{len(placement.stages)} cards"
    print(
        f"{loaded.path}: ok: {examined.spec.name} on {where}, {placement.parallel} conversations of "
        f"{placement.max_tokens} tokens, {', '.join(memory)}"
    )
    return ExitCode.OK


def plan(arguments: argparse.Namespace) -> ExitCode:
    """Prints the placement, as a table, as JSON, or the rig's values with their origin."""
    loaded = load_arguments(arguments)
    if arguments.explain:
        _explain(loaded)
        return ExitCode.OK
    examined = examine(loaded, look(loaded))
    examined.model.close()
    if arguments.json:
        print(json.dumps(plan_object(examined), indent=2))
    else:
        print("\n".join(plan_lines(examined)))
    return ExitCode.OK


def _explain(loaded: LoadedRig) -> None:
    for table_name, table in TABLES.items():
        values = getattr(loaded.rig, table_name)
        for key in table.model_fields:
            dotted = f"{table_name}.{key}"
            value = getattr(values, key)
            if table_name == "machine" and (key in ("card", "bench") or loaded.origin(dotted).kind == "default"):
                continue  # what was measured is not a setting
            origin = loaded.origin(dotted)
            kind = origin.kind if origin.kind == "default" else f"{origin.kind} {origin.where}"
            print(f"{dotted} = {value_text(table, key, value)}  # {kind}")


def keys(arguments: argparse.Namespace) -> ExitCode:
    """Adds, lists or removes keys in the rig's keys file."""
    loaded = load_arguments(arguments)
    name = loaded.rig.server.keys_file
    if name is None:
        raise RigError(
            f"{loaded.path}: server.keys_file is not set, so there is no file for keys",
            hint='add keys_file = "keys.json" below [server]',
        )
    path = loaded.resolve(name)
    if arguments.action == "add":
        print(add_key(path, arguments.name))
    elif arguments.action == "remove":
        remove_key(path, arguments.name)
        print(f"removed {arguments.name}")
    else:
        for key in list_keys(path):
            print(f"{key.name}  {datetime.fromtimestamp(key.created, UTC).date().isoformat()}")
    return ExitCode.OK
