"""Owns the command line of `strata`: serve, check, plan, probe, models, chat, keys, and so on; the exit code."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from appliance import __version__
from appliance.bench.command import add_options
from appliance.errors import ApplianceError, ExitCode


def parser() -> argparse.ArgumentParser:
    """The command line in full."""
    top = argparse.ArgumentParser(prog="strata", description="Serves one large mixture-of-experts model to an office.")
    top.add_argument("--version", action="version", version=f"strata {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="serve the model of the rig", description="Serves the model of the rig.")
    _rig_options(serve)
    serve.add_argument("--model", metavar="PATH", help="short for --set model.path=PATH")
    serve.add_argument("--host", metavar="ADDRESS", help="short for --set server.host=ADDRESS")
    serve.add_argument("--port", metavar="NUMBER", help="short for --set server.port=NUMBER")

    check = commands.add_parser(
        "check", help="check a rig; starts nothing", description="Checks a rig; starts nothing."
    )
    _rig_options(check)

    plan = commands.add_parser("plan", help="show what goes where, in bytes", description="Shows what goes where.")
    _rig_options(plan)
    form = plan.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as JSON")
    form.add_argument("--explain", action="store_true", help="every value of the rig, and where it came from")

    probe = commands.add_parser("probe", help="show the machine", description="Shows cards, RAM, cores and storage.")
    probe.add_argument("--json", action="store_true", help="as JSON")
    probe.add_argument("--deep", action="store_true", help="measure speeds too, in about a minute")
    probe.add_argument("--rig", metavar="FILE", help="whose address tells whether an appliance runs already")
    probe.add_argument("folder", nargs="?", help="folder whose disk is looked at; the working folder by default")

    chat = commands.add_parser("chat", help="talk to a running server", description="Talks to a running server.")
    _client_options(chat)
    chat.add_argument("--model", help="model id; the server's first by default")
    chat.add_argument("--system", metavar="TEXT", help="system message")
    chat.add_argument("--thinking", action=argparse.BooleanOptionalAction, default=None, help="think before answering")
    chat.add_argument("message", nargs="*", help="one question; without it, the terminal or the pipe is read")

    health = commands.add_parser(
        "health", help="ask a running server whether it is ready", description="Exit 0: ready."
    )
    _client_options(health)

    doctor = commands.add_parser(
        "doctor",
        help="check everything that was promised, with fixes",
        description="Checks machine, rig, model, Docker, address and keys again. The page holds no secrets.",
    )
    _rig_options(doctor)

    bench = commands.add_parser(
        "bench", help="time windows on a card", description="Times windows on a card, beside the bytes they read."
    )
    add_options(bench)

    models = commands.add_parser(
        "models",
        help="list models, and download one",
        description="Lists what is here, and what is published.",
    )
    place = "of the models; `models` beside compose.yaml or the rig by default"
    models.add_argument("--folder", metavar="PATH", help=place)
    get = models.add_subparsers(dest="action", metavar="ACTION").add_parser(
        "get", help="download one", description="Downloads a model; the same command goes on where it was stopped."
    )
    get.add_argument("--folder", default=argparse.SUPPRESS, metavar="PATH", help=place)
    get.add_argument("name", help="as `strata models` lists it, or OWNER/NAME or OWNER/NAME:SIZE on the hub")

    keys = commands.add_parser(
        "keys", help="add, list and remove API keys", description="Keeps the keys file of the rig."
    )
    actions = keys.add_subparsers(dest="action", required=True, metavar="ACTION")
    for action, words in (("add", "add a key and print it once"), ("list", "list names"), ("remove", "remove a key")):
        one = actions.add_parser(action, help=words, description=words)
        _rig_options(one)
        if action != "list":
            one.add_argument("name", help="name of the key")
    return top


def _rig_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--rig", metavar="FILE", help="rig.toml; without it $STRATA_RIG, then the default place")
    command.add_argument(
        "--set", metavar="TABLE.KEY=VALUE", action="append", default=[], help="overrides a key of the rig; repeatable"
    )


def _client_options(command: argparse.ArgumentParser) -> None:
    _rig_options(command)
    command.add_argument("--url", help="the server; without it, the address in the rig")
    command.add_argument("--key", help="API key; without it, $OPENAI_API_KEY")


def run(arguments: argparse.Namespace) -> ExitCode:
    """Runs one command. Imports are here so that each command loads what it needs and no more."""
    if arguments.command == "serve":
        signal.signal(signal.SIGTERM, _leave)  # until the server has its own: imports and the header take a second
        from appliance.boot import serve

        return serve(arguments)
    if arguments.command == "bench":
        from appliance.bench.command import bench

        return bench(arguments)
    if arguments.command in ("chat", "health"):
        from appliance import client_commands

        return client_commands.chat(arguments) if arguments.command == "chat" else client_commands.health(arguments)
    if arguments.command == "probe":
        from appliance.probe_command import probe_machine

        return probe_machine(arguments)
    if arguments.command == "models":
        from appliance.models.command import models

        return models(arguments)
    if arguments.command == "doctor":
        from appliance.doctor.command import doctor

        return doctor(arguments)
    from appliance import commands

    table = {"check": commands.check, "plan": commands.plan, "keys": commands.keys}
    return table[arguments.command](arguments)


def _leave(_signal: int, _frame: object) -> None:
    """Nothing has begun yet that would have to end."""
    os._exit(ExitCode.OK)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `strata`; returns the exit code."""
    try:
        return run(parser().parse_args(arguments))
    except ApplianceError as error:
        print(f"strata: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.OK
    except BrokenPipeError:  # `strata plan | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
