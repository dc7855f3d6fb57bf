"""`strata bench`: what a model reaches here, with the bytes and the limit it is to be read beside."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.bench.options import add_options, settle
from appliance.errors import ExitCode, MachineError, UsageError

if TYPE_CHECKING:
    from appliance.bench.clients import PromptTime
    from appliance.bench.rig_bench import Line, RigFound
    from appliance.bench.windows import Bench
    from appliance.examine import Examined
    from appliance.rig.load import LoadedRig

__all__ = ["add_options", "bench"]


def bench(arguments: argparse.Namespace) -> ExitCode:
    """Prints the tables.

    Raises:
        UsageError: options that cannot be, or do not belong together.
        MachineError: no card where one is needed.
        ApplianceError: what the rig, its model or the engine met.
    """
    settle(arguments)
    if arguments.synthetic is not None:
        _synthetic(arguments)
    else:
        _rig(arguments)
    return ExitCode.OK


def _rig(arguments: argparse.Namespace) -> None:
    from appliance.examine import examine, look

    loaded = _load(arguments)
    examined = examine(loaded, look(loaded))
    try:
        found = _measure(arguments, examined)
        if arguments.record:
            from appliance.bench.record import record

            _say(record(examined, found))
    finally:
        examined.model.close()


def _load(arguments: argparse.Namespace) -> LoadedRig:
    """The rig; without a file and without the wish for one, the built-in model as a first start would serve it."""
    from appliance.commands import override_flags
    from appliance.rig.load import load_rig, load_text
    from appliance.rig.paths import find_rig

    found = find_rig(arguments.rig, os.environ)
    flags = override_flags(arguments)
    if found.given or found.path.exists() or arguments.record:
        return load_rig(found.path, environment=os.environ, flags=flags)
    return load_text("schema = 1\n", path=found.path, environment=os.environ, flags=flags)


def _measure(arguments: argparse.Namespace, examined: Examined) -> RigFound:
    from appliance.bench import report
    from appliance.bench.clients import PromptTime
    from appliance.bench.rig_bench import CLIENTS, PROMPTS, RigAsked, run

    placement = examined.placement
    clients = arguments.clients or [count for count in CLIENTS if count <= placement.parallel]
    if max(clients) > placement.parallel:
        raise UsageError(f"--clients {max(clients)}: the rig has {placement.parallel} conversations (serving.parallel)")
    if not placement.stages and (arguments.kernels or arguments.record_routing is not None):
        option = "--kernels" if arguments.kernels else "--record-routing"
        raise UsageError(f"{option} is for cards, and this rig computes on the CPU")
    if arguments.drafts == "on" and placement.draft_max == 0:
        raise UsageError("--drafts on: this rig drafts nothing (no draft layer, or serving.draft_max = 0)")
    longest = placement.draft_max
    drafts = {"on": [longest], "off": [0], "both": [longest, 0] if longest else [0]}[arguments.drafts]
    asked = RigAsked(
        clients=clients,
        tokens=arguments.tokens,
        prompts=PROMPTS if arguments.prompts is None else arguments.prompts,
        drafts=drafts,
        kernels=arguments.kernels,
        record_routing=Path(arguments.record_routing) if arguments.record_routing is not None else None,
    )
    words = _rig_words(examined, arguments.tokens)
    _say(words)
    ones: dict[int, float] = {}

    def tell(found: Line | PromptTime) -> None:
        if arguments.json:
            return
        if isinstance(found, PromptTime):
            print(report.prompt_line(found), flush=True)
            return
        if not ones:
            print(report.CLIENT_HEAD, flush=True)
        if found.time.clients == 1:
            ones[found.time.draft_max] = found.time.tokens_per_s
        print(report.client_line(found, one=ones.setdefault(found.time.draft_max, 0.0) or None), flush=True)

    found = run(examined, asked, tell=tell)
    _say(f"memory gave {found.gbps:.0f} GB/s to a plain read in this run; the limit is a window's bytes at that rate")
    for length in found.skipped:
        _say(f"prompt of {length} tokens: left out, the one before took longer than a minute")
    if arguments.json:
        print(json.dumps({"what": words, **dataclasses.asdict(found)}, indent=2))
    elif found.kernels:
        print("\n".join(report.kernel_lines(found.kernels)))
    return found


def _rig_words(examined: Examined, tokens: int) -> str:
    placement = examined.placement
    where = ", ".join(f"card {stage.card.index} {stage.card.name}" for stage in placement.stages) or "the CPU"
    words = (
        f"{examined.spec.name} on {where}: greedy chats of {tokens} tokens in one process, without HTTP; questions are "
        "real sentences, prompts are made-up notes"
    )
    if examined.loaded.rig.model.path == "builtin":
        words += "; the built-in model is tiny: its speeds and its acceptance say nothing about a large one"
    return words


def _synthetic(arguments: argparse.Namespace) -> None:
    import torch

    from appliance.bench import report, synthetic_bench, windows
    from appliance.bench.bandwidth import measured_bandwidth

    asked = synthetic_bench.asked_of(arguments)
    if not torch.cuda.is_available():
        raise MachineError(
            "strata bench --synthetic times windows on a card, and torch sees none", hint="run it where the card is"
        )
    device = torch.device(asked.device)
    gbps = measured_bandwidth(device)
    model = windows.load(asked)
    words, card = synthetic_bench.words(asked), torch.cuda.get_device_name(device)
    used = torch.cuda.memory_allocated(device) / 2**30
    _say(f"{words}\n{card}, {gbps:.0f} GB/s read in this run, {used:.1f} GiB in use\n{_setting(asked)}")
    lines = []
    if not arguments.json:
        print(report.WINDOW_HEAD, flush=True)
    for line in windows.time_windows(model, asked, gbps=gbps):
        lines.append(line)
        if not arguments.json:
            print(report.window_line(line), flush=True)
    kernels = synthetic_bench.kernel_table(model, asked) if arguments.kernels else []
    prompts = synthetic_bench.time_prompts(model, arguments.prompts) if arguments.prompts else []
    if arguments.json:
        rows: dict[str, Any] = {"windows": windows.as_json(lines), "kernels": kernels, "prompts": prompts}
        rows |= {name: [dataclasses.asdict(one) for one in rows[name]] for name in ("kernels", "prompts")}
        print(json.dumps({"card": card, "gbps": gbps, "what": words, **rows}, indent=2))
    else:
        shown = list(report.kernel_lines(kernels)) if kernels else []
        print("\n".join([*shown, *map(report.prompt_line, prompts)]), end="\n" if shown or prompts else "")
    model.close()


def _setting(asked: Bench) -> str:
    share = f"{asked.hit_share:.0%} of the experts on the card"
    return f"context {asked.context}, {share}, {asked.kv_type} keys and values"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
