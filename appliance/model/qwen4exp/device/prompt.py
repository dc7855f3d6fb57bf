"""Prompt chunks: hundreds to thousands of rows of one conversation, launch by launch through all stages.

A chunk leaves what decode windows over the same rows would have left. Its last row then goes on as a window of one row
whose layers have already run: logits, draw, verdict and drafts are those of any window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import torch

from appliance.model.interface import nothing
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.device.clocks import Mark, StageClock
from appliance.model.qwen4exp.device.drafter import Drafter
from appliance.model.qwen4exp.device.handoff import Border
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

    def __init__(self, parts: LoadedStages, plan: LoadPlan, borders: Sequence[Border]) -> None:
        """Makes what chunks of up to `plan.chunk_rows` rows need beside the stages and the borders between them."""
        self._parts, self._borders = parts, borders
        self._stages = [StagePrompt(stage, drafter=self._drafter_of(stage)) for stage in parts.stages]
        # Sums of products are float32 throughout, also where the library splits a product's inputs.
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        self._most_rows = min(plan.chunk_rows, plan.max_tokens)
        self._cuda = parts.stages[0].device.type == "cuda"

    @property
    def size_bytes(self) -> int:
        """Bytes that are held between chunks, of all stages."""
        return sum(one.size_bytes for one in self._stages)

    def run(
        self, tail: ChunkTail, clocks: Sequence[StageClock], *, lane: int, go_on: Callable[[], None] = nothing
    ) -> None:
        """Runs a chunk through all stages; its last row's streams are then in the last stage's bucket of one row.

        Args:
            tail: the chunk.
            clocks: of the stages; none where nobody wants to know.
            lane: whose chunk it is.
            go_on: launches what follows the layers, on the last stage's stream.
        """
        run: ChunkRun | None = None
        for number, one in enumerate(self._stages):
            clock = clocks[number] if clocks else None
            with one.stage.on():
                one.fetch(tail)
                if number:
                    self._borders[number - 1].await_stage()
                _mark(clock, lane, Mark.LANDED)
                run = self._enter(tail) if run is None else _handed_over(run, self._borders[number - 1], one)
                _mark(clock, lane, Mark.BEGUN)
                one.run(run)
                if one is self._stages[-1]:
                    self._leave(run)
                    go_on()
                _mark(clock, lane, Mark.ENDED)
                _mark(clock, lane, Mark.PASSED)

    @torch.inference_mode()
    def warm(self) -> None:
        """Runs chunks of the slot that belongs to nobody: compiles every launch, and takes the longest one's memory."""
        nobody = self._parts.last_stage.common.plan.slots
        for rows in sorted({min(rows, self._most_rows) for rows in (*WARM_ROWS, self._most_rows)}):
            self.run(ChunkTail.of(nobody, 0, (0,) * rows), (), lane=0)

    def _enter(self, tail: ChunkTail) -> ChunkRun:
        """A chunk begins on the first stage, from its tokens."""
        one = self._stages[0]
        stage, spec = one.stage, one.stage.common.spec
        # Fresh pinned memory, which torch does not hand out again before the copy from it is done.
        held = torch.tensor(tail.tokens, dtype=torch.int32, pin_memory=self._cuda)
        chunk = Chunk(tail.slot, tail.start, held.to(stage.device, non_blocking=True))
        x = torch.empty((chunk.rows, spec.streams, spec.hidden), device=stage.device)
        embed(table=self._parts.embedding, tokens=chunk.tokens, x=x, pdl=False)
        return one.start(chunk, x)

    def _leave(self, run: ChunkRun) -> None:
        """After the last stage: the last row's streams go to the bucket of one row, the draft layer catches up."""
        last = self._parts.last_stage
        last.bucket(1)[1].buffers.x.copy_(run.x[-1:])
        drafter = self._drafter_of(last)
        if drafter is not None and run.chunk.rows > 1:
            catch_up(run, last, drafter)

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


def _handed_over(run: ChunkRun, border: Border, after: StagePrompt) -> ChunkRun:
    """The chunk on the next stage, where nothing but its streams and tokens comes from the one before."""
    chunk = Chunk(run.chunk.slot, run.chunk.start, border.carry(run.chunk.tokens))
    return after.start(chunk, border.carry(run.x))


def _mark(clock: StageClock | None, lane: int, moment: Mark) -> None:
    if clock is not None:
        clock.mark(lane, moment)
