"""Times loading a file of the real shape beside what disk and link can do, in one run.

    python -m tests.bench.load_speed --layers 12 [--hits 0.6] [--file PATH]

Cold means that the kernel was asked to forget the file first; the share of it that was still cached is printed.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import mmap
import os
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch

from appliance.bench.synthetic import SyntheticShape
from appliance.gguf.reader import open_set
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.device.expert_loading import expert_rows, expert_stretches, pack_experts, pack_home
from appliance.model.qwen4exp.device.experts import expert_tensors
from appliance.model.qwen4exp.device.loading import LoadedStages, load_stages
from appliance.model.qwen4exp.device.model import DeviceModel
from appliance.model.qwen4exp.device.shapes import StepShape
from appliance.model.qwen4exp.device.source import FileSource
from appliance.model.qwen4exp.device.work import Draws
from appliance.model.qwen4exp.device_footprint import expert_bytes
from appliance.model.qwen4exp.loading_footprint import PLACE_BYTES, READERS, together
from appliance.model.qwen4exp.spec import ModelSpec, read_spec
from appliance.model.qwen4exp.tensors import raw_bytes
from kernels.experts import ExpertKind
from tests.bench.load_memory import table, taken_bytes
from tests.bench.real_file import drop_cached, write_real_file
from tests.bench.swap_cost import compare

_READERS = 8
_PIECE = 8 << 20
_MOST_READ = 4 << 30


@dataclass
class Steps:
    """When each sentence of the progress came first, in seconds."""

    began: float
    seen: dict[str, float] = field(default_factory=dict)

    def __call__(self, sentence: str, percent: int) -> None:
        """See `Progress`."""
        self.seen.setdefault(sentence, time.monotonic() - self.began)

    def line(self, total: float) -> str:
        """Seconds of each step."""
        edges = [*self.seen.values(), total]
        spans = zip(self.seen, itertools.pairwise(edges), strict=True)
        return ", ".join(f"{name} {stop - start:.1f}" for name, (start, stop) in spans)


def disk_rate(path: Path) -> float:
    """GB/s of reading the start of the file past the page cache, with several readers."""
    size = min(path.stat().st_size, _MOST_READ) // _PIECE * _PIECE
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:

        def read(first: int) -> None:
            held = mmap.mmap(-1, _PIECE)
            for at in range(first * _PIECE, size, _READERS * _PIECE):
                os.preadv(descriptor, [held], at)

        began = time.monotonic()
        with ThreadPoolExecutor(_READERS) as threads:
            list(threads.map(read, range(_READERS)))
        return size / (time.monotonic() - began) / 1e9
    finally:
        os.close(descriptor)


def cached_rate(path: Path) -> float:
    """GB/s of reading the start of a cached file into memory that was touched before."""
    size = min(path.stat().st_size, _MOST_READ) // _PIECE * _PIECE
    with path.open("rb") as file, ThreadPoolExecutor(READERS) as threads:

        def read(number: int, first: int = 0, step: int = READERS * _PIECE) -> None:
            held = bytearray(_PIECE)
            for at in range(number * _PIECE + first, size, step):
                os.preadv(file.fileno(), [held], at)

        list(threads.map(read, range(READERS)))
        began = time.monotonic()
        list(threads.map(read, range(READERS)))
        return size / (time.monotonic() - began) / 1e9


def link_rate(device: torch.device) -> float:
    """GB/s of the copy engine from pinned memory, the best of eight copies."""
    held = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(held, device=device)
    best = 0.0
    for _ in range(8):
        torch.cuda.synchronize(device)
        began = time.monotonic()
        there.copy_(held, non_blocking=True)
        torch.cuda.synchronize(device)
        best = max(best, held.numel() / (time.monotonic() - began) / 1e9)
    return best


def pack_rate(parts: LoadedStages, spec: ModelSpec) -> str:
    """What packing alone takes: stored GB/s on the card and at the host that launches it."""
    stage = parts.stages[0]
    source, store = stage.source, stage.store
    assert store is not None
    assert isinstance(source, FileSource)
    names = expert_tensors(source, "blk.0")
    count = together(spec, 0, place=PLACE_BYTES)
    stretches = expert_stretches(source, names, spec, first=0, count=count)
    raw = [raw_bytes(one.info)[one.first_row : one.first_row + one.rows].cuda() for one in stretches]
    rows, layout = expert_rows(source, names, spec, raw), store.layers[0].experts.layout
    size, words = 20 * sum(one.nbytes for one in raw) / 1e9, []
    bad = torch.zeros(3, dtype=torch.int32, device="cuda")
    for kind, where in ((layout.kind, "card"), (layout.host_kind, "card"), (layout.host_kind, "pinned")):
        out = torch.empty(count * kind.words, dtype=torch.int32, device="cuda" if where == "card" else "cpu")
        out = out if where == "card" else out.pin_memory()
        places = torch.arange(count, device="cuda") * kind.words

        def pack(kind: ExpertKind = kind, out: torch.Tensor = out, places: torch.Tensor = places) -> None:
            pack_home(rows, kind=kind, out=out, places=places, bad=bad)

        pack()
        torch.cuda.synchronize()
        began = time.monotonic()
        for _ in range(20):
            pack()
        launched = time.monotonic() - began
        torch.cuda.synchronize()
        took = time.monotonic() - began
        equal = torch.equal(out.view(count, -1).cuda(), pack_experts(rows, kind=kind))
        words.append(f"{kind.gate_up} to {where} {size / took:.1f} (host {size / launched:.1f}, as torch: {equal})")
    return ", ".join(words)


def cached_share(path: Path) -> float:
    """Share of the file's pages that the kernel holds."""
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapping:
        held = (ctypes.c_ubyte * pages)()
        first = ctypes.c_char.from_buffer(mapping)
        code = ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), held)
        del first
        return sum(1 for one in bytes(held) if one & 1) / pages if code == 0 else float("nan")


def plan_of(spec: ModelSpec, *, hits: float, device: str, prompt: int) -> LoadPlan:
    """Four slots of a short context; experts as asked."""
    pool = round(expert_bytes(spec, draft=True).total * hits)
    return LoadPlan(
        device=device,
        slots=4,
        pages=4 * 129,
        page_tokens=64,
        max_tokens=8192,
        max_window_rows=40,
        draft_max=3,
        ngram_home="ram",
        kv_type="bf16",
        expert_pool_bytes=pool,
        chunk_rows=prompt,
    )


def timed(what: str, load: Callable[[Steps], LoadedStages], *, size: int) -> LoadedStages:
    """Loads once and prints what it took."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    steps = Steps(time.monotonic())
    parts = load(steps)
    torch.cuda.synchronize()
    seconds = time.monotonic() - steps.began
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{what}: {seconds:.2f} s, {size / seconds / 1e9:.2f} GB/s, {cpu:.1f} s of cores; {steps.line(seconds)}")
    return parts


def close(parts: LoadedStages) -> None:
    """Gives pinned memory back."""
    for stage in parts.stages:
        stage.close()


def measure(path: Path, *, hits: float, prompt: int, captured: Sequence[int], cold: bool) -> None:
    """Prints the table for one file."""
    device = torch.device("cuda:0")
    size = path.stat().st_size
    spec = read_spec(open_set(path))
    plan = plan_of(spec, hits=hits, device=str(device), prompt=prompt)

    def load(steps: Steps) -> LoadedStages:
        with torch.inference_mode():
            return load_stages(spec, plan, steps)

    print(f"file {size / 1e9:.2f} GB, {hits:.0%} of the experts on the card")
    print(f"link {link_rate(device):.1f} GB/s, from pinned memory to the card")
    if cold:
        drop_cached(path)
        print(f"disk {disk_rate(path):.2f} GB/s, {_READERS} readers past the page cache")
        drop_cached(path)
        print(f"still cached: {cached_share(path):.0%}")
        close(timed("cold", load, size=size))
        print(f"cached: {cached_share(path):.0%}")
    else:
        print(f"page cache {cached_rate(path):.1f} GB/s, {READERS} readers into memory of their own")
    close(timed("first warm, compiles what is not cached", load, size=size))
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    parts = timed("warm", load, size=size)
    peak = torch.cuda.max_memory_allocated()
    print(f"packing alone, GB/s of stored bytes: {pack_rate(parts, spec)}")
    torch.cuda.empty_cache()
    model = DeviceModel(spec, plan, parts)
    for rows in captured:
        began, before = time.monotonic(), taken_bytes()
        shape = StepShape(rows=rows, spans=1, steps=plan.draft_max, draws=Draws(wide=False, greedy=True))
        with torch.inference_mode():
            model.launcher.prepare(shape)
        more = (taken_bytes() - before) / 1e6
        print(f"window of {rows} rows: captured in {time.monotonic() - began:.1f} s, {more:.1f} MB", flush=True)
    torch.cuda.reset_peak_memory_stats()
    if prompt:
        began, before = time.monotonic(), taken_bytes()
        model.launcher.warm_prompts()
        torch.cuda.synchronize()
        more = (taken_bytes() - before) / 1e6
        print(f"prompt of {prompt} rows: {time.monotonic() - began:.1f} s, {more:.1f} MB", flush=True)
    print("memory, GB: placed, measured, difference")
    print("\n".join(table(model, loading_peak=peak)), flush=True)
    if len(captured) > 1:
        compare(model, rows=captured, every=4)
    close(parts)


def main() -> None:
    """Writes a file unless one is given, and measures it."""
    command = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    command.add_argument("--file", type=Path, help="made before by tests.bench.real_file; written anew if absent")
    command.add_argument("--layers", type=int, default=12)
    command.add_argument("--hits", type=float, default=1.0, help="share of the experts on the card")
    command.add_argument(
        "--capture", type=int, nargs="*", default=[], help="windows of so many rows, and what exchanges cost"
    )
    command.add_argument("--prompt", type=int, default=0, help="rows of the longest chunk of a prompt")
    command.add_argument("--warm", action="store_true", help="only from the page cache")
    arguments = command.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.file or Path(folder) / "real.gguf"
        if not path.exists():
            began = time.monotonic()
            write_real_file(path, SyntheticShape(layers=arguments.layers), draft=True, flushed=not arguments.warm)
            print(f"written in {time.monotonic() - began:.1f} s")
        measure(
            path,
            hits=arguments.hits,
            prompt=arguments.prompt,
            captured=arguments.capture,
            cold=not arguments.warm,
        )


if __name__ == "__main__":
    main()
