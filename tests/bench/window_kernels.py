"""Where a window's time goes, launch by launch: a synthetic model's windows, replayed as graphs under torch's profiler.

Run: python -m tests.bench.window_kernels [--synthetic real:24] [--rows 1 4] [--context 8192] [--kv bf16] [--json FILE].
For each number of rows: the launches of one layer of each kind, in their order, and then all kernels by their share of
the window. `us` is how long a kernel ran; `alone` is what it adds to the window, from its predecessor's end to its own,
so that the sum over a window is the window. Launches overlap their predecessors: `gap` is the time from the
predecessor's end to the kernel's start, negative where it started early.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from appliance.bench.bandwidth import measured_bandwidth
from appliance.bench.report import WINDOW_HEAD, window_line
from appliance.bench.synthetic import parse_shape
from appliance.bench.windows import Bench, load, time_windows
from appliance.model.qwen4exp.device.model import DeviceModel

# The last launch of every layer.
LAST = "down_kernel"
# A launch that only layers of full attention have.
FULL = "pick "


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch: what tells it from others, when it ran and what it adds to the window, in microseconds."""

    label: str
    us: float
    gap: float
    alone: float


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--synthetic", metavar="SHAPE", default="real:24")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--kv", choices=("bf16", "int8", "f32"), default="bf16")
    parser.add_argument("--most", type=int, default=40, help="lines of the table of all kernels")
    parser.add_argument("--json", metavar="FILE", help="all launches of the last window of each size")
    asked = parser.parse_args()
    bench = Bench(
        shape=parse_shape(asked.synthetic), rows=asked.rows, context=asked.context, hit_share=1.0, draft=False,
        kv_type=asked.kv, plain=False,
    )  # fmt: skip
    gbps = measured_bandwidth(torch.device(bench.device))
    model = load(bench)
    print(WINDOW_HEAD, flush=True)
    for line in time_windows(model, bench, gbps=gbps):
        print(window_line(line), flush=True)
    kept = {}
    for rows in asked.rows:
        windows = recorded(model, replace(bench, rows=[rows]), gbps=gbps)
        kept[rows] = [[one.label, one.us, one.gap, one.alone] for one in windows[-1]]
        print(f"\n{rows} rows: {len(windows)} windows recorded, {len(windows[-1])} launches each, "
              f"median {statistics.median(sum(one.alone for one in window) for window in windows):.0f} us")  # fmt: skip
        show_layers(windows)
        show_all(windows, most=asked.most)
    if asked.json:
        Path(asked.json).write_text(json.dumps(kept))
    model.close()


def recorded(model: DeviceModel, bench: Bench, *, gbps: float) -> list[list[Kernel]]:
    """The launches of each replay, in the order in which they started."""
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        for _ in time_windows(model, bench, gbps=gbps):
            pass
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    replays: dict[int, list[dict[str, object]]] = defaultdict(list)
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            replays[event["args"].get("correlation", -1)].append(event)
    longest = max(map(len, replays.values()))
    if longest < 50:
        raise RuntimeError(f"the profiler gave the launches of a graph {len(replays)} numbers; found {longest} of one")
    return [_kernels(replay) for replay in replays.values() if len(replay) > longest // 2]


def _kernels(events: Sequence[dict[str, object]]) -> list[Kernel]:
    found = []
    before: float | None = None
    for event in sorted(events, key=lambda event: float(str(event["ts"]))):
        start, us = float(str(event["ts"])), float(str(event["dur"]))
        end = start + us
        if before is None:
            before = start
        found.append(Kernel(_label(event), us, start - before, max(end - before, 0.0)))
        before = max(before, end)
    return found


def _label(event: dict[str, object]) -> str:
    settings = event["args"]
    assert isinstance(settings, dict)
    grid, block = settings.get("grid", []), settings.get("block", [0])
    name = str(event["name"]).removeprefix("void at::native::")[:28]
    return f"{name} {'x'.join(map(str, grid))}/{block[0] // 32}w {settings.get('registers per thread', '-')}r"


def show_layers(windows: Sequence[Sequence[Kernel]]) -> None:
    """The commonest sequence of launches of each kind of layer, with the mean over its layers and windows."""
    found: dict[str, list[list[Kernel]]] = defaultdict(list)
    for window in windows:
        layer: list[Kernel] = []
        for one in window:
            layer.append(one)
            if one.label.startswith(LAST):
                full = any(one.label.startswith(FULL) for one in layer)
                found["full layer" if full else "linear layer"].append(layer)
                layer = []
        found["after the layers"].append(layer)
    for kind, layers in found.items():
        shapes = Counter(tuple(one.label for one in layer) for layer in layers)
        (shape, count) = shapes.most_common(1)[0]
        same = [layer for layer in layers if tuple(one.label for one in layer) == shape]
        total = statistics.mean(sum(one.alone for one in layer) for layer in same)
        print(f"\n{kind}: {count / len(windows):.0f} a window of {len(layers) / len(windows):.0f}, {total:.1f} us each")
        print(f"{'':<54}     us    gap  alone")
        for column in zip(*same, strict=True):
            print(_line(column[0].label, column))


def show_all(windows: Sequence[Sequence[Kernel]], *, most: int) -> None:
    """Kernels by what they add to a window."""
    found: dict[str, list[Kernel]] = defaultdict(list)
    for window in windows:
        for one in window:
            found[one.label].append(one)
    print(f"\nall kernels\n{'':<54}     us    gap  alone  count  us a window")
    for label, ones in sorted(found.items(), key=lambda item: -sum(one.alone for one in item[1]))[:most]:
        total = sum(one.alone for one in ones) / len(windows)
        print(f"{_line(label, ones)} {len(ones) / len(windows):6.1f} {total:12.1f}")


def _line(label: str, ones: Sequence[Kernel]) -> str:
    means = (statistics.mean(getattr(one, name) for one in ones) for name in ("us", "gap", "alone"))
    return f"  {label:<52}" + " ".join(f"{mean:6.2f}" for mean in means)


if __name__ == "__main__":
    main()
