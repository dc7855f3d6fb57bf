"""The draft layer: catches up on committed rows, then proposes tokens for some slots at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from appliance.model.interface import Chooser
from appliance.model.qwen4exp.attention import mix_attention
from appliance.model.qwen4exp.forward import Ran, run_experts
from appliance.model.qwen4exp.row_builder import RowBuilder
from appliance.model.qwen4exp.rows import Rows, SpanRows
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.model.qwen4exp.state import State
from appliance.model.qwen4exp.weights import Weights
from appliance.model.window import Commit, Draft
from kernels.block.op import enter_draft
from kernels.compiled.arrays import Floats, Integers
from kernels.trunk.op import run_draft


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

    def __init__(self, spec: ModelSpec, weights: Weights, state: State, builder: RowBuilder) -> None:
        self._spec = spec
        self._weights = weights
        self._state = state
        self._builder = builder

    def follow(self, ran: Ran, commits: Sequence[Commit]) -> tuple[Rows, Floats]:
        """Runs the draft layer over all kept rows, whose keys and values replace those of earlier drafts.

        Args:
            ran: a window of the trunk.
            commits: of some of its spans, already committed.

        Returns:
            The rows, and their streams [rows, streams, hidden].
        """
        rows, x, _ = self._follow(ran, commits, wanted=())
        return rows, x

    def propose(self, ran: Ran, commits: Sequence[Commit], choose: Chooser) -> tuple[Draft, ...]:
        """Follows, and chains drafts.

        Args:
            ran: a window of the trunk.
            commits: of some of its spans, already committed.
            choose: picks the tokens.

        Returns:
            One draft for each commit, possibly empty.
        """
        everyone = [self._begin(commit) for commit in commits]
        goes_on = [place for place, proposal in enumerate(everyone) if proposal.limit > 0]
        rows, x, logits = self._follow(ran, commits, wanted=goes_on)
        active = [everyone[place] for place in goes_on]
        x = x[[rows.spans[place].first + rows.spans[place].count - 1 for place in goes_on]]
        while active:
            ids, shares = choose(
                torch.from_numpy(logits[:, : self._spec.vocabulary]),
                slots=[proposal.commit.slot for proposal in active],
                positions=[proposal.position + 1 for proposal in active],
            )
            goes_on = []
            for place, (token, share) in enumerate(zip(ids.tolist(), shares.tolist(), strict=True)):
                if active[place].take(token, share):
                    goes_on.append(place)
            active, x = [active[place] for place in goes_on], _select(x, goes_on)
            if active:
                x, logits = self._step(active, x)
        return tuple(proposal.draft for proposal in everyone)

    def _follow(self, ran: Ran, commits: Sequence[Commit], *, wanted: Sequence[int]) -> tuple[Rows, Floats, Floats]:
        """See `follow`; and logits after the last row of the wanted commits."""
        spans = {span.slot: span for span in ran.rows.spans}
        pairs: list[SpanRows] = []
        source: list[int] = []
        for commit in commits:
            span = spans[commit.slot]
            pairs.append(SpanRows(span.slot, span.start, (*span.tokens[1 : commit.kept], commit.next_token)))
            source.extend(range(span.first, span.first + commit.kept))
        rows = self._builder.build(pairs, trunk=False)
        ends = [rows.spans[place].first + rows.spans[place].count - 1 for place in wanted]
        return rows, *self._run(rows, _select(ran.streams, source), np.array(ends, dtype=np.int64))

    def _step(self, proposals: Sequence[Proposal], streams: Floats) -> tuple[Floats, Floats]:
        """A row for the last draft of each slot: its streams and logits."""
        spans = [SpanRows(one.commit.slot, one.position, (one.tokens[-1],)) for one in proposals]
        for proposal in proposals:
            proposal.position += 1
        return self._run(self._builder.build(spans, trunk=False), streams, np.arange(len(spans)))

    def _run(self, rows: Rows, streams: Floats, wanted: Integers) -> tuple[Floats, Floats]:
        """One pass: streams of the trunk or of the previous draft row -> streams, and logits of the wanted rows."""
        eps, weights = np.float32(self._spec.rms_eps), self._weights
        logits = np.empty((wanted.size, weights.logit_columns), np.float32)
        if weights.draft is not None:
            slots = self._state.arrays
            return run_draft(streams, rows.tokens, weights.draft, rows.places, slots, wanted, eps, logits), logits
        layer = weights.layer(self._spec.trunk_layers)
        x = enter_draft(streams, weights.embed(rows.tokens), weights.draft_entry_record, eps)
        last = self._state.arrays.keys.shape[0] - 1
        mix_attention(x, layer, rows, state=self._state, index=last, eps=self._spec.rms_eps)
        run_experts(x, layer, eps=self._spec.rms_eps)
        if wanted.size:
            logits[:, : self._spec.vocabulary] = self.logits(x[wanted])
        return x, logits

    def logits(self, streams: Floats) -> Floats:
        """Logits float32 [rows, vocabulary] of draft rows."""
        return self._weights.project(streams, draft=True)[1]

    def _begin(self, commit: Commit) -> Proposal:
        length = self._state.lengths[commit.slot]
        room = self._state.room(commit.slot) - length
        return Proposal(commit=commit, position=length, limit=min(commit.draft_max, room))


def _select(streams: Floats, places: Sequence[int]) -> Floats:
    return streams if len(places) == streams.shape[0] else streams[list(places)]
