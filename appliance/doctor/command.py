"""Owns `strata doctor`: looks at everything again and prints one page, fit for a bug report."""

from __future__ import annotations

import argparse
import os
import shutil

from appliance.commands import load_arguments
from appliance.doctor.facts import Facts
from appliance.doctor.page import examine_promises, exit_code, page
from appliance.errors import ApplianceError, DoesNotFitError, ExitCode, ModelFileError
from appliance.examine import Examined, examine, look, model_path
from appliance.models.find import FoundSet, find_models
from appliance.rig.containers import IMAGE, Containers, probe_containers
from appliance.rig.deadline import Late, within
from appliance.rig.host import memory_kills, toolkit_fix
from appliance.rig.load import LoadedRig
from appliance.rig.machine import Machine, probe
from appliance.rig.running import find_running
from appliance.rig.schema import BUILTIN
from appliance.server.auth import list_keys
from appliance.server.serve import bind

DOCKER_S = 15.0


def doctor(arguments: argparse.Namespace) -> ExitCode:
    """Prints the page; the exit code is that of the first failure."""
    facts = gather(arguments)
    findings = examine_promises(facts)
    for line in page(facts, findings):
        print(line)
    if facts.examined is not None:
        facts.examined.model.close()
    return exit_code(findings)


def gather(arguments: argparse.Namespace) -> Facts:
    """Looks at everything once; nothing is started and no weights are read."""
    loaded: LoadedRig | None = None
    rig_error: ApplianceError | None = None
    try:
        loaded = load_arguments(arguments)
    except ApplianceError as error:
        rig_error = error
    machine = look(loaded) if loaded is not None else probe()
    examined, plan_error = _plan(loaded, machine)
    running, address_error = _address(loaded)
    keys, keys_error = _keys(loaded)
    return Facts(
        machine=machine,
        containers=_containers(),
        loaded=loaded,
        rig_error=rig_error,
        examined=examined,
        plan_error=plan_error,
        sets=_sets(loaded, plan_error),
        running=running,
        address_error=address_error,
        keys=keys,
        keys_error=keys_error,
        memory_kills=memory_kills(),
        toolkit_fix=toolkit_fix(),
        compiler=any(shutil.which(name) for name in (os.environ.get("CC", "gcc"), "gcc", "clang", "cc")),
    )


def _plan(loaded: LoadedRig | None, machine: Machine) -> tuple[Examined | None, ApplianceError | None]:
    if loaded is None:
        return None, None
    try:
        return examine(loaded, machine), None
    except ApplianceError as error:
        return None, error


def _sets(loaded: LoadedRig | None, error: ApplianceError | None) -> tuple[FoundSet, ...]:
    """What is beside a model that cannot be opened."""
    if loaded is None or not isinstance(error, (ModelFileError, DoesNotFitError)) or loaded.rig.model.path == BUILTIN:
        return ()
    path = model_path(loaded)
    return find_models(path if path.is_dir() else path.parent)


def _address(loaded: LoadedRig | None) -> tuple[str | None, ApplianceError | None]:
    if loaded is None:
        return None, None
    server = loaded.rig.server
    stage = find_running(server.host, server.port)
    if stage is not None:
        return f"{server.host} port {server.port}, {stage}", None
    try:
        bind(server.host, server.port).close()
    except ApplianceError as error:
        return None, error
    return None, None


def _keys(loaded: LoadedRig | None) -> tuple[int | None, str]:
    name = loaded.rig.server.keys_file if loaded is not None else None
    if loaded is None or name is None:
        return None, ""
    try:
        return len(list_keys(loaded.resolve(name))), ""
    except ApplianceError as error:
        return None, error.message


def _containers() -> Containers:
    try:
        return within(DOCKER_S, lambda: probe_containers(IMAGE))
    except Late as error:
        return Containers(note=f"Docker does not answer: {error}")
