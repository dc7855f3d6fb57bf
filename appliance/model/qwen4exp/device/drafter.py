"""The draft layer on the device: it catches up on kept rows, then chains of single rows propose tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from appliance.model.qwen4exp.device.head import Vocabulary
from appliance.model.qwen4exp.device.layers import AttentionPlanes, LayerPlanes, read_planes
from appliance.model.qwen4exp.device.source import Source
from appliance.model.qwen4exp.device.stage import Stage
from appliance.model.qwen4exp.device.state import page_columns
from appliance.model.qwen4exp.device.trunk import Pending, Run, finish, mix_attention, run_layer
from appliance.model.qwen4exp.spec import ModelSpec
from kernels.embedding import EntryBuffers, EntryWeights, Table, enter_draft, new_buffers
from kernels.planes import choose_format, pack
from kernels.planes.fast import can_pack, pack_quickly
from kernels.rope.decode import RopeRows, rope_rows
from kernels.rows import Chain, Verdict, draft_step
from kernels.sampling.decode import Drawn, DrawScratch, draw
from kernels.sampling.slots import SlotRules


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainWork:
    """Buffers of a chain of up to some spans.

    Attributes:
        chain: its rows.
        run: a window over them.
        parts, gate: the draft layer's output at the chain's rows.
        drawn, scratch: of the sampler.
    """

    chain: Chain
    run: Run
    parts: torch.Tensor
    gate: torch.Tensor
    drawn: Drawn
    scratch: DrawScratch


class Drafter:
    """Row i pairs token i + 1 with the streams after token i, at position i.

    Attributes:
        embedding, entry: what a row begins with, for windows and for prompt chunks.
        head: of the mixer before its logits.
    """

    def __init__(self, stage: Stage, vocabulary: Vocabulary, embedding: Table, rules: SlotRules) -> None:
        spec = stage.common.spec
        assert stage.draft is not None
        assert isinstance(stage.draft.mixer, AttentionPlanes)
        self._stage, self._vocabulary, self.embedding, self._rules = stage, vocabulary, embedding, rules
        self._layer: LayerPlanes = stage.draft
        self._mixer = stage.draft.mixer
        self.entry = entry_weights(stage.source, spec)
        self._entries: dict[int, EntryBuffers] = {}
        self.head = read_planes(stage.source, f"blk.{spec.trunk_layers}.nextn.hc_head", spec, inject=False)
        self._furthest = page_columns(stage.common.plan) * stage.common.plan.page_tokens
        self._chains: dict[int, ChainWork] = {}

    def chain(self, spans: int) -> ChainWork:
        """Buffers of a chain; the same at every call."""
        found = self._chains.get(spans)
        if found is None:
            found = self._chains[spans] = self._make(spans)
        return found

    def entry_room(self, run: Run) -> EntryBuffers:
        """What the entry of a bucket's rows hands on; the same at every call."""
        rows = run.rows.rows
        if rows not in self._entries:
            self._entries[rows] = new_buffers(rows, weights=self.entry, exact=run.exact)
        return self._entries[rows]

    def catch_up(self, rows: int, verdict: Verdict, work: ChainWork) -> None:
        """Runs the layer over a window's rows and takes the last kept one of each span to the chain."""
        _, run = self._stage.bucket(rows)
        wide, x = run.buffers.x, self._stage.scratch.take("draft x", tuple(run.buffers.x.shape), rows=rows)
        paired = replace(run, rows=replace(run.rows, tokens=verdict.following), buffers=replace(run.buffers, x=x))
        pending = self._pass(paired, wide)
        spans = work.run.rows.rows
        last = verdict.last_row[:spans]
        torch.index_select(x, 0, last, out=work.run.buffers.x)
        torch.index_select(pending.gate, 0, last, out=work.gate)
        # Last, because the read that follows looks at streams and gate before it waits for the launch before it.
        torch.index_select(pending.parts.transpose(0, 1), 0, last, out=work.parts)

    def logits(self, work: ChainWork, pending: Pending) -> torch.Tensor:
        """float32 [spans, vocabulary] of the chain's rows; valid until the next call."""
        run = work.run
        operand = finish(run, self.head, pending, self._stage.common.spec)
        return self._vocabulary.logits(operand, used=run.rows.rows_used, exact=run.exact, pdl=run.pdl)

    def first(self, work: ChainWork) -> Pending:
        """What `catch_up` left."""
        return Pending(work.parts.transpose(0, 1), work.gate)

    def draw(self, work: ChainWork, logits: torch.Tensor, *, wide: bool, greedy: bool) -> None:
        """Draws the chain's next tokens by their slots' rules, with the noise the window will use."""
        draw(
            logits,
            work.chain.draw,
            self._rules,
            scratch=work.scratch,
            out=work.drawn,
            confidence=True,
            wide=wide,
            greedy=greedy,
            pdl=work.run.pdl,
        )

    def take(self, work: ChainWork, step: int) -> None:
        """Takes what was drawn as draft number `step` and moves the rows on."""
        draft_step(
            work.drawn.ids,
            work.drawn.probabilities,
            work.chain,
            step=step,
            state=self._stage.slots,
            furthest=self._furthest,
            pdl=work.run.pdl,
        )

    def next(self, work: ChainWork) -> Pending:
        """Runs the layer over the chain's rows, on the streams of the rows before."""
        spec, run = self._stage.common.spec, work.run
        rope_rows(
            run.rows,
            work.chain.axis_position,
            frequencies=self._stage.frequencies,
            block_tokens=spec.block_tokens,
            out=run.rope,
            pdl=run.pdl,
        )
        return self._pass(run, run.buffers.x)

    def _pass(self, run: Run, wide: torch.Tensor) -> Pending:
        spec, pool = self._stage.common.spec, self._stage.state.draft_pool
        assert pool is not None
        enter_draft(
            table=self.embedding,
            tokens=run.rows.tokens,
            wide=wide,
            weights=self.entry,
            buffers=self.entry_room(run),
            x=run.buffers.x,
            eps=spec.rms_eps,
            exact=run.exact,
            pdl=run.pdl,
        )
        return run_layer(
            run, self._layer, None, spec, mix=lambda: mix_attention(run, self._mixer, spec, pool=pool, indexer=None)
        )

    def _make(self, spans: int) -> ChainWork:
        stage = self._stage
        spec, device = stage.common.spec, stage.device
        chain = Chain.empty(rows=spans, state=stage.slots)
        tables, _ = stage.bucket(spans)
        run = stage.new_run(tables, spans)
        x = torch.zeros_like(run.buffers.x)
        gates = tuple(torch.zeros_like(one) for one in run.buffers.sums)
        run = replace(
            run,
            rows=chain.rows,
            rope=RopeRows.empty(rows=spans, pairs=spec.rope_dims // 2, device=device),
            buffers=replace(run.buffers, x=x, sums=(gates[0], gates[1])),
        )
        terms = self._layer.experts.layout.used + 1
        return ChainWork(
            chain=chain,
            run=run,
            parts=torch.zeros((spans, terms, spec.hidden), device=device),
            gate=torch.zeros((spans, spec.streams, spec.streams), device=device),
            drawn=self._vocabulary.drawn(spans),
            scratch=self._vocabulary.draw_scratch(spans),
        )


def entry_weights(source: Source, spec: ModelSpec) -> EntryWeights:
    """How a draft row begins; `eh_proj` holds both matrices side by side, as two tensors they come as they are."""
    prefix = f"blk.{spec.trunk_layers}.nextn"
    if f"{prefix}.eh_proj.weight" in source:
        info, raw = source.info(f"{prefix}.eh_proj.weight"), source.blocks(f"{prefix}.eh_proj.weight")
        middle, name = raw.shape[1] // 2, info.type.name
        by_kernel = raw.is_cuda and can_pack(name, choose_format(name).name)
        packer = pack_quickly if by_kernel else pack
        halves = [packer(name, half.contiguous(), columns=spec.hidden) for half in (raw[:, :middle], raw[:, middle:])]
    else:
        halves = [source.planes(f"{prefix}.fc_{name}.weight") for name in ("embd", "hidden")]
    return EntryWeights(
        token_norm=source.floats(f"{prefix}.enorm.weight").reshape(-1),
        state_norm=source.floats(f"{prefix}.hnorm.weight").reshape(spec.streams, spec.hidden),
        from_token=halves[0],
        from_state=halves[1],
        grouped=spec.hnorm_grouped,
    )
