"""Two stages beside one: windows, groups, a prompt, texts and drafts, each beside its goal, in one command.

    python -m tests.bench.stages

Two cards compute a stage each; on one card both share it, so that only hand-offs, texts and the host's time mean
something. Weights are made up at the real shape, all experts on the cards; drafts are accepted in the built-in model.
`--tiny` runs every part once, also without a card (`TRITON_INTERPRET=1`), and its times mean nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import time
from collections.abc import Sequence

import torch

from appliance.engine.config import EngineConfig
from appliance.gguf.reader import open_set
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.device.model import DeviceModel
from appliance.model.qwen4exp.load import load_model
from appliance.model.qwen4exp.spec import read_spec
from tests.bench.staged import REAL, TINY, Asked, Pace, Scale, load, pace, piped, read, read_alone, record_chunks
from tests.engine.harness import Answer, collect, running
from tests.engine.real import BUILTIN, chats

CHUNKS = (1, 2, 4, 8)
ALONE_S, BESIDE, RATIO, PROMPT_RATIO = 0.15e-3, 1.10, 1.8, 1.6


@dataclasses.dataclass(frozen=True)
class Drafts:
    """What became of the built-in model's drafts, by depth, and every text."""

    offered: tuple[int, ...]
    accepted: tuple[int, ...]
    texts: list[list[int]]

    def line(self) -> str:
        """Shares of the drafts that stood."""
        shares = [hit / max(1, tried) for hit, tried in zip(self.accepted, self.offered, strict=True)]
        return " ".join(f"{share:.2f}" for share in shares)


def show(name: str, asked: Asked, found: Pace) -> None:
    """A line for the windows and one for each stage."""
    print(
        f"{name}: {asked.groups} window{'s' if asked.groups > 1 else ''} of {asked.each} conversations, "
        f"{asked.drafts} drafts and {asked.steps} steps: {found.interval_s * 1e3:.3f} ms between windows, "
        f"host {found.host_s * 1e6:.0f} us, p99 {found.host_p99_s * 1e6:.0f}",
        flush=True,
    )
    for number, busy_s in enumerate(found.stage_s):
        passed = f", hand-off {found.handoff_s[number] * 1e6:.0f} us" if number + 1 < len(found.stage_s) else ""
        print(f"    stage {number}: {busy_s * 1e3:.3f} ms busy, {found.idle[number]:.0%} idle{passed}", flush=True)


def curve(model: DeviceModel, scale: Scale) -> tuple[float, float]:
    """What rows and steps of a chain cost one conversation; seconds of a window with neither, and of the chain."""
    plain = pace(model, scale, Asked(each=1, drafts=0, steps=0)).interval_s
    counts = (1, scale.drafts)
    rows = [pace(model, scale, Asked(each=1, drafts=drafts, steps=0)).interval_s for drafts in counts]
    chain = [pace(model, scale, Asked(each=1, drafts=0, steps=steps)).interval_s for steps in counts]
    print(
        f"one stage, one conversation, ms: 1 row {plain * 1e3:.3f}; 2 and {1 + scale.drafts} rows "
        + " ".join(f"{s * 1e3:.3f}" for s in rows)
        + f"; 1 row and a chain of 1 and {scale.drafts} "
        + " ".join(f"{s * 1e3:.3f}" for s in chain),
        flush=True,
    )
    return plain, max(0.0, chain[1] - plain)


def balanced(layers: int, plain_s: float, chain_s: float) -> int:
    """Layers of the first of two stages whose last has the chain too."""
    return min(layers - 1, max(1, round((layers + layers * chain_s / max(plain_s, 1e-9)) / 2)))


def prompts(name: str, model: DeviceModel, scale: Scale, *, groups: int) -> float:
    """Reads the long prompt in more and more chunks, one launch after the other and recorded; the best seconds."""
    best, chunks = float("inf"), model.launcher.prompts
    assert chunks is not None
    counts = CHUNKS if scale.layers else CHUNKS[1:2]
    took_s = record_chunks(model, [scale.prompt // count for count in counts], tokens=scale.prompt)
    print(f"{name}: {chunks.captured} graphs of chunks recorded in {took_s:.1f} s", flush=True)
    for count in counts:
        parts, found = [scale.prompt // count] * count, []
        for chunks.replaying in (False, True):
            found.append(min(read(model, scale, parts, groups=groups) for _ in range(4 if scale.warm else 1)))
        print(
            f"{name}: {scale.prompt} tokens in {count} chunks {found[0] * 1e3:.1f} ms launched one by one, "
            f"{found[1] * 1e3:.1f} ms recorded",
            flush=True,
        )
        best = min(best, *found)
    return best


def computed(model: DeviceModel, scale: Scale, one_s: float) -> None:
    """What stages would take on cards of their own, by their own times of each chunk; hand-offs count nothing."""
    for count in CHUNKS if scale.layers else CHUNKS[1:2]:
        parts = [scale.prompt // count] * count
        runs = [read_alone(model, scale, parts, groups=2) for _ in range(3 if scale.warm else 1)]
        times = min(runs, key=lambda run: sum(map(sum, run)))
        even = [(sum(chunk) / len(chunk),) * len(chunk) for chunk in times]
        each = ", ".join("/".join(f"{spent_s * 1e3:.1f}" for spent_s in one) for one in times)
        print(
            f"computed for a card each: {count} chunks {_beside(piped(times), one_s)}, with an even split "
            f"{_beside(piped(even), one_s)}; ms of each chunk by stages: {each}",
            flush=True,
        )


def _beside(took_s: float, one_s: float) -> str:
    return f"{took_s * 1e3:.1f} ms, {one_s / max(1e-9, took_s):.2f} times one card's rate"


def drafts_of(devices: tuple[str, ...], *, groups: int, tiny: bool) -> Drafts:
    """The built-in model's chats through the engine, all at once; without a card on the CPU, whatever is asked."""
    cards = torch.cuda.is_available()
    spec = read_spec(open_set(BUILTIN))
    config = EngineConfig(
        slots=8, page_tokens=64, pages=256, max_tokens=2048, prompt_chunk=32, draft_max=4, watchdog_s=900.0,
        max_rows=40, span_rows=13, groups=groups,
    )  # fmt: skip
    plan = LoadPlan(
        device="cuda:0" if cards else "cpu",
        kv_type="bf16" if cards else "f32",
        slots=config.slots,
        pages=config.pages,
        page_tokens=config.page_tokens,
        max_tokens=config.max_tokens,
        max_window_rows=40,
        draft_max=4,
        layer_split=(spec.trunk_layers // 2,) if groups > 1 and cards else (),
        devices=devices if groups > 1 and cards else (),
        groups=groups,
    )
    model = load_model(spec, plan=plan, progress=lambda stage, percent: None)

    async def ask() -> tuple[list[Answer], Drafts]:
        async with running(model, config) as run:
            some = chats()[:2] if tiny else chats()
            answers = await asyncio.gather(*(collect(run.ask(prompt, 12 if tiny else 200)) for prompt in some))
            counts = run.status().drafts
            return answers, Drafts(counts.offered, counts.accepted, [answer.ids for answer in answers])

    return asyncio.run(ask())[1]


def goal(text: str, value: float, bound: float, *, least: bool = False, unit: str = "") -> None:
    """A line of the summary."""
    held = value >= bound if least else value <= bound
    print(f"  {text}: {value:.3f}{unit}, goal {'at least' if least else 'at most'} {bound:g}{unit}"
          f"{'' if held else '  MISSED'}", flush=True)  # fmt: skip


def compare(one: dict[int, Pace], two: dict[int, Pace], lone: Pace) -> None:
    """Windows beside their goals."""
    goal("lone user's window, above one card's", (lone.interval_s - one[1].interval_s) * 1e3, ALONE_S * 1e3, unit=" ms")
    for each, found in two.items():
        busier_s = max(1e-9, *found.stage_s)
        goal(f"two groups of {each}, interval over the busier stage", found.interval_s / busier_s, BESIDE)
        rate = one[each].interval_s / max(1e-9, found.interval_s)
        goal(f"two groups of {each}, total tokens/s over one card's", rate, RATIO, least=True)
        goal(f"two groups of {each}, host a window and stage", found.host_s * 1e6 / 2, 150, unit=" us")


def hasten_interpreter() -> None:
    """Looking for overflows of integers costs the interpreter most of its time."""
    from triton.runtime import interpreter

    torch.set_num_threads(1)
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Everything."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--layers", type=int, default=24, help="of the made-up model, a multiple of 4")
    options.add_argument("--each", type=int, nargs="+", default=[1, 4], help="conversations of a window, from 1 on")
    options.add_argument("--split", type=int, help="layers of the first stage; else balanced by the times of one")
    options.add_argument("--no-curve", action="store_true", help="nothing about single rows and steps; needs --split")
    options.add_argument("--no-prompts", action="store_true")
    options.add_argument("--no-builtin", action="store_true")
    options.add_argument("--tiny", action="store_true")
    asked = options.parse_args(arguments)
    scale = TINY if asked.tiny else dataclasses.replace(REAL, layers=asked.layers)
    if asked.no_prompts:
        scale = dataclasses.replace(scale, prompt=0)
    each = [1] if asked.tiny else sorted({1, *asked.each})
    devices = ("cuda:0", "cuda:1") if torch.cuda.device_count() > 1 else ()
    began_s = time.monotonic()

    def whole(conversations: int, *, groups: int = 1) -> Asked:
        return Asked(each=conversations, groups=groups, drafts=scale.drafts, steps=scale.drafts)

    def lap(text: str) -> None:
        print(f"[{time.monotonic() - began_s:.0f} s] {text}", flush=True)

    if asked.tiny and not torch.cuda.is_available():
        hasten_interpreter()
    where = " and ".join(devices) or ("one card" if torch.cuda.is_available() else "the CPU")
    lap(f"{scale.layers or 'tiny'} layers; stages on {where}")
    model = load(scale, split=(), groups=1, devices=())
    lap("one stage is loaded")
    layers, read_one, read_two = model.spec.trunk_layers, float("inf"), float("inf")
    one = {}
    for count in each:
        one[count] = pace(model, scale, whole(count))
        show("one stage", whole(count), one[count])
    plain_s, chain_s = (0.0, 0.0) if asked.tiny or asked.no_curve else curve(model, scale)
    if not asked.no_prompts:
        read_one = prompts("one stage", model, scale, groups=1)
    model.close()
    del model
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    split = asked.split or balanced(layers, plain_s, chain_s)
    model = load(scale, split=(split,), groups=2, devices=devices)
    lap(f"two stages of {split} and {layers - split} layers are loaded, hand-off by {model.stages[0].route}")
    lone = pace(model, scale, whole(1))
    show("two stages", whole(1), lone)
    two = {}
    for count in each:
        two[count] = pace(model, scale, whole(count, groups=2))
        show("two stages", whole(count, groups=2), two[count])
    same = lone.texts == one[1].texts and all(two[count].texts[:count] == one[count].texts for count in each)
    compare(one, two, lone)
    print(f"  texts of two stages {'equal those of one' if same else 'DIFFER from those of one'}", flush=True)
    if not asked.no_prompts:
        read_two = prompts("two stages", model, scale, groups=2)
        computed(model, scale, read_one)
        goal("prompt, over one card's rate", read_one / read_two, PROMPT_RATIO, least=True)
    lap("windows and prompts are done")
    model.close()
    del model
    if not asked.no_builtin:
        found = [drafts_of((), groups=1, tiny=asked.tiny), drafts_of(devices, groups=2, tiny=asked.tiny)]
        equal = "equal" if found[0].texts == found[1].texts else "DIFFERENT"
        print(f"  built-in model, accepted by depth: {found[0].line()} / {found[1].line()}; texts {equal}")
    lap("done")


if __name__ == "__main__":
    with torch.inference_mode():
        main()
