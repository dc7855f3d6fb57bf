"""Prompt chunks: hundreds to thousands of rows of one conversation, launch by launch through all stages.

A chunk leaves what decode windows over the same rows would have left. Its last row then goes on as a window of one row
whose layers have already run: logits, draw, verdict and drafts are those of any window.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch

from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.device.drafter import Drafter
from appliance.model.qwen4exp.device.layers import AttentionPlanes
from appliance.model.qwen4exp.device.loading import LoadedStages
from appliance.model.qwen4exp.device.prompt_layers import ChunkRun, keep_keys
from appliance.model.qwen4exp.device.prompt_stage import StagePrompt
from appliance.model.qwen4exp.device.prompt_turn import ChunkTail
from appliance.model.qwen4exp.device.stage import Stage
from kernels.chunk import Chunk
from kernels.embedding import embed
from kernels.embedding.prompt import enter_draft_chunk
from kernels.hyper.prompt import write_and_read_chunk
from kernels.rope.decode import RopeRows

# One of each size of tiles that experts are computed in.
WARM_ROWS: Final = (64, 1024)


class Prompts:
    """Owned by the engine's thread."""

    def __init__(self, parts: LoadedStages, plan: LoadPlan) -> None:
        """Makes what chunks of up to `plan.chunk_rows` rows need beside the stages."""
        self._parts = parts
        self._stages = [StagePrompt(stage, drafter=self._drafter_of(stage)) for stage in parts.stages]
        # Sums of products are float32 throughout, also where the library splits a product's inputs.
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        self._most_rows = min(plan.chunk_rows, plan.max_tokens)
        self._cuda = parts.stages[0].device.type == "cuda"

    @property
    def size_bytes(self) -> int:
        """Bytes that are held between chunks, of all stages."""
        return sum(one.size_bytes for one in self._stages)

    def enter(self, number: int, tail: ChunkTail, before: ChunkRun | None) -> ChunkRun:
        """A chunk begins on a stage, on its stream: from its tokens, or from the stage before."""
        one = self._stages[number]
        one.fetch(tail)
        if before is not None:
            return _handed_over(before, self._stages[number - 1].stage, one)
        stage, spec = one.stage, one.stage.common.spec
        # Fresh pinned memory, which torch does not hand out again before the copy from it is done.
        held = torch.tensor(tail.tokens, dtype=torch.int32, pin_memory=self._cuda)
        chunk = Chunk(tail.slot, tail.start, held.to(stage.device, non_blocking=True))
        x = torch.empty((chunk.rows, spec.streams, spec.hidden), device=stage.device)
        embed(table=self._parts.embedding, tokens=chunk.tokens, x=x, pdl=False)
        return one.start(chunk, x)

    def layers(self, number: int, run: ChunkRun) -> None:
        """All layers of a stage, on its stream."""
        self._stages[number].run(run)

    def leave(self, run: ChunkRun) -> None:
        """After the last stage, on its stream: the last row's streams go to the bucket of one row."""
        last = self._parts.last_stage
        last.bucket(1)[1].buffers.x.copy_(run.x[-1:])
        drafter = self._drafter_of(last)
        if drafter is not None and run.chunk.rows > 1:
            catch_up(run, last, drafter)

    def warm(self) -> None:
        """Runs chunks of the slot that belongs to nobody: compiles every launch, and takes the longest one's memory."""
        slots = self._parts.last_stage.common.plan.slots
        for rows in sorted({min(rows, self._most_rows) for rows in (*WARM_ROWS, self._most_rows)}):
            tail = ChunkTail.of(slots, 0, (0,) * rows)
            run: ChunkRun | None = None
            for number, stage in enumerate(self._parts.stages):
                with stage.on():
                    run = self.enter(number, tail, run)
                    self.layers(number, run)
            assert run is not None
            with self._parts.last_stage.on():
                self.leave(run)

    def _drafter_of(self, stage: Stage) -> Drafter | None:
        return self._parts.last.drafter if stage is self._parts.last_stage else None


def catch_up(run: ChunkRun, stage: Stage, drafter: Drafter) -> None:
    """Keys and values of the draft layer for all rows but the last, whose next token is yet to be drawn.

    Args:
        run: a chunk after all layers; its streams are used up.
        stage: the last one.
        drafter: its draft layer.
    """
    layer, pool, eps = stage.draft, stage.state.draft_pool, run.spec.rms_eps
    assert layer is not None
    assert pool is not None
    assert isinstance(layer.mixer, AttentionPlanes)
    rows, whole = run.chunk.rows - 1, run.chunk
    x, room, exact = run.x[:rows], run.room, run.exact
    enter_draft_chunk(
        table=drafter.embedding,
        tokens=whole.tokens[1:],
        wide=x,
        weights=drafter.entry,
        room=room,
        x=x,
        eps=eps,
        exact=exact,
    )
    block, _ = write_and_read_chunk(
        x=x, weights=layer.mixer_read, room=room, eps=eps, exact=exact, parts=None, inject=None
    )
    paired = replace(
        run,
        chunk=Chunk(whole.slot, whole.start, whole.tokens[:rows]),
        x=x,
        rope=RopeRows(cos=run.rope.cos[:, :rows].contiguous(), sin=run.rope.sin[:, :rows].contiguous()),
    )
    keep_keys(paired, block, weights=layer.mixer, pool=pool)


def _handed_over(run: ChunkRun, before: Stage, after: StagePrompt) -> ChunkRun:
    """The chunk on the next stage, where nothing but its streams and tokens comes from the one before."""
    stage = after.stage
    if stage.stream is not None and before.stream is not None:
        stage.stream.wait_stream(before.stream)
        run.x.record_stream(stage.stream)
        run.chunk.tokens.record_stream(stage.stream)
    tokens = run.chunk.tokens.to(stage.device, non_blocking=True)
    return after.start(Chunk(run.chunk.slot, run.chunk.start, tokens), run.x.to(stage.device, non_blocking=True))
