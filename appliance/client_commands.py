"""Owns the commands that speak to a running server: chat and health."""

from __future__ import annotations

import argparse
import os
import sys

from appliance.chat import Chat, run, wait_until_ready
from appliance.client import Client, Message, base_url
from appliance.commands import load_arguments
from appliance.errors import ExitCode, NotReadyError, RigError
from appliance.rig.schema import ServerTable


def chat(arguments: argparse.Namespace) -> ExitCode:
    """Talks to a server."""
    with _client(arguments) as client:
        wait_until_ready(client, tell=sys.stderr)
        model = arguments.model or client.models()[0]
        conversation = Chat(client, model, thinking=arguments.thinking)
        if arguments.system:
            conversation.messages.append(Message("system", arguments.system))
        run(conversation, source=sys.stdin, first=" ".join(arguments.message) or None)
    return ExitCode.OK


def health(arguments: argparse.Namespace) -> ExitCode:
    """Prints the stage.

    Raises:
        AddressError: nothing answers.
        NotReadyError: it answers and is not ready.
    """
    with _client(arguments) as client:
        ready, stage = client.readiness()
    if not ready:
        raise NotReadyError(f"not ready: {stage}")
    print(stage)
    return ExitCode.OK


def _client(arguments: argparse.Namespace) -> Client:
    url = arguments.url
    if url is None:
        try:
            server = load_arguments(arguments).rig.server
        except RigError:
            if arguments.rig is not None or os.environ.get("STRATA_RIG"):
                raise
            server = ServerTable()  # no rig in the default place: the default address
        url = base_url(server.host, server.port)
    return Client(url, key=arguments.key or os.environ.get("OPENAI_API_KEY"))
