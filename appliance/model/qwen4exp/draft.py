"""The draft layer: catches up on committed rows, then proposes tokens for all slots at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from appliance.model.interface import Chooser
from appliance.model.qwen4exp.attention import mix_attention
from appliance.model.qwen4exp.forward import Ran, run_experts
from appliance.model.qwen4exp.lanes import Lanes
from appliance.model.qwen4exp.row_builder import RowBuilder
from appliance.model.qwen4exp.rows import Rows, SpanRows
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.model.qwen4exp.state import State
from appliance.model.qwen4exp.weights import Weights
from appliance.model.window import Commit, Draft
from kernels.block.op import AttentionWeights, enter_draft
from kernels.compiled.arrays import Floats
from kernels.hyper.op import read_streams


@dataclass
class Proposal:
    """Drafts of one slot while they grow.

    Attributes:
        commit: what was asked.
        position: of the draft row that comes after the last token.
        limit: drafts at most: asked for, and with room in the slot's pages.
    """

    commit: Commit
    position: int
    limit: int
    tokens: list[int] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)

    def take(self, token: int, share: float) -> bool:
        """Takes the next draft if it is likely enough; returns whether another one is wanted."""
        if share < self.commit.draft_min_p:
            return False
        self.tokens.append(token)
        self.probabilities.append(share)
        return len(self.tokens) < self.limit

    @property
    def draft(self) -> Draft:
        """As the engine sees it."""
        return Draft(self.commit.slot, tuple(self.tokens), tuple(self.probabilities))


class Drafter:
    """The draft layer and its chain. Row i pairs token i + 1 with the trunk's streams after token i, at position i."""

    def __init__(self, spec: ModelSpec, weights: Weights, state: State, builder: RowBuilder, lanes: Lanes) -> None:
        self._spec = spec
        self._weights = weights
        self._state = state
        self._builder = builder
        self._lanes = lanes

    def catch_up(self, ran: Ran, commits: Sequence[Commit]) -> Floats:
        """`follow`, and then the streams [commits, streams, hidden] after the last kept row of each commit."""
        rows, x = self.follow(ran, commits)
        return x[[span.first + span.count - 1 for span in rows.spans]]

    def follow(self, ran: Ran, commits: Sequence[Commit]) -> tuple[Rows, Floats]:
        """Runs the draft layer over all kept rows, whose keys and values replace those of earlier drafts.

        Args:
            ran: a window of the trunk.
            commits: of some of its spans, already committed.

        Returns:
            The rows, and their streams [rows, streams, hidden].
        """
        spans = {span.slot: span for span in ran.rows.spans}
        pairs: list[SpanRows] = []
        source: list[int] = []
        for commit in commits:
            span = spans[commit.slot]
            pairs.append(SpanRows(span.slot, span.start, (*span.tokens[1 : commit.kept], commit.next_token)))
            source.extend(range(span.first, span.first + commit.kept))
        rows = self._builder.build(pairs, trunk=False)
        return rows, self.run(rows, ran.streams[source])

    def propose(self, streams: Floats, commits: Sequence[Commit], choose: Chooser) -> tuple[Draft, ...]:
        """Chains drafts.

        Args:
            streams: float32 [commits, streams, hidden]: the last draft row of each slot.
            commits: of slots that are already committed.
            choose: picks the tokens.

        Returns:
            One draft for each commit, possibly empty.
        """
        everyone = [self._begin(commit) for commit in commits]
        goes_on = [place for place, proposal in enumerate(everyone) if proposal.limit > 0]
        active, streams = [everyone[place] for place in goes_on], _select(streams, goes_on)
        while active:
            streams, logits = self._step(active, streams)
            ids, shares = choose(
                torch.from_numpy(logits),
                slots=[proposal.commit.slot for proposal in active],
                positions=[proposal.position + 1 for proposal in active],
            )
            goes_on = []
            for place, (token, share) in enumerate(zip(ids.tolist(), shares.tolist(), strict=True)):
                if active[place].take(token, share):
                    goes_on.append(place)
            active, streams = [active[place] for place in goes_on], _select(streams, goes_on)
        return tuple(proposal.draft for proposal in everyone)

    def _step(self, proposals: Sequence[Proposal], streams: Floats) -> tuple[Floats, Floats]:
        """A row for the last draft of each slot (the rows of the kept tokens come first), and the logits."""

        def run(cut: slice) -> tuple[Floats, Floats]:
            own = streams[cut]
            spans = [
                SpanRows(proposal.commit.slot, proposal.position, (proposal.tokens[-1],))
                for proposal in proposals[cut]
                if proposal.tokens
            ]
            if spans:
                own = self.run(self._builder.build(spans, trunk=False), own)
            return own, self.logits(own)

        done = self._lanes.run(run, self._lanes.cut([1] * len(proposals)))
        for proposal in proposals:
            proposal.position += int(bool(proposal.tokens))
        return np.concatenate([part for part, _ in done]), np.concatenate([part for _, part in done])

    def run(self, rows: Rows, streams: Floats) -> Floats:
        """One pass of the draft layer: streams of the trunk or of the previous draft row -> streams."""
        eps, weights = self._spec.rms_eps, self._weights
        layer = weights.layer(self._spec.trunk_layers)
        assert isinstance(layer.mixer, AttentionWeights)
        x = enter_draft(streams, weights.embed(rows.tokens), weights.draft_entry, np.float32(eps))
        last = self._state.keys.shape[0] - 1
        mix_attention(x, layer.mixer_read, layer.mixer, rows, state=self._state, layer=last, eps=eps)
        run_experts(x, layer, eps=eps)
        return x

    def logits(self, streams: Floats) -> Floats:
        """Logits float32 [rows, vocabulary] of draft rows."""
        mixed, _ = read_streams(streams, self._weights.draft_head_read, np.float32(self._spec.rms_eps))
        return self._weights.project(mixed)

    def _begin(self, commit: Commit) -> Proposal:
        length = self._state.lengths[commit.slot]
        room = self._state.room(commit.slot) - length
        return Proposal(commit=commit, position=length, limit=min(commit.draft_max, room))


def _select(streams: Floats, places: Sequence[int]) -> Floats:
    return streams if len(places) == streams.shape[0] else streams[list(places)]
