"""Runs llama.cpp's own HTTP server, from the prebuilt xllamacpp package, until it is terminated."""

from __future__ import annotations

import signal
import sys

import xllamacpp

from tests.bench.servers import CONTEXT_TOKENS, SLOTS


def main() -> None:
    """Serves MODEL on PORT with the same slots and context as the appliance, on all cores."""
    model, port = sys.argv[1:]
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames = ["127.0.0.1"]
    params.port = int(port)
    params.n_parallel = SLOTS
    params.n_ctx = SLOTS * CONTEXT_TOKENS
    params.use_jinja = True
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main()
