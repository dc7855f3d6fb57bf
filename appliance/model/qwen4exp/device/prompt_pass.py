"""All that a stage launches for a prompt chunk, one by one or recorded: the launches of a shape never differ."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from appliance.model.qwen4exp.chunk_shapes import ChunkShape
from appliance.model.qwen4exp.device.drafter import Drafter
from appliance.model.qwen4exp.device.graphs import record
from appliance.model.qwen4exp.device.layers import AttentionPlanes
from appliance.model.qwen4exp.device.loading import LoadedStages
from appliance.model.qwen4exp.device.prompt_layers import ChunkRun, keep_keys
from appliance.model.qwen4exp.device.prompt_stage import StagePrompt
from appliance.model.qwen4exp.device.stage import Stage
from kernels.chunk import PLACE_WORDS, Chunk, place_words
from kernels.embedding import Table, embed
from kernels.embedding.prompt import enter_draft_chunk
from kernels.hyper.prompt import write_and_read_chunk
from kernels.rope.decode import RopeRows

HEAD_WORDS: Final = 2 * PLACE_WORDS

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChunkInput:
    """What a stage gets of a chunk.

    Attributes:
        words: int32 [8 + rows]: the place of the chunk, that of all its rows but the last, tokens.
        x: streams, float32 [rows, streams, hidden]; nothing yet on the first stage.
        reach: of `Chunk`.
    """

    words: torch.Tensor
    x: torch.Tensor
    reach: int

    @property
    def chunk(self) -> Chunk:
        """All its rows."""
        return Chunk(self.words[:PLACE_WORDS], self.words[HEAD_WORDS:], self.reach)

    @property
    def before_last(self) -> Chunk:
        """All but the last one that is somebody's; there is room for two at least."""
        return Chunk(self.words[PLACE_WORDS:HEAD_WORDS], self.words[HEAD_WORDS:-1], self.reach)


def words_of(*, slot: int, start: int, tokens: Sequence[int], rows: int, pinned: bool) -> torch.Tensor:
    """`ChunkInput.words` on the host, filled up to `rows`.

    Pinned memory is fresh, and torch does not hand it out again before the copies from it are done.
    """
    count = len(tokens)
    words = [*place_words(slot, start, count), *place_words(slot, start, count - 1), *tokens, *([0] * (rows - count))]
    return torch.tensor(words, dtype=torch.int32, pin_memory=pinned)


class ChunkPass:
    """Of one stage. What is recorded reads and writes memory that is kept for it."""

    def __init__(self, parts: LoadedStages, prompt: StagePrompt, *, kept_rows: int) -> None:
        """Takes memory for recorded chunks.

        Args:
            parts: the model.
            prompt: of one of its stages.
            kept_rows: of the longest recorded chunk; 0: none is.
        """
        self.stage, self.prompt = prompt.stage, prompt
        self._embedding: Table | None = parts.embedding if self.stage is parts.stages[0] else None
        self._is_last = self.stage is parts.last_stage
        self._drafter = parts.last.drafter if self._is_last else None
        spec, device = self.stage.common.spec, self.stage.device
        self._streams = (spec.streams, spec.hidden)
        self._words = torch.zeros(HEAD_WORDS + kept_rows, dtype=torch.int32, device=device)
        self._x = torch.zeros((kept_rows, *self._streams), device=device)
        self._recording = kept_rows > 0 and device.type == "cuda" and not self.stage.common.plan.plain
        self._graphs: dict[ChunkShape, torch.cuda.CUDAGraph] = {}
        self._side: torch.cuda.Stream | None = None
        self._pool: torch.cuda._POOL_HANDLE | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes that are held between chunks, without those of graphs."""
        return self.prompt.size_bytes + self._words.nbytes + self._x.nbytes

    @property
    def captured(self) -> int:
        """Graphs so far."""
        return len(self._graphs)

    def receive(self, held: torch.Tensor, x: torch.Tensor | None, *, reach: int, kept: bool) -> ChunkInput:
        """Brings a chunk to the stage; on its stream.

        Args:
            held: its words, on the host.
            x: its streams, on the stage's device; None where it begins.
            reach: of the chunk.
            kept: whether it has a shape, so that its place is what launches of that shape were recorded with.
        """
        rows = held.shape[0] - HEAD_WORDS
        if not kept:
            words = held.to(self.stage.device, non_blocking=True)
            x = torch.empty((rows, *self._streams), device=words.device) if x is None else x
            return ChunkInput(words, x, reach)
        given = self._kept(ChunkShape(rows, reach))
        given.words.copy_(held, non_blocking=True)
        if x is not None:
            given.x.copy_(x, non_blocking=True)
        return given

    def run(self, given: ChunkInput, shape: ChunkShape | None) -> None:
        """Launches everything; at once where the shape is recorded. `given.x` are then the streams after the stage."""
        graph = self._graphs.get(shape) if shape is not None else None
        if graph is None:
            self._launch(given)
        else:
            graph.replay()

    def missing(self, shape: ChunkShape) -> bool:
        """Whether the shape could be recorded and is not."""
        return self._recording and shape not in self._graphs

    def record(self, shape: ChunkShape) -> None:
        """Runs the launches once over rows of nobody, which compiles them, then records. Waits for the device.

        Where that fails, as it does without enough memory, nothing more is recorded: chunks are launched one by one.
        """
        try:
            self._record(shape)
        except RuntimeError as error:  # that of torch: out of memory, or a launch that cannot be recorded
            self._recording = False
            torch.cuda.empty_cache()
            reason = str(error).split("\n", 1)[0]
            _log.warning("event=chunks_not_recorded device=%s reason=%r", self.stage.device, reason)

    def _record(self, shape: ChunkShape) -> None:
        stage, given = self.stage, self._kept(shape)
        nobody = (0,) * min(shape.rows, shape.reach)
        held = words_of(slot=stage.common.plan.slots, start=0, tokens=nobody, rows=shape.rows, pinned=False)
        with stage.on():
            given.words.copy_(held)
            self._launch(given)
        torch.cuda.synchronize(stage.device)
        if self._side is None:
            self._side = torch.cuda.Stream(stage.device)  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()
            with torch.cuda.stream(self._side):
                # The library takes a stream's working memory at its first product, which is then not one in a graph.
                some = torch.zeros((16, 16), dtype=torch.float16, device=stage.device)
                torch.mm(some, some)
        # Graphs of a stage share memory for what lies between their launches: they run one after the other.
        self._graphs[shape] = record(lambda: self._launch(given), stage.device, side=self._side, pool=self._pool)

    def _kept(self, shape: ChunkShape) -> ChunkInput:
        return ChunkInput(self._words[: HEAD_WORDS + shape.rows], self._x[: shape.rows], shape.reach)

    def _launch(self, given: ChunkInput) -> None:
        chunk = given.chunk
        if self._embedding is not None:
            embed(table=self._embedding, tokens=chunk.tokens, x=given.x, pdl=False)
        run = self.prompt.start(chunk, given.x)
        self.prompt.run(run)
        if self._is_last:
            last = chunk.place[PLACE_WORDS - 1 :]
            torch.index_select(given.x, 0, last, out=self.stage.bucket(1)[1].buffers.x)
            if self._drafter is not None and chunk.rows > 1:
                catch_up(run, given.before_last, self.stage, drafter=self._drafter)


def catch_up(run: ChunkRun, chunk: Chunk, stage: Stage, *, drafter: Drafter) -> None:
    """Keys and values of the draft layer for all rows but the last, whose next token is yet to be drawn.

    Args:
        run: a chunk after all layers; its streams are used up.
        chunk: all its rows but the last.
        stage: the last one.
        drafter: its draft layer.
    """
    layer, pool, eps = stage.draft, stage.state.draft_pool, run.spec.rms_eps
    assert layer is not None
    assert pool is not None
    assert isinstance(layer.mixer, AttentionPlanes)
    x, room, exact = run.x[: chunk.rows], run.room, run.exact
    enter_draft_chunk(
        table=drafter.embedding,
        tokens=run.chunk.tokens[1:],
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
    rope = RopeRows(cos=run.rope.cos[:, : chunk.rows].contiguous(), sin=run.rope.sin[:, : chunk.rows].contiguous())
    keep_keys(replace(run, chunk=chunk, x=x, rope=rope), block, weights=layer.mixer, pool=pool)
