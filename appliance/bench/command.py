"""`strata bench`: speeds of windows on a card, with the bytes and the limit they are to be read beside."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from appliance.errors import ExitCode, MachineError, UsageError

if TYPE_CHECKING:
    from appliance.bench.windows import WindowTime


def add_options(command: argparse.ArgumentParser) -> None:
    """The command line of `strata bench`."""
    command.add_argument(
        "--synthetic", metavar="SHAPE", default="real", help="random weights of a shape: real, or real:LAYERS"
    )
    command.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="rows of the windows, up to 40")
    command.add_argument("--context", type=int, default=8192, help="tokens before the window")
    command.add_argument("--hits", type=float, default=1.0, help="share of the routed experts on the card, 0 to 1")
    command.add_argument("--drafts", action="store_true", help="with the draft layer, and windows with drafts")
    command.add_argument("--kv", choices=("bf16", "int8", "f32"), default="bf16", help="storage of keys and values")
    command.add_argument("--plain", action="store_true", help="every launch by itself, without graphs")
    command.add_argument("--json", action="store_true", help="as JSON")


def bench(arguments: argparse.Namespace) -> ExitCode:
    """Prints the table.

    Raises:
        UsageError: a shape, rows or a share that cannot be.
        MachineError: no card.
    """
    import torch

    from appliance.bench import windows
    from appliance.bench.synthetic import WORDS, parse_shape

    shape = parse_shape(arguments.synthetic)
    if not all(1 <= rows <= 40 for rows in arguments.rows):
        raise UsageError(f"--rows {arguments.rows}: windows have 1 to 40 rows")
    if not 0.0 <= arguments.hits <= 1.0:
        raise UsageError(f"--hits {arguments.hits}: a share is from 0 to 1")
    if not torch.cuda.is_available():
        raise MachineError("strata bench times windows on a card, and torch sees none", hint="run it where the card is")
    asked = windows.Bench(
        shape=shape,
        rows=arguments.rows,
        context=arguments.context,
        hit_share=arguments.hits,
        draft=arguments.drafts,
        kv_type=arguments.kv,
        plain=arguments.plain,
    )
    device = torch.device(asked.device)
    gbps = windows.measured_bandwidth(device)
    model = windows.load(asked)
    words = WORDS.format(layers=shape.layers, experts=512, gate_up=shape.gate_up, down=shape.down)
    card = torch.cuda.get_device_name(device)
    used = torch.cuda.memory_allocated(device) / 2**30
    print(f"{words}\n{card}, {gbps:.0f} GB/s read in this run, {used:.1f} GiB in use", file=sys.stderr, flush=True)
    share = f"{asked.hit_share:.0%} of the experts on the card"
    print(f"context {asked.context}, {share}, {asked.kv_type} keys and values", file=sys.stderr)
    lines = []
    if not arguments.json:
        print("rows seqs drafts   ms/window  on card   tok/s     GB   GB/s  limit ms  share of limit", flush=True)
    for line in windows.time_windows(model, asked, gbps=gbps):
        lines.append(line)
        if not arguments.json:
            _print_line(line)
    if arguments.json:
        print(json.dumps({"card": card, "gbps": gbps, "what": words, "windows": windows.as_json(lines)}, indent=2))
    model.close()
    return ExitCode.OK


def _print_line(line: WindowTime) -> None:
    print(
        f"{line.rows:4d} {line.sequences:4d} {line.drafts:6d} {line.milliseconds:11.3f} "
        f"{line.device_milliseconds:8.3f} {line.rows / line.milliseconds * 1e3:7.0f} {line.gigabytes:6.2f} "
        f"{line.gigabytes / line.milliseconds * 1e3:6.0f} {line.limit_milliseconds:9.3f} {line.share:8.0%}",
        flush=True,
    )
