"""What the host decided about a window: turns that a step does not draw for go through this, on the same launches."""

from __future__ import annotations

import torch

from appliance.errors import EngineFault
from appliance.model.interface import Chooser
from appliance.model.qwen4exp.device.state import Slots
from appliance.model.qwen4exp.device.tables import bucket_of
from appliance.model.qwen4exp.device.work import LastStage
from appliance.model.window import Commit, Draft, Window


class HostVerdict:
    """What the host decided about a window, carried out by the same launches as a step."""

    def __init__(self, last: LastStage, slots: Slots, *, window: Window, commits: dict[int, Commit]) -> None:
        self._last, self._slots, self._window, self._commits = last, slots, window, commits

    def run(self, choose: Chooser) -> tuple[Draft, ...]:
        """Commits, catches up, and grows drafts with the host's choices.

        Raises:
            EngineFault: a commit that drops rows that are no drafts, or keeps a draft that was not drawn.
        """
        last, slots, commits = self._last, self._slots, tuple(self._commits.values())
        rows, spans = bucket_of(self._window.rows), bucket_of(len(self._window.spans))
        ids = self._ids(rows)
        last.bucket(rows).drawn.ids.copy_(torch.tensor(ids, dtype=torch.int32))
        chain = last.settle(rows, spans)
        kept = last.bucket(rows).verdict.kept.tolist()
        order = [span.slot for span in self._window.spans]
        for commit in commits:
            if kept[order.index(commit.slot)] != commit.kept:
                raise EngineFault(
                    f"{commit}: the device keeps {kept[order.index(commit.slot)]} rows; only drafts may be dropped, "
                    "and a draft that equals the token drawn before it stays"
                )
            slots.lengths[commit.slot] += commit.kept
        if chain is None or all(commit.draft_max == 0 for commit in commits):
            return tuple(Draft(commit.slot, (), ()) for commit in commits)
        drafter = last.drafter
        assert drafter is not None
        grown = {commit.slot: _Growing(commit, slots) for commit in commits}
        pending, step = drafter.first(chain), 0
        while any(one.open for one in grown.values()):
            logits = drafter.logits(chain, pending)
            active = [slot for slot in order if slot in grown and grown[slot].open]
            index = torch.tensor([order.index(slot) for slot in active], device=logits.device)
            positions = [slots.lengths[slot] + 1 + step for slot in active]
            found, shares = choose(logits.index_select(0, index), slots=active, positions=positions)
            chain.drawn.ids.index_copy_(0, index, found.to(torch.int32))
            chain.drawn.probabilities.index_copy_(0, index, shares.to(torch.float32))
            for slot, token, share in zip(active, found.tolist(), shares.tolist(), strict=True):
                grown[slot].take(token, share)
            drafter.take(chain, step)
            step += 1
            if any(one.open for one in grown.values()):
                pending = drafter.next(chain)
        return tuple(grown[commit.slot].draft for commit in commits)

    def _ids(self, rows: int) -> list[int]:
        """Drawn tokens that make the device's verdict the host's."""
        ids: list[int] = []
        for span in self._window.spans:
            commit = self._commits.get(span.slot)
            own = [*span.tokens[1:], -1]
            if commit is not None:
                own[commit.kept - 1] = commit.next_token
            ids += own
        return ids + [0] * (rows - len(ids))


class _Growing:
    """Drafts of one slot while they grow."""

    def __init__(self, commit: Commit, slots: Slots) -> None:
        self._commit = commit
        self._limit = min(commit.draft_max, slots.room(commit.slot) - slots.lengths[commit.slot])
        self._tokens: list[int] = []
        self._shares: list[float] = []
        self._ended = False

    @property
    def open(self) -> bool:
        """Whether one more is wanted."""
        return not self._ended and len(self._tokens) < self._limit

    @property
    def draft(self) -> Draft:
        """As the engine sees it."""
        return Draft(self._commit.slot, tuple(self._tokens), tuple(self._shares))

    def take(self, token: int, share: float) -> None:
        """Takes a token, unless it is too unlikely."""
        if share < self._commit.draft_min_p:
            self._ended = True
        else:
            self._tokens.append(token)
            self._shares.append(share)
