"""The last stage's work on a window after its layers: draw, verdict, drafts, and what goes back to the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from appliance.model.qwen4exp.device.drafter import ChainWork, Drafter
from appliance.model.qwen4exp.device.head import Vocabulary
from appliance.model.qwen4exp.device.layers import read_planes
from appliance.model.qwen4exp.device.stage import Stage
from appliance.model.qwen4exp.device.trunk import Pending, finish
from kernels.embedding import Table
from kernels.rows import Chain, Verdict, accept
from kernels.sampling.decode import Drawn, DrawScratch, draw
from kernels.sampling.slots import SlotRules


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowWork:
    """Buffers of a bucket in the last stage.

    Attributes:
        drawn, scratch: of the sampler.
        verdict: what became of the spans.
        result: int32, what goes back: ids, bad, rows and kept of spans, draft counts, drafts, probabilities (as bits).
    """

    drawn: Drawn
    scratch: DrawScratch
    verdict: Verdict
    result: torch.Tensor


@dataclass(frozen=True, slots=True)
class Draws:
    """How the slots of a window draw: some wide rules (see `kernels.sampling.slots`); all greedy."""

    wide: bool
    greedy: bool


class LastStage:
    """Head, sampler and drafter beside the last layers."""

    def __init__(self, stage: Stage, embedding: Table) -> None:
        spec, plan = stage.common.spec, stage.common.plan
        self._stage = stage
        self.rules = SlotRules.empty(slots=plan.slots, vocabulary=spec.vocabulary, device=stage.device)
        self.head = read_planes(stage.source, "output_hc", spec, inject=False)
        self.vocabulary = Vocabulary(stage.source, spec, stage.scratch)
        self.drafter: Drafter | None = None
        if stage.draft is not None:
            self.drafter = Drafter(stage, self.vocabulary, embedding, self.rules)
        self._works: dict[int, WindowWork] = {}
        self._chains: dict[int, Chain] = {}

    def bucket(self, rows: int) -> WindowWork:
        """Buffers of a bucket; the same at every call."""
        found = self._works.get(rows)
        if found is None:
            state, device = self._stage.slots, self._stage.device
            count = 4 * rows + state.draft_count.numel() + 2 * state.drafts.numel()
            found = self._works[rows] = WindowWork(
                drawn=self.vocabulary.drawn(rows),
                scratch=self.vocabulary.draw_scratch(rows),
                verdict=Verdict.empty(rows=rows, device=device),
                result=torch.zeros(count, dtype=torch.int32, device=device),
            )
        return found

    def logits(self, rows: int, pending: Pending | None) -> torch.Tensor:
        """float32 [rows, vocabulary]; the streams are then complete. Valid until the next logits."""
        _, run = self._stage.bucket(rows)
        operand = finish(run, self.head, pending, self._stage.common.spec)
        return self.vocabulary.logits(operand, used=run.rows.rows_used, exact=run.exact, pdl=run.pdl)

    def draw(self, rows: int, logits: torch.Tensor, draws: Draws) -> None:
        """Draws for the rows that want it."""
        tables, run = self._stage.bucket(rows)
        work = self.bucket(rows)
        draw(
            logits,
            tables.draw,
            self.rules,
            scratch=work.scratch,
            out=work.drawn,
            wide=draws.wide,
            greedy=draws.greedy,
            pdl=run.pdl,
        )

    def settle(self, rows: int, spans: int) -> ChainWork | None:
        """Judges the drafts and lets the draft layer catch up; returns the chain, before its first draft."""
        tables, run = self._stage.bucket(rows)
        work, chain = self.bucket(rows), None
        if self.drafter is not None:
            chain = self.drafter.chain(spans)
        accept(
            work.drawn.ids,
            tables.rows,
            forced=tables.forced,
            state=self._stage.slots,
            out=work.verdict,
            chain=self._no_chain(spans) if chain is None else chain.chain,
            pdl=run.pdl,
        )
        if self.drafter is not None and chain is not None:
            self.drafter.catch_up(rows, work.verdict, chain)
        return chain

    def propose(self, chain: ChainWork, steps: int, draws: Draws) -> None:
        """Grows the drafts of all spans by up to `steps` tokens."""
        drafter = self.drafter
        assert drafter is not None
        pending = drafter.first(chain)
        for step in range(steps):
            drafter.draw(chain, drafter.logits(chain, pending), wide=draws.wide, greedy=draws.greedy)
            drafter.take(chain, step)
            if step + 1 < steps:
                pending = drafter.next(chain)

    def gather(self, rows: int) -> torch.Tensor:
        """Everything the host wants to know, in one tensor."""
        work, slots = self.bucket(rows), self._stage.slots
        spans = self._stage.bucket(rows)[0].rows.span_count
        parts = [work.drawn.ids, work.drawn.bad, spans, work.verdict.kept, slots.draft_count, slots.drafts.view(-1)]
        torch.cat([*parts, slots.draft_probability.view(-1).view(torch.int32)], out=work.result)
        return work.result

    def _no_chain(self, spans: int) -> Chain:
        found = self._chains.get(spans)
        if found is None:
            found = self._chains[spans] = Chain.empty(rows=spans, state=self._stage.slots)
        return found
