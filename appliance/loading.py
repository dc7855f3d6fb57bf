"""Owns the engine's thread: it reads the model while the server already answers 503, then runs it."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import importlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from appliance.backend import ApplianceBackend
from appliance.engine import kernel_cache
from appliance.engine.config import EngineConfig
from appliance.engine.fault_words import fault_sentence, is_card_error, is_card_full
from appliance.errors import ApplianceError, ExitCode
from appliance.examine import Examined
from appliance.log import say, warn
from appliance.memory import private_bytes
from appliance.model.plan import LoadPlan
from appliance.placed_speed import draft_slopes
from appliance.placement import Placement
from appliance.rig.size import format_size
from appliance.server.backend import TextStack
from appliance.server.serve import Service
from appliance.text.template import ChatTemplate
from appliance.text.tokenizer import Tokenizer

# On a card the first window of its size compiles kernels, which takes minutes where none are cached.
WATCHDOG_S, CARD_WATCHDOG_S = 60.0, 900.0
# A part that differs by less from its plan is not named.
_WORTH_SAYING_BYTES = 1 << 20
TEXT_PERCENT, WEIGHTS_PERCENT, TEST_PERCENT = 2, 5, 95


# Longer than the pauses between two products, shorter than a turn of the kernel's scheduler: `tests.bench.spins` took,
# on two idle cores and beside a busy program, 963 and 1,066 us a round with 1,000 spins, 561 and 2,361 with 10,000,
# 1,018 and 11,659 with the runtime's own 300,000.
SPINS = "10000"


def share_cores(environment: MutableMapping[str, str]) -> None:
    """Lets torch's threads sleep soon while they wait for each other; before torch is imported.

    They meet thousands of times in a window. When another program has a core, the waiting thread spins its own share of
    time away until the kernel puts it last too, and a window takes minutes instead of seconds.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & environment.keys():
        environment["GOMP_SPINCOUNT"] = SPINS


class Loading:
    """Loads, then runs the engine, on one thread: two threads that compute would halve each other's speed."""

    def __init__(self, examined: Examined, backend: ApplianceBackend, loop: asyncio.AbstractEventLoop) -> None:
        self._examined = examined
        self._backend = backend
        self._loop = loop
        self._engine: Any = None
        self._report: Any = None

    def run(self, service: Service) -> None:
        """Loads, tests and runs the engine until it stops; what fails ends the process with its exit code."""
        try:
            self._serve()
        except ApplianceError as error:
            warn("the model cannot be served", reason=str(error))
            service.stop(error.exit_code)
        except MemoryError as error:
            warn("the model cannot be served", reason=f"out of memory while loading ({error})")
            service.stop(ExitCode.DOES_NOT_FIT)
        except Exception as error:
            warn("the model cannot be served", reason=fault_sentence(error))
            if is_card_full(error):
                service.stop(ExitCode.DOES_NOT_FIT)
            elif is_card_error(error):
                service.stop(ExitCode.MACHINE)
            else:
                service.stop(ExitCode.FAULT)
                raise

    def drain(self, deadline_s: float) -> None:
        """A stop was asked for: no more requests, and those that run may end."""
        self._backend.stopping()
        if self._engine is not None:
            self._engine.drain(deadline_s)

    def remember(self) -> None:
        """Saves what the run learned, once it has ended well."""
        if self._report is not None:
            self._report.remember()

    def _serve(self) -> None:
        examined, backend = self._examined, self._backend
        began = time.monotonic()
        backend.advance("reading the tokenizer", TEXT_PERCENT)
        tokenizer = Tokenizer.from_metadata(examined.model.metadata)
        backend.give_text(TextStack(tokenizer, ChatTemplate.from_metadata(examined.model.metadata, tokenizer)))
        backend.advance("loading the runtime", WEIGHTS_PERCENT)
        start_torch(examined)
        engine_type = importlib.import_module("appliance.engine.engine").Engine
        before = private_bytes()
        share = (TEST_PERCENT - WEIGHTS_PERCENT) / 100
        model = load_model(
            examined, lambda stage, percent: backend.advance(stage, round(WEIGHTS_PERCENT + percent * share))
        )
        if examined.device.cards:
            self._report = model.report
        backend.advance("testing the model", TEST_PERCENT)
        self._engine = engine = engine_type(model, engine_config(examined), on_fault=backend.fail)

        def ready() -> None:
            backend.give_engine(engine.handle)
            measured, planned = private_bytes() - before, examined.placement.model_bytes
            more = format_size(measured - planned)
            say("memory", planned=format_size(planned), measured=format_size(measured), more=more)
            if self._report is not None:
                _say_cards(examined.placement, self._report.held())
            say("ready", seconds=time.monotonic() - began, model=backend.model().id, device=backend.readiness().device)

        engine.run(self._loop, ready=ready)


def start_torch(examined: Examined) -> None:
    """What torch has to know before it is imported and before CUDA starts; once in a process."""
    share_cores(os.environ)
    if examined.device.cards:
        # Read when CUDA starts: the chosen cards are then the only ones, numbered in stage order (CFG-10).
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(card.uuid for card in examined.device.cards)
    # torch counts cores and knows nothing of a container's share of their time.
    importlib.import_module("torch").set_num_threads(examined.machine.cores.usable)


def load_model(examined: Examined, progress: Callable[[str, int], None]) -> Any:
    """The model of a rig, a `LoadedModel`, for the calling thread: the one that loads is to be the one that runs it.

    Args:
        examined: the rig, judged and placed; torch was started for it.
        progress: told the stage and its percent.
    """
    module, _, name = examined.architecture.model.partition(":")
    load = getattr(importlib.import_module(module), name)
    model = load(examined.spec, plan=_load_plan(examined), progress=progress)
    # What is there now stays for good: looking through all of it for garbage, again and again, would hold the engine up
    # between two windows for tens of milliseconds.
    gc.collect()
    gc.freeze()
    return model


def _load_plan(examined: Examined) -> LoadPlan:
    """The placement's plan, and what the rig says of experts on cards."""
    plan = examined.placement.load_plan()
    if not examined.device.cards:
        return plan
    experts, spec = examined.loaded.rig.experts, examined.spec
    if experts.profile == "auto":
        # Compiled kernels are the other thing that a restart is to find again.
        folder = Path(os.environ.get(kernel_cache.VARIABLE) or tempfile.gettempdir())
        name = "".join(one if one.isalnum() else "-" for one in spec.name)
        profile = folder / f"routing-{name:.60}-{spec.trunk_layers}x{spec.experts}.npy"
    else:
        profile = examined.loaded.resolve(experts.profile)
    return dataclasses.replace(plan, adapt_every=experts.adapt_every, profile=str(profile))


def _say_cards(placement: Placement, held: Sequence[Mapping[str, int]]) -> None:
    """Each card's memory as planned and as held between prompts, the parts that differ, and what the driver gave."""
    cuda = importlib.import_module("torch").cuda
    for number, stage in enumerate(placement.stages):
        card = stage.card
        for item in stage.items:
            differs = held[number].get(item.name, item.size_bytes) - item.size_bytes
            if abs(differs) > _WORTH_SAYING_BYTES:
                say("card part", card=card.index, part=item.name, more=format_size(differs))
        planned = stage.used_bytes - stage.size("card: runtime") - stage.size("card: prompts")
        _say_memory("card memory", card.index, planned=planned, measured=cuda.memory_allocated(number))
        if card.free_bytes is not None:
            # At the most so far: between prompts torch may have given the memory of the longest one back.
            given_back = cuda.max_memory_reserved(number) - cuda.memory_reserved(number)
            taken = card.free_bytes - cuda.mem_get_info(number)[0] + given_back
            _say_memory("card memory of the driver", card.index, planned=stage.used_bytes, measured=taken)


def _say_memory(event: str, card: int, *, planned: int, measured: int) -> None:
    more, share = format_size(measured - planned), f"{measured / planned - 1:+.1%}"
    say(event, card=card, planned=format_size(planned), measured=format_size(measured), more=more, share=share)


def engine_config(examined: Examined) -> EngineConfig:
    """The engine's settings as the placement decided them."""
    placement = examined.placement
    return EngineConfig(
        slots=placement.parallel,
        page_tokens=placement.page_tokens,
        pages=placement.pages,
        max_tokens=placement.max_tokens,
        prompt_chunk=placement.prompt_chunk,
        draft_max=placement.draft_max,
        draft_min_p=placement.draft_min_p,
        batch_mtp=placement.batch_mtp,
        queue_limit=placement.queue,
        watchdog_s=WATCHDOG_S if placement.max_rows is None else CARD_WATCHDOG_S,
        max_rows=placement.max_rows,
        span_rows=placement.span_rows,
        chunk_rows=placement.chunk_rows or None,
        groups=placement.groups,
        slopes=draft_slopes(examined.machine, examined.spec, placement),
    )
