"""Times a start of the server on a card: from the command to a good answer of /ready, and what it says of memory.

    python -m tests.bench.start_time FILE.gguf [--starts 2] [--cache "4 GiB"]

The first start compiles what is not cached; the second is what a restart takes. The file should be in the page cache.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.ports import free_port

_WORTH = re.compile(r"memory|card part|ready|cannot be served|warn")
_EVERY_S = 0.1


def rig_text(model: Path, *, port: int, cache: str) -> str:
    """Four conversations of a short context on the first card."""
    return (
        f'schema = 1\n[model]\npath = "{model}"\n[cards]\ndevices = [0]\n[experts]\ncache = "{cache}"\n'
        f'[serving]\nparallel = 4\n[context]\nmax_tokens = 8192\n[server]\nhost = "127.0.0.1"\nport = {port}\n'
    )


def asked(url: str) -> tuple[bool, str]:
    """Whether the server is ready, and which stage it says."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200, "ready"
    except urllib.error.HTTPError as error:
        body = error.read()
    except (urllib.error.URLError, OSError):
        return False, "the port is not open"
    try:
        return False, str(json.loads(body).get("stage", body.decode()[:60]))
    except (ValueError, AttributeError):
        return False, body.decode(errors="replace")[:60]


def stages(process: subprocess.Popen[str], url: str, *, within_s: float) -> Iterator[tuple[float, str]]:
    """Each stage and when it was seen first, in seconds; the last is "ready" unless the server ended before."""
    began, last = time.monotonic(), ""
    while time.monotonic() - began < within_s and process.poll() is None:
        ready, stage = asked(url)
        if stage != last:
            last = stage
            yield time.monotonic() - began, stage
        if ready:
            return
        time.sleep(_EVERY_S)


def used_on_card() -> str:
    """What the driver says is in use on the first card."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "an unknown part"
    command = [tool, "--query-gpu=memory.used", "--format=csv,noheader", "--id=0"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def start(model: Path, *, cache: str, within_s: float, idle_s: float, settings: Sequence[str] = ()) -> Iterator[str]:
    """One start and stop; what to print of it.

    Args:
        model: file to serve.
        cache: of the card, for experts.
        within_s: seconds that the start may take.
        idle_s: seconds to watch the card's memory after it, while the server prepares what it has not yet.
        settings: of the rig, TABLE.KEY=VALUE.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as log:
        port = free_port()
        rig = Path(folder) / "rig.toml"
        rig.write_text(rig_text(model, port=port, cache=cache))
        extra = [part for setting in settings for part in ("--set", setting)]
        command = [sys.executable, "-m", "appliance", "serve", "--rig", str(rig), *extra]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True)
        try:
            seen = list(stages(process, f"http://127.0.0.1:{port}/ready", within_s=within_s))
            used = used_on_card()
            if idle_s and process.poll() is None:
                time.sleep(idle_s)
                used += f", {used_on_card()} after {idle_s:g} idle seconds"
        finally:
            process.terminate()
            process.wait(30)
        log.seek(0)
        lines = log.read().splitlines()
    yield ", ".join(f"{stage} at {second:.1f}" for second, stage in seen)
    good = bool(seen) and seen[-1][1] == "ready"
    yield f"ready after {seen[-1][0]:.2f} s, {used} in use on the card" if good else "never ready"
    own = [line for line in lines if "event=request" not in line]
    yield from (f"  {line}" for line in own[-24:] if not good or _WORTH.search(line))


def main() -> None:
    """Starts as often as the command line says."""
    command = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    command.add_argument("model", type=Path)
    command.add_argument("--starts", type=int, default=2)
    command.add_argument("--cache", default="auto", help="of [experts]: bytes of the card for experts")
    command.add_argument("--within", type=float, default=600.0, help="seconds that a start may take")
    command.add_argument("--idle", type=float, default=0.0, help="seconds to watch the card's memory afterwards")
    command.add_argument("--set", action="append", default=[], metavar="TABLE.KEY=VALUE", help="of the rig")
    arguments = command.parse_args()
    for number in range(arguments.starts):
        print(f"start {number + 1} of {arguments.model.name}, {arguments.model.stat().st_size / 1e9:.1f} GB")
        found = start(
            arguments.model,
            cache=arguments.cache,
            within_s=arguments.within,
            idle_s=arguments.idle,
            settings=arguments.set,
        )
        for line in found:
            print(line, flush=True)


if __name__ == "__main__":
    main()
