"""What one window costs the driver: calls of the CUDA runtime and the kernels, by torch's profiler, on a card.

Run: python -m tests.bench.profile_window [--synthetic real:8] [--clients 4] [--draft-max 4]. Without --synthetic it is
the built-in model. Prints the calls a window, from the thread that runs windows, and the kernels that took longest.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter

import torch
from torch.profiler import ProfilerActivity, profile

from appliance.bench import kernels
from appliance.bench.report import kernel_lines
from appliance.bench.synthetic import parse_shape
from appliance.bench.windows import Bench, load
from appliance.model.qwen4exp.device.model import DeviceModel
from appliance.model.qwen4exp.device.tables import MOST_ROWS
from tests.device.decoding import decode
from tests.engine.real import builtin, chats

WARM, WINDOWS = 8, 20
# What makes the calling thread wait for the device.
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy", "cudaFree")


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--synthetic", metavar="SHAPE", help="such as real:8; the built-in model without it")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--draft-max", type=int, default=4)
    parser.add_argument("--kernels", type=int, default=12, help="lines of the second table")
    asked = parser.parse_args()
    model = _model(asked.synthetic, clients=asked.clients, draft=asked.draft_max > 0)
    prompts = [chat[: MOST_ROWS // asked.clients] for chat in chats()[: asked.clients]]
    windows = decode(model, prompts, draft_max=asked.draft_max)
    for window in itertools.islice(windows, WARM):
        window(model.step)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        for window in itertools.islice(windows, WINDOWS):
            window(model.step)
    _calls(found)
    print("\n" + "\n".join(kernel_lines(kernels.table(found, windows=WINDOWS, most=asked.kernels))))
    gaps = model.gaps.times()
    assert gaps is not None
    print(f"\nfrom a window's end to the next launch: {1e6 * gaps.p50_s:.0f} us (median; no engine, no clients)")


def _model(synthetic: str | None, *, clients: int, draft: bool) -> DeviceModel:
    if synthetic is None:
        model = builtin("cuda:0", kv_type="bf16")
        assert isinstance(model, DeviceModel)
        return model
    rows = range(1, clients + 1)
    shape = parse_shape(synthetic)
    return load(Bench(shape=shape, rows=rows, context=1024, hit_share=1.0, draft=draft, kv_type="bf16", plain=False))


def _calls(found: profile) -> None:
    calls: Counter[str] = Counter()
    for event in found.events() or ():
        if event.name.startswith(("cuda", "cu")) and event.device_type.name == "CPU":
            calls[event.name] += 1
    print(f"calls of the CUDA runtime, {WINDOWS} windows")
    for name, count in sorted(calls.items(), key=lambda item: -item[1]):
        waits = "  waits" if name.startswith(WAITS) and not name.endswith("Async") else ""
        print(f"  {name:<34}{count:>6} {count / WINDOWS:>7.2f} a window{waits}")


if __name__ == "__main__":
    main()
