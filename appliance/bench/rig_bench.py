"""What a rig's model reaches in this process: clients with drafts and without, prompts of several lengths, kernels."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import torch

from appliance.bench import kernels, routing
from appliance.bench.bandwidth import measured_bandwidth
from appliance.bench.bytes import cpu_bytes_read, draft_bytes_read, uniform, window_bytes_read
from appliance.bench.clients import Answer, ClientsTime, PromptTime, ask, time_clients, time_prompt
from appliance.bench.prompts import fitting, long_prompt, questions
from appliance.bench.routing import RoutingCounter
from appliance.bench.session import Session
from appliance.engine.config import EngineConfig
from appliance.engine.handle import EngineHandle
from appliance.examine import Examined
from appliance.loading import engine_config, load_model, start_torch
from appliance.model.interface import LoadedModel
from appliance.model.qwen4exp.device.model import DeviceModel
from appliance.text.template import ChatTemplate
from appliance.text.tokenizer import Tokenizer

CLIENTS: Final = (1, 2, 4, 8)
PROMPTS: Final = (512, 2048, 8192, 32768)
# A longer prompt is not tried once one took this long.
PATIENCE_S: Final = 60.0
PROMPT_READINGS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RigAsked:
    """What is asked.

    Attributes:
        clients: numbers of clients, at most the rig's conversations.
        tokens: of an answer.
        prompts: lengths to read.
        drafts: for each round the longest draft; the first also reads the prompts.
        kernels: whether the table of kernels is wanted.
        record_routing: where the histogram goes.
    """

    clients: Sequence[int]
    tokens: int
    prompts: Sequence[int]
    drafts: Sequence[int]
    kernels: bool = False
    record_routing: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Clients beside the bytes that their windows read.

    Attributes:
        time: what they got.
        gigabytes: of a window and its drafts.
        limit_s: those bytes over the bandwidth of this run.
        hit_share: of routed experts found on a card; None on the CPU.
    """

    time: ClientsTime
    gigabytes: float
    limit_s: float
    hit_share: float | None


@dataclass(slots=True)
class RigFound:
    """What came out, as far as it is."""

    gbps: float = 0.0
    lines: list[Line] = field(default_factory=list)
    prompts: list[PromptTime] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    kernels: list[kernels.KernelTime] = field(default_factory=list)


def run(examined: Examined, asked: RigAsked, *, tell: Callable[[Line | PromptTime], None]) -> RigFound:
    """Measures; `tell` hears each result at once.

    Raises:
        EngineFault: the engine was lost, or a text is wrong, so that its speed means nothing.
        ApplianceError: what loading met.
    """
    start_torch(examined)
    tokenizer = Tokenizer.from_metadata(examined.model.metadata)
    template = ChatTemplate.from_metadata(examined.model.metadata, tokenizer)
    chats = questions(tokenizer, template)
    template.close()
    bench = _RigBench(examined, asked, tokenizer=tokenizer, chats=chats, tell=tell)
    config = engine_config(examined)
    configs = [replace(config, draft_max=draft_max) for draft_max in asked.drafts]
    Session(lambda: load_model(examined, _progress), configs).run(bench.work)
    return bench.found


def _progress(stage: str, percent: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{stage} {percent}%".ljust(60), end="" if percent < 100 else "\n", file=sys.stderr, flush=True)


class _RigBench:
    """The rounds of one run."""

    def __init__(
        self,
        examined: Examined,
        asked: RigAsked,
        *,
        tokenizer: Tokenizer,
        chats: Sequence[tuple[int, ...]],
        tell: Callable[[Line | PromptTime], None],
    ) -> None:
        self.found = RigFound()
        self._examined, self._asked = examined, asked
        self._tokenizer, self._chats, self._tell = tokenizer, chats, tell

    async def work(self, engine: EngineHandle, config: EngineConfig, model: LoadedModel) -> None:
        """One round."""
        first = not self.found.lines
        if first:
            self.found.gbps = await asyncio.to_thread(measured_bandwidth, torch.device(self._examined.placement.device))
        counter = RoutingCounter(model) if isinstance(model, DeviceModel) else None
        await self._clients(engine, config, model)
        if first and self._asked.record_routing is not None:
            assert counter is not None
            routing.write(self._asked.record_routing, counter.histogram())
        if first:
            await self._prompts(engine)
        if first and self._asked.kernels:
            await self._kernels(engine)

    async def _clients(self, engine: EngineHandle, config: EngineConfig, model: LoadedModel) -> None:
        tokens = self._asked.tokens
        chats = [self._chats[number % len(self._chats)] for number in range(max(self._asked.clients))]
        await ask(engine, chats[0], tokens)
        alone: list[Answer] = [await ask(engine, chat, tokens) for chat in chats]
        for count in self._asked.clients:
            counter = RoutingCounter(model) if isinstance(model, DeviceModel) else None
            time = await time_clients(
                engine,
                chats[:count],
                tokens=tokens,
                draft_max=config.draft_max,
                alone=alone[:count],
                made=lambda: model.launcher.captured if isinstance(model, DeviceModel) else 0,
            )
            size = self._window_bytes(time)
            line = Line(
                time=time,
                gigabytes=size / 1e9,
                limit_s=size / self.found.gbps / 1e9,
                hit_share=None if counter is None else counter.hit_share(),
            )
            self.found.lines.append(line)
            self._tell(line)

    def _window_bytes(self, time: ClientsTime) -> int:
        spec, placement = self._examined.spec, self._examined.placement
        rows, count = round(time.rows), time.clients
        if not placement.stages:
            weights = next(item.size_bytes for item in placement.items if item.name == "weights")
            return cpu_bytes_read(spec, weight_bytes=weights, rows=rows, sequences=count, steps=time.draft_max)
        context = len(self._chats[0]) + self._asked.tokens // 2
        kv_type, distinct = placement.load_plan().kv_type, uniform(spec)
        size = window_bytes_read(spec, context=context, kv_type=kv_type, rows=rows, sequences=count, distinct=distinct)
        if time.draft_max:
            size += draft_bytes_read(
                spec, context=context, kv_type=kv_type, rows=rows, sequences=count, steps=time.draft_max
            )
        return size

    async def _prompts(self, engine: EngineHandle) -> None:
        lengths = fitting(self._asked.prompts, max_tokens=engine.max_tokens)
        for at, length in enumerate(lengths):
            texts = [long_prompt(self._tokenizer, length, number=number) for number in range(PROMPT_READINGS)]
            found = await time_prompt(engine, texts)
            self.found.prompts.append(found)
            self._tell(found)
            if found.first_token_s > PATIENCE_S:
                self.found.skipped = lengths[at + 1 :]
                return

    async def _kernels(self, engine: EngineHandle) -> None:
        chats = self._chats[: max(self._asked.clients)]
        before = engine.status().timings.windows
        with kernels.recorded() as profile:
            await asyncio.gather(*(ask(engine, chat, self._asked.tokens) for chat in chats))
        windows = engine.status().timings.windows - before
        self.found.kernels = kernels.table(profile, windows=max(1, windows))
