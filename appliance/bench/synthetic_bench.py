"""A synthetic model's bench beside its windows: what is asked, in words what it is, kernels and prompts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from appliance.bench import kernels
from appliance.bench.clients import PromptTime, time_prompt
from appliance.bench.routing import MOST_SHARE, capped, read
from appliance.bench.session import Session
from appliance.bench.shapes import SHAPES
from appliance.bench.synthetic import parse_shape
from appliance.bench.windows import Bench, time_windows
from appliance.engine.config import EngineConfig
from appliance.engine.handle import EngineHandle
from appliance.errors import UsageError
from appliance.model.interface import LoadedModel
from appliance.model.qwen4exp.device.model import DeviceModel
from appliance.model.qwen4exp.device.tables import MOST_ROWS
from appliance.model.qwen4exp.device_footprint import RING
from appliance.model.qwen4exp.prompt_footprint import CHUNK_ROWS

PROMPT_READINGS = 3

WORDS = (
    "synthetic: random weights of the real model's shape ({layers} layers, {experts} experts a layer, gate and up "
    "{gate_up}, down {down}, dense Q8_0), {routing}, an n-gram table of a million rows; no text has a meaning"
)


def asked_of(arguments: argparse.Namespace) -> Bench:
    """What the settled command line asks.

    Raises:
        UsageError: a shape, a histogram or a prompt that cannot be.
    """
    shape = parse_shape(arguments.synthetic)
    experts = SHAPES[shape.name].experts
    if arguments.drafts == "both":
        raise UsageError("--drafts both is for a rig's model; a synthetic one has its draft layer, or not")
    longest = max(arguments.prompts, default=0)
    return Bench(
        shape=shape,
        rows=arguments.rows,
        context=max(arguments.context, longest),
        hit_share=arguments.hits,
        draft=arguments.drafts == "on",
        kv_type=arguments.kv,
        plain=arguments.plain,
        chunk_rows=min(longest, CHUNK_ROWS[0]),
        routing=None if arguments.routing is None else read(Path(arguments.routing), experts=experts),
    )


def words(asked: Bench) -> str:
    """What is synthetic about it."""
    routing = "uniform routing"
    if asked.routing is not None:
        routing = f"routing as recorded of {asked.routing.model or 'a model'}, the experts used most on the card"
        if capped(asked.routing, range(asked.shape.layers)):
            routing += f" (no expert more often than in {MOST_SHARE:.0%} of the rows)"
    return WORDS.format(
        layers=asked.shape.layers,
        experts=SHAPES[asked.shape.name].experts,
        gate_up=asked.shape.gate_up,
        down=asked.shape.down,
        routing=routing,
    )


def kernel_table(model: DeviceModel, asked: Bench) -> list[kernels.KernelTime]:
    """Kernels of the windows of the first number of rows."""
    windows = 0
    with kernels.recorded() as profile:
        for _ in time_windows(model, replace(asked, rows=asked.rows[:1], draft=False), gbps=1.0):
            windows += 1
    return kernels.table(profile, windows=25 * windows)


def time_prompts(model: DeviceModel, lengths: Sequence[int]) -> list[PromptTime]:
    """Reads prompts of these lengths through the engine, alone."""
    plan, chunks = model.plan, model.launcher.prompts
    for length in lengths:
        if chunks is not None:
            chunks.prepare(length)
    config = EngineConfig(
        slots=plan.slots,
        page_tokens=plan.page_tokens,
        pages=plan.pages,
        max_tokens=plan.max_tokens,
        prompt_chunk=max(plan.slots, MOST_ROWS - plan.slots),
        draft_max=0,
        max_rows=MOST_ROWS,
        span_rows=RING - model.spec.block_tokens + 1,
        chunk_rows=plan.chunk_rows or None,
        watchdog_s=900.0,
    )
    found: list[PromptTime] = []

    async def work(engine: EngineHandle, _: EngineConfig, __: LoadedModel) -> None:
        generator = torch.Generator().manual_seed(3)
        for length in lengths:
            texts = torch.randint(0, model.vocabulary, (PROMPT_READINGS, length), generator=generator).tolist()
            found.append(await time_prompt(engine, [tuple(text) for text in texts]))

    Session(lambda: model, [config]).run(work)
    return found
