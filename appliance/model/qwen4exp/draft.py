"""The draft layer: catches up on committed rows, then proposes tokens for all slots at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from appliance.model.interface import Chooser
from appliance.model.qwen4exp.attention import mix_attention
from appliance.model.qwen4exp.forward import run_experts
from appliance.model.qwen4exp.layers import AttentionWeights
from appliance.model.qwen4exp.row_builder import RowBuilder
from appliance.model.qwen4exp.rows import Rows, SpanRows
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.model.qwen4exp.state import State
from appliance.model.qwen4exp.weights import Weights
from appliance.model.window import Commit, Draft
from kernels.hyper import read_streams, write_streams
from kernels.norm import rms_norm


@dataclass
class Proposal:
    """Drafts of one slot while they grow.

    Attributes:
        commit: what was asked.
        position: of the draft row that comes next.
        limit: drafts at most: asked for, and with room in the slot's pages.
    """

    commit: Commit
    position: int
    limit: int
    tokens: list[int] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)

    @property
    def draft(self) -> Draft:
        """As the engine sees it."""
        return Draft(self.commit.slot, tuple(self.tokens), tuple(self.probabilities))


class Drafter:
    """The draft layer and its chain. Row i pairs token i + 1 with the trunk's streams after token i, at position i."""

    def __init__(self, spec: ModelSpec, weights: Weights, state: State, builder: RowBuilder) -> None:
        self._spec = spec
        self._weights = weights
        self._state = state
        self._builder = builder

    def catch_up(
        self, spans: Sequence[tuple[SpanRows, Commit]], streams: torch.Tensor
    ) -> tuple[torch.Tensor, list[int]]:
        """Runs the draft layer over all kept rows, whose keys and values replace those of earlier drafts.

        Args:
            spans: committed spans of the trunk's window and their commits.
            streams: float32 [rows, streams, hidden] of that window, after the last layer.

        Returns:
            Streams [spans, streams, hidden] after the last kept row of each span, in the order given.
        """
        pairs: list[SpanRows] = []
        source: list[int] = []
        for span, commit in spans:
            tokens = (*span.tokens[1 : commit.kept], commit.next_token)
            pairs.append(SpanRows(span.slot, span.start, tokens))
        rows = self._builder.build(pairs, trunk=False)
        first = {span.slot: span.first for span, _ in spans}
        for pair in rows.spans:
            source.extend(range(first[pair.slot], first[pair.slot] + pair.count))
        x = self.run(rows, streams.index_select(0, torch.tensor(source, device=streams.device)))
        last = {pair.slot: pair.first + pair.count - 1 for pair in rows.spans}
        return x, [last[span.slot] for span, _ in spans]

    def propose(self, streams: torch.Tensor, commits: Sequence[Commit], choose: Chooser) -> tuple[Draft, ...]:
        """Chains drafts.

        Args:
            streams: float32 [commits, streams, hidden]: the last draft row of each slot.
            commits: of slots that are already committed.
            choose: picks the tokens.

        Returns:
            One draft for each commit, possibly empty.
        """
        everyone = [self._begin(commit) for commit in commits]
        active = [i for i, proposal in enumerate(everyone) if proposal.limit > 0]
        streams = self._select(streams, active, len(everyone))
        while active:
            open_ = [everyone[i] for i in active]
            ids, shares = choose(
                self.logits(streams),
                slots=[proposal.commit.slot for proposal in open_],
                positions=[proposal.position + 1 for proposal in open_],
            )
            goes_on = []
            for place, (token, share) in enumerate(zip(ids.tolist(), shares.tolist(), strict=True)):
                proposal = open_[place]
                if share < proposal.commit.draft_min_p:
                    continue
                proposal.tokens.append(token)
                proposal.probabilities.append(share)
                if len(proposal.tokens) < proposal.limit:
                    goes_on.append(place)
            streams = self._select(streams, goes_on, len(active))
            active = [active[place] for place in goes_on]
            if active:
                streams = self._next([everyone[i] for i in active], streams)
        return tuple(proposal.draft for proposal in everyone)

    def run(self, rows: Rows, streams: torch.Tensor) -> torch.Tensor:
        """One pass of the draft layer: streams of the trunk or of the previous draft row -> streams."""
        spec, entry = self._spec, self._weights.draft_entry
        layer = self._weights.layer(spec.trunk_layers)
        assert isinstance(layer.mixer, AttentionWeights)
        token = rms_norm(self._weights.embed(rows.tokens), entry.token_norm, eps=spec.rms_eps)
        if spec.hnorm_grouped:
            state = rms_norm(streams, entry.state_norm, eps=spec.rms_eps)
        else:
            state = rms_norm(streams.flatten(1), entry.state_norm.view(-1), eps=spec.rms_eps)
        x = torch.mm(state.view(-1, spec.hidden), entry.from_state).view(streams.shape)
        x.add_(torch.mm(token, entry.from_token).unsqueeze(1))
        block, inject = read_streams(x, layer.mixer_read, eps=spec.rms_eps)
        index = self._state.keys.shape[0] - 1
        out = mix_attention(block, layer.mixer, rows, spec=spec, state=self._state, stashes=(), layer=index)
        write_streams(x, out, inject)
        run_experts(x, layer, spec)
        return x

    def logits(self, streams: torch.Tensor) -> torch.Tensor:
        """Logits float32 [rows, vocabulary] of draft rows."""
        mixed, _ = read_streams(streams, self._weights.draft_head_read, eps=self._spec.rms_eps)
        return self._weights.project(mixed)

    def _begin(self, commit: Commit) -> Proposal:
        length = self._state.lengths[commit.slot]
        room = self._state.room(commit.slot) - length
        return Proposal(commit=commit, position=length, limit=min(commit.draft_max, room))

    def _next(self, proposals: Sequence[Proposal], streams: torch.Tensor) -> torch.Tensor:
        spans = []
        for proposal in proposals:
            spans.append(SpanRows(proposal.commit.slot, proposal.position, (proposal.tokens[-1],)))
            proposal.position += 1
        rows = self._builder.build(spans, trunk=False)
        order = {span.slot: place for place, span in enumerate(spans)}
        moved = [order[span.slot] for span in rows.spans]
        if moved == list(range(len(moved))):
            return self.run(rows, streams)
        forth = torch.tensor(moved, device=streams.device)
        return self.run(rows, streams.index_select(0, forth)).index_select(0, forth.argsort())

    @staticmethod
    def _select(streams: torch.Tensor, places: Sequence[int], count: int) -> torch.Tensor:
        if len(places) == count:
            return streams
        return streams.index_select(0, torch.tensor(places, dtype=torch.int64, device=streams.device))
