"""Owns the start-up story: read, look, judge, place, listen, load, test, serve, leave."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading

from appliance import __version__
from appliance.backend import ApplianceBackend
from appliance.card_claim import Claim
from appliance.commands import override_flags, require_keys
from appliance.engine.kernel_cache import FOLDERS, settle
from appliance.errors import ExitCode
from appliance.examine import Examined, examine, look
from appliance.first_rig import ask_first, load_or_write
from appliance.loading import Loading
from appliance.log import say, start_log, warn
from appliance.rig.load import LoadedRig
from appliance.rig.paths import find_rig, in_image
from appliance.rig.size import format_size
from appliance.server.app import create_app
from appliance.server.backend import ServerConfig
from appliance.server.serve import Service, bind, check_exposure, urls


def serve(arguments: argparse.Namespace) -> ExitCode:
    """Serves until a signal or a fault.

    Raises:
        ApplianceError: what the start-up met before it could listen; its exit code says which.
    """
    start_log()
    say("start", version=__version__, pid=os.getpid())
    found = find_rig(arguments.rig, os.environ)
    left = ask_first(found, image=in_image(), terminal=sys.stdin.isatty() and sys.stdout.isatty())
    if left is not None:
        return left
    loaded = load_or_write(found, flags=override_flags(arguments))
    require_keys(loaded)
    examined = examine(loaded, look(loaded))
    _tell(examined)
    claim = Claim(examined.device.cards, rig=loaded.path)
    for variable in FOLDERS:
        warning = settle(os.environ, variable)
        if warning:
            warn("kernel cache", reason=warning)
    code = asyncio.run(_run(examined))
    claim.release()
    say("end", exit_code=int(code))
    sys.stderr.flush()
    # A load or a window that is still computing must not hold the exit back: nothing is left to save.
    os._exit(code)


async def _run(examined: Examined) -> ExitCode:
    config = _server_config(examined.loaded)
    check_exposure(config)
    listener = bind(config.host, config.port)
    backend = ApplianceBackend(examined, on_fault=lambda: service.stop(ExitCode.FAULT))
    loading = Loading(examined, backend, asyncio.get_running_loop())
    service = Service(create_app(backend, config), listener=listener, drain=loading.drain)
    url = urls(listener)
    say("listening", api=f"{url}/v1", ready=f"{url}/ready", keys=config.keys_file is not None, open=config.open)
    threading.Thread(target=loading.run, args=(service,), name="engine", daemon=True).start()
    code = await service.run()
    if code is ExitCode.OK:
        loading.remember()
    return code


def _tell(examined: Examined) -> None:
    placement, loaded = examined.placement, examined.loaded
    say(
        "plan",
        rig=loaded.path,
        model=examined.spec.name,
        device=placement.device,
        parallel=placement.parallel,
        max_tokens=placement.max_tokens,
        drafts=placement.draft_max,
        total=format_size(placement.total_bytes),
        allowed=format_size(placement.budget_bytes),
    )
    for stage in placement.stages:
        layers, card = f"{stage.first_layer} to {stage.past_layer - 1}", stage.card
        say(
            "card", index=card.index, name=card.name, bus=card.bus_id, layers=layers, used=format_size(stage.used_bytes)
        )
    if loaded.migrated_from is not None:
        warn("the rig is of an older schema", schema=loaded.migrated_from, hint="strata-setup --auto writes it anew")
    for sentence in (*placement.notes, *examined.differences):
        warn("note", sentence=sentence)


def _server_config(loaded: LoadedRig) -> ServerConfig:
    server = loaded.rig.server
    return ServerConfig(
        host=server.host,
        port=server.port,
        keys_file=loaded.resolve(server.keys_file) if server.keys_file else None,
        open=server.open,
        cors_origins=server.cors_origins,
        allowed_hosts=server.allowed_hosts,
    )
