"""Builds the stages of a model and gives every routed expert a home."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch

from appliance.gguf.reader import TensorInfo
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.device.ngram import ngram_table
from appliance.model.qwen4exp.device.source import FileSource, Source
from appliance.model.qwen4exp.device.stage import Common, Stage
from appliance.model.qwen4exp.device.staging import Staging
from appliance.model.qwen4exp.device.store import ExpertStore, resident_counts
from appliance.model.qwen4exp.device.work import LastStage
from appliance.model.qwen4exp.footprint import NGRAM_TABLE
from appliance.model.qwen4exp.spec import ModelSpec
from kernels.embedding import Table, embed

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


def stage_ranges(layers: int, split: Sequence[int]) -> list[range]:
    """Layers of each stage from the first layers of the later ones."""
    edges = [0, *split, layers]
    return [range(first, stop) for first, stop in itertools.pairwise(edges)]


def build_stages(common: Common, source: Source, *, draft: bool) -> LoadedStages:
    """Stages with everything but routed experts and the n-gram table."""
    ranges = stage_ranges(common.spec.trunk_layers, common.plan.layer_split)
    stages = [
        Stage(common, source, layers, draft=draft and number + 1 == len(ranges)) for number, layers in enumerate(ranges)
    ]
    info = source.info("token_embd.weight")
    embedding = Table(source.blocks("token_embd.weight"), info.type.name, info.shape[-1])
    return LoadedStages(stages, LastStage(stages[-1], embedding), embedding)


def load_stages(spec: ModelSpec, plan: LoadPlan, progress: Progress) -> LoadedStages:
    """Loads a model from its file."""
    device = torch.device(plan.device)
    staging = Staging(device)
    source = FileSource(spec.tensors, staging)
    progress("loading dense weights", 1)
    pdl = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
    draft = spec.has_draft and plan.draft_max > 0
    staging.expect(_in_order(spec, draft=draft))
    parts = build_stages(Common(spec=spec, plan=plan, pdl=pdl), source, draft=draft)
    staging.expect(())
    staging.check()
    _load_experts(parts, spec, plan, source, progress)
    for stage in parts.stages:
        if stage.has_ngram and spec.ngram is not None:
            progress("opening the n-gram table", 97)
            stage.give_ngrams(ngram_table(source, spec, home=plan.ngram_home))
    staging.check()
    staging.close()
    return parts


def _in_order(spec: ModelSpec, *, draft: bool) -> Iterator[TensorInfo]:
    """Whole tensors that stages are built of, block by block, then the others."""
    blocks: dict[int, list[TensorInfo]] = {}
    for name, info in spec.tensors.items():
        number = int(name.split(".")[1]) if name.startswith("blk.") else spec.trunk_layers + 1
        unused = number == spec.trunk_layers and (not draft or ".indexer." in name)
        if not ("_exps." in name or ".ple_" in name or name == NGRAM_TABLE or unused):
            blocks.setdefault(number, []).append(info)
    for number in sorted(blocks):
        yield from blocks[number]


def give_stores(
    parts: LoadedStages, spec: ModelSpec, plan: LoadPlan, *, hit_share: float | None = None
) -> list[ExpertStore]:
    """Makes every stage's homes of routed experts, still empty.

    Args:
        parts: the stages.
        spec: the model.
        plan: says how much of the card they may take.
        hit_share: that share of each layer on the card, instead of the plan's bytes.
    """
    stages = parts.stages
    weights = [[*[one.weights for one in s.blocks], *([s.draft] if s.draft is not None else [])] for s in stages]
    sizes = [one.experts.layout.kind.words * 4 for stage in weights for one in stage]
    pool = plan.expert_pool_bytes if hit_share is None else round(sum(sizes) * spec.experts * hit_share)
    counts = resident_counts(sizes, experts=spec.experts, pool_bytes=pool)
    stores = []
    for stage, own in zip(stages, weights, strict=True):
        resident, counts = counts[: len(own)], counts[len(own) :]
        stores.append(stage.give_store([range(count) for count in resident]))
    return stores


def _load_experts(parts: LoadedStages, spec: ModelSpec, plan: LoadPlan, source: FileSource, progress: Progress) -> None:
    stores = give_stores(parts, spec, plan)
    done, total = 0, sum(len(store.layers) for store in stores)

    def tell() -> None:
        nonlocal done
        done += 1
        progress("loading experts", 5 + 90 * done // total)

    for store in stores:
        store.load(source, spec, done=tell)
