"""Prompt chunks: hundreds to thousands of rows of one conversation through all stages.

A chunk leaves what decode windows over the same rows would have left. Its last row then goes on as a window of one row
whose layers have already run: logits, draw, verdict and drafts are those of any window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import torch

from appliance.model.interface import nothing
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.chunk_shapes import ChunkShape, ChunkShapes
from appliance.model.qwen4exp.device.clocks import Mark, StageClock
from appliance.model.qwen4exp.device.handoff import Border
from appliance.model.qwen4exp.device.loading import LoadedStages
from appliance.model.qwen4exp.device.prompt_pass import ChunkPass, words_of
from appliance.model.qwen4exp.device.prompt_stage import StagePrompt
from appliance.model.qwen4exp.device.prompt_turn import ChunkTail

# One of each size of tiles that experts are computed in.
WARM_ROWS: Final = (64, 1024)


class Prompts:
    """Owned by the engine's thread.

    Attributes:
        replaying: whether recorded shapes are replayed; else everything is launched one by one, for comparison.
    """

    def __init__(self, parts: LoadedStages, plan: LoadPlan, borders: Sequence[Border]) -> None:
        """Makes what chunks of up to `plan.chunk_rows` rows need beside the stages and the borders between them."""
        self._parts, self._borders = parts, borders
        last = parts.last_stage
        prompts = [StagePrompt(one, drafter=parts.last.drafter if one is last else None) for one in parts.stages]
        self._most_rows = min(plan.chunk_rows, plan.max_tokens)
        sizes = plan.recorded_rows if all(prompt.repeats for prompt in prompts) else ()
        spec = last.common.spec
        self._shapes = ChunkShapes(
            tuple(rows for rows in sizes if rows <= self._most_rows),
            dense=spec.indexer_budget + spec.block_tokens - 1,
            most=last.state.pages.shape[1] * plan.page_tokens,
        )
        kept = self._shapes.most_rows
        self._passes = [ChunkPass(parts, prompt, kept_rows=kept) for prompt in prompts]
        self.replaying = True
        # Sums of products are float32 throughout, also where the library splits a product's inputs.
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        self._cuda = parts.stages[0].device.type == "cuda"

    @property
    def size_bytes(self) -> int:
        """Bytes that are held between chunks, of all stages, without those of graphs."""
        return sum(one.size_bytes for one in self._passes)

    @property
    def captured(self) -> int:
        """Graphs so far."""
        return sum(one.captured for one in self._passes)

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
        count = len(tail.tokens)
        shape = self._shapes.of(start=tail.start, count=count)
        rows, reach = (count, tail.start + count) if shape is None else (shape.rows, shape.reach)
        held = words_of(slot=tail.slot, start=tail.start, tokens=tail.tokens, rows=rows, pinned=self._cuda)
        x: torch.Tensor | None = None
        for number, one in enumerate(self._passes):
            clock = clocks[number] if clocks else None
            with one.stage.on():
                one.prompt.fetch(tail)
                if number:
                    self._borders[number - 1].await_stage()
                _mark(clock, lane, Mark.LANDED)
                there = None if x is None else self._borders[number - 1].carry(x)
                given = one.receive(held, there, reach=reach, kept=shape is not None)
                _mark(clock, lane, Mark.BEGUN)
                one.run(given, shape if self.replaying else None)
                if number == len(self._borders):
                    go_on()
                elif shape is not None:
                    x = given.x.clone()  # the stage's next chunk writes where this one lies
                else:
                    x = given.x
                _mark(clock, lane, Mark.ENDED)
                _mark(clock, lane, Mark.PASSED)

    @torch.inference_mode()
    def warm(self) -> None:
        """Compiles every launch, by chunks of the slot that belongs to nobody, and takes the longest ones' memory.

        One is the longest that is launched one by one, one the longest that is recorded.
        """
        nobody, shapes = self._parts.last_stage.common.plan.slots, self._shapes
        places = [(0, min(rows, self._most_rows)) for rows in (*WARM_ROWS, self._most_rows)]
        if self._most_rows <= shapes.dense < shapes.most:
            # No chunk alone is long enough for rows that choose what they see.
            places.append((shapes.dense, min(places[0][1], shapes.most - shapes.dense)))
        for start, rows in sorted(set(places)):
            self.run(ChunkTail.of(nobody, start, (0,) * rows), (), lane=0)
        longest = shapes.of(start=0, count=min(shapes.most_rows, shapes.dense)) if shapes.most_rows else None
        if longest is not None:
            self.record(longest)

    def shapes(self) -> Iterator[ChunkShape]:
        """Those that are recorded, the likeliest first."""
        return self._shapes.all()

    def prepare(self, tokens: int) -> None:
        """Records what a text of so many tokens needs that is read alone, chunk by chunk."""
        for start in range(0, tokens, self._most_rows):
            shape = self._shapes.of(start=start, count=min(self._most_rows, tokens - start))
            if shape is not None:
                self.record(shape)

    def missing(self, shape: ChunkShape) -> bool:
        """Whether the shape could be recorded and is not, on some stage."""
        return any(one.missing(shape) for one in self._passes)

    @torch.inference_mode()
    def record(self, shape: ChunkShape) -> None:
        """Records a shape on every stage that lacks it; no window or chunk may be on its way."""
        for one in self._passes:
            if one.missing(shape):
                one.record(shape)


def _mark(clock: StageClock | None, lane: int, moment: Mark) -> None:
    if clock is not None:
        clock.mark(lane, moment)
