"""Builds the stages of a model and gives every routed expert a home."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.device.hotness import hottest
from appliance.model.qwen4exp.device.ngram import ngram_table, stored_rows
from appliance.model.qwen4exp.device.shares import (
    EMBEDDING,
    ngram_tensors,
    on_device,
    own_tensors,
    stage_devices,
    stage_ranges,
)
from appliance.model.qwen4exp.device.source import FileSource, Source
from appliance.model.qwen4exp.device.stage import Common, Stage
from appliance.model.qwen4exp.device.staging import Staging
from appliance.model.qwen4exp.device.store import ExpertStore, resident_counts
from appliance.model.qwen4exp.device.store_loading import load_experts
from appliance.model.qwen4exp.device.tables import BUCKETS, bucket_of
from appliance.model.qwen4exp.device.work import LastStage
from appliance.model.qwen4exp.loading_footprint import place_bytes
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.model.routing_profile import read_profile
from kernels.embedding import Table, embed
from kernels.keys import settle_keys

Progress = Callable[[str, int], None]


class LoadedStages:
    """All stages, in the order of their layers; several have a stream each, so that they compute side by side."""

    def __init__(self, stages: Sequence[Stage], last: LastStage, embedding: Table) -> None:
        self.stages = tuple(stages)
        self.embedding = embedding
        self.last = last
        self.last_stage = stages[-1]
        if len(stages) > 1:
            for stage in stages:
                stage.take_stream()

    def embed(self, rows: int) -> None:
        """Writes the tokens' embedding to every stream of the first stage."""
        tables, run = self.stages[0].bucket(rows)
        embed(table=self.embedding, tokens=tables.rows.tokens, x=run.buffers.x, pdl=run.pdl)


def build_stages(common: Common, sources: Sequence[Source], *, draft: bool) -> LoadedStages:
    """Stages with everything but routed experts and the n-gram table.

    Args:
        common: what they share.
        sources: one for each stage, on its device; stages of one device share theirs.
        draft: whether the last one drafts.
    """
    settle_keys()
    ranges = stage_ranges(common.spec.trunk_layers, common.plan.layer_split)
    stages: list[Stage] = []
    for number, (source, layers) in enumerate(zip(sources, ranges, strict=True)):
        with on_device(source.device):
            stages.append(Stage(common, source, layers, draft=draft and number + 1 == len(ranges)))
    first, last = sources[0], sources[-1]
    with on_device(first.device):
        embedding = own = _embedding(first)
    with on_device(last.device):
        if draft and last is not first:
            own = _embedding(last)
        return LoadedStages(stages, LastStage(stages[-1], own), embedding)


def _embedding(source: Source) -> Table:
    info = source.info(EMBEDDING)
    return Table(source.blocks(EMBEDDING), info.type.name, info.shape[-1])


def load_stages(spec: ModelSpec, plan: LoadPlan, progress: Progress) -> LoadedStages:
    """Loads a model from its file: to each device what its own stages need."""
    devices = stage_devices(plan)
    progress("loading dense weights", 1)
    pdl = all(device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0) for device in devices)
    draft = spec.has_draft and plan.draft_max > 0
    place = place_bytes(spec, draft=draft)
    stagings = {device: Staging(device, place_bytes=place) for device in devices}
    sources = {device: FileSource(spec.tensors, staging) for device, staging in stagings.items()}
    for device, infos in own_tensors(spec, plan, draft=draft).items():
        stagings[device].expect(infos)
    common = Common(spec=spec, plan=plan, pdl=pdl)
    parts = build_stages(common, [sources[device] for device in devices], draft=draft)
    late = {stage.device: ngram_tensors(spec) for stage in parts.stages if stage.has_ngram}
    for device, staging in stagings.items():
        staging.expect(late.get(device, ()))
    heat = np.zeros((spec.trunk_layers + int(draft), spec.experts), np.float32)
    learned = read_profile(plan.profile, heat.shape) if plan.profile else None
    heat = heat if learned is None else learned
    _load_experts(parts, give_stores(parts, spec, plan, heat=heat), spec, sources, progress)
    _follow_routing(parts, plan, heat)
    for stage in parts.stages:
        if stage.has_ngram and spec.ngram is not None:
            progress("opening the n-gram table", 97)
            with on_device(stage.device):
                source, home = sources[stage.device], plan.ngram_home
                stored = stored_rows(source, spec, home=home, slots=plan.slots)
                stage.give_ngrams(ngram_table(source, spec, home=home), stored)
    for staging in stagings.values():
        staging.check()
        staging.close()
    if any(device.type == "cuda" for device in devices):
        # What weights were packed in is for windows and prompts now; pieces that others lie between stay torch's own.
        torch.cuda.empty_cache()
        take_room(parts, slots=plan.slots)
    return parts


def take_room(parts: LoadedStages, *, slots: int) -> None:
    """Takes the buffers of every window that can come, so that what is held from the start is what was placed.

    Args:
        parts: complete.
        slots: conversations at once.
    """
    drafter = parts.last.drafter
    for rows in BUCKETS:
        for stage in parts.stages:
            with on_device(stage.device):
                _, run = stage.bucket(rows)
                if stage.ngram is not None:
                    stage.ngram.bucket(run)
                if stage is not parts.last_stage:
                    continue
                parts.last.bucket(rows)
                if drafter is not None:
                    drafter.entry_room(run)
                    if rows <= bucket_of(slots):
                        drafter.chain(rows)


def give_stores(
    parts: LoadedStages,
    spec: ModelSpec,
    plan: LoadPlan,
    *,
    hit_share: float | None = None,
    heat: NDArray[np.float32] | None = None,
) -> list[ExpertStore]:
    """Makes every stage's homes of routed experts, still empty.

    Args:
        parts: the stages.
        spec: the model.
        plan: says how much of each card, or of the one, they may take.
        hit_share: that share of each layer on the card, instead of the plan's bytes.
        heat: float32 [layers, experts]; the hottest of each layer are on the card, without it the first.
    """
    stages = parts.stages
    weights = [[*[one.weights for one in s.blocks], *([s.draft] if s.draft is not None else [])] for s in stages]
    sizes = [[one.experts.layout.kind.words * 4 for one in stage] for stage in weights]
    counts = _resident(sizes, spec, plan, hit_share=hit_share)
    known = np.zeros((len(counts), spec.experts), np.float32) if heat is None else heat
    resident = iter([hottest(row, count) for row, count in zip(known, counts, strict=True)])
    stores = []
    for stage, own in zip(stages, sizes, strict=True):
        with on_device(stage.device):
            stores.append(stage.give_store(list(itertools.islice(resident, len(own)))))
    return stores


def _resident(sizes: Sequence[Sequence[int]], spec: ModelSpec, plan: LoadPlan, *, hit_share: float | None) -> list[int]:
    """Experts on the card of each layer; `sizes` of one expert of each layer of each stage."""
    together = list(itertools.chain.from_iterable(sizes))
    if hit_share is not None:
        pool = round(sum(together) * spec.experts * hit_share)
        return resident_counts(together, experts=spec.experts, pool_bytes=pool)
    if not plan.stage_pool_bytes:
        return resident_counts(together, experts=spec.experts, pool_bytes=plan.expert_pool_bytes)
    counts: list[int] = []
    for own, pool in zip(sizes, plan.stage_pool_bytes, strict=True):
        counts += resident_counts(own, experts=spec.experts, pool_bytes=pool)
    return counts


def _follow_routing(parts: LoadedStages, plan: LoadPlan, heat: NDArray[np.float32]) -> None:
    first = 0
    for stage in parts.stages:
        assert stage.store is not None
        stop = first + len(stage.store.layers)
        if plan.adapt_every and stage.store.hit_share < 1.0:
            with on_device(stage.device):
                stage.follow_routing(heat[first:stop], every=plan.adapt_every)
        first = stop


def _load_experts(
    parts: LoadedStages,
    stores: Sequence[ExpertStore],
    spec: ModelSpec,
    sources: Mapping[torch.device, FileSource],
    progress: Progress,
) -> None:
    done, total = 0, sum(len(store.layers) for store in stores)

    def tell() -> None:
        nonlocal done
        done += 1
        progress("loading experts", 5 + 90 * done // total)

    for stage, store in zip(parts.stages, stores, strict=True):
        with on_device(stage.device):
            load_experts(store, sources[stage.device], spec, done=tell)
