"""A model that computes nothing, answers reproducibly from the whole prefix, and checks every rule of its caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from appliance.model.interface import Chooser
from appliance.model.window import Commit, Draft, Span, Window

_TABLE_ROWS = 1009


def never(slot: int, depth: int, position: int) -> bool:
    """No draft is right."""
    return False


def always(slot: int, depth: int, position: int) -> bool:
    """Every draft is right."""
    return True


def mixed(slot: int, depth: int, position: int) -> bool:
    """Some drafts are right, differently at each position."""
    return position * 7 % 5 not in {0, 3}


@dataclass
class _Slot:
    tokens: list[int] = field(default_factory=list)
    pages: tuple[int, ...] = ()
    usable: bool = False
    next_token: int | None = None


class FakeModel:
    """Implements LoadedModel.

    The logits after a prefix are a fixed random row picked by a hash of that prefix, so the answer of one
    conversation cannot depend on its neighbours unless the engine mixes them up.

    Attributes:
        before_forward: called with each window before it is checked; may block on an event or raise.
        script: prefix -> the token that must follow, or None for the table's.
        nan_after: prefix -> whether the logits after it are not numbers.
        draft_right: (slot, depth, position) -> whether that draft is right; depth counts from 0.
        windows: every window that was run.
        commits: the commits of every window.
    """

    def __init__(
        self, *, vocabulary: int = 61, page_tokens: int = 4, draft_right: Callable[[int, int, int], bool] | None = None
    ) -> None:
        """A model without drafts unless `draft_right` is given."""
        self.vocabulary = vocabulary
        self.can_draft = draft_right is not None
        self.draft_right = draft_right
        self.before_forward: Callable[[Window], None] | None = None
        self.script: Callable[[tuple[int, ...]], int | None] | None = None
        self.nan_after: Callable[[tuple[int, ...]], bool] | None = None
        self.windows: list[Window] = []
        self.commits: list[tuple[Commit, ...]] = []
        self._page_tokens = page_tokens
        self._slots: dict[int, _Slot] = {}
        self._pending: Window | None = None
        generator = torch.Generator().manual_seed(7)
        self._table = torch.randn(_TABLE_ROWS, vocabulary, generator=generator) * 3

    def open_slot(self, slot: int) -> None:
        """Forgets the slot."""
        self._slots[slot] = _Slot(usable=True)

    def set_pages(self, slot: int, pages: Sequence[int]) -> None:
        """Gives the slot its pages."""
        assert len(set(pages)) == len(pages), "a page twice"
        self._slots[slot].pages = tuple(pages)

    def length(self, slot: int) -> int:
        """Committed tokens."""
        return len(self._slots[slot].tokens)

    def forward(self, window: Window) -> torch.Tensor:
        """Checks the window and returns its logits."""
        if self.before_forward is not None:
            self.before_forward(window)
        assert self._pending is None, "forward without advance"
        self._check(window)
        self._pending = window
        self.windows.append(window)
        rows: list[torch.Tensor] = []
        for span in window.spans:
            prefix = (*self._slots[span.slot].tokens, *span.tokens)
            first = span.start + span.logits_from
            rows.extend(self.row(prefix[: end + 1]) for end in range(first, len(prefix)))
        return torch.stack(rows) if rows else torch.empty(0, self.vocabulary)

    def advance(self, commits: Sequence[Commit], choose: Chooser) -> tuple[Draft, ...]:
        """Keeps what stays and drafts as the pattern says."""
        window, self._pending = self._pending, None
        assert window is not None, "advance without forward"
        spans = {span.slot: span for span in window.spans}
        by_slot = {commit.slot: commit for commit in commits}
        assert len(by_slot) == len(commits), "two commits for one span"
        self.commits.append(tuple(commits))
        for slot, span in spans.items():
            self._keep(slot, span, by_slot.get(slot))
        assert by_slot.keys() <= spans.keys(), "a commit for a slot outside the window"
        return self._draft([commit for commit in commits if commit.draft_max], choose)

    def row(self, prefix: tuple[int, ...]) -> torch.Tensor:
        """Float32 logits [vocabulary] after a prefix."""
        logits = self._table[hash(prefix) % _TABLE_ROWS]
        if self.nan_after is not None and self.nan_after(prefix):
            return torch.full((self.vocabulary,), float("nan"))
        forced = None if self.script is None else self.script(prefix)
        if forced is not None:
            logits = logits.clone()
            logits[forced] = 50.0
        return logits

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The greedy answer to a prompt, by definition."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.row(tuple(tokens)).argmax()))
        return tokens[len(prompt) :]

    def _check(self, window: Window) -> None:
        slots = [span.slot for span in window.spans]
        assert len(set(slots)) == len(slots), "a slot twice in a window"
        pages = [page for slot in slots for page in self._slots[slot].pages]
        assert len(set(pages)) == len(pages), "a page belongs to two conversations"
        for span in window.spans:
            state = self._slots[span.slot]
            assert state.usable, "a slot that was not committed must be opened again"
            assert span.start == len(state.tokens), "a span starts where the committed state ends"
            assert 0 <= span.draft_count < len(span.tokens), "a draft follows at least one known token"
            assert span.start + len(span.tokens) <= len(state.pages) * self._page_tokens, "positions without pages"
            assert state.next_token in (None, span.tokens[0]), "the next row is not the token that was committed"
            assert all(0 <= token < self.vocabulary for token in span.tokens), "a token outside the vocabulary"

    def _keep(self, slot: int, span: Span, commit: Commit | None) -> None:
        state = self._slots[slot]
        if commit is None:
            state.usable = False
            return
        assert len(span.tokens) - span.draft_count <= commit.kept <= len(span.tokens), "only drafts may be dropped"
        state.tokens.extend(span.tokens[: commit.kept])
        state.next_token = commit.next_token

    def _draft(self, commits: list[Commit], choose: Chooser) -> tuple[Draft, ...]:
        if not commits or self.draft_right is None:
            return ()
        prefixes = {commit.slot: [*self._slots[commit.slot].tokens, commit.next_token] for commit in commits}
        chosen: dict[int, list[int]] = {commit.slot: [] for commit in commits}
        for depth in range(max(commit.draft_max for commit in commits)):
            slots = [commit.slot for commit in commits if commit.draft_max > depth]
            positions = [len(prefixes[slot]) for slot in slots]
            logits = torch.stack([self.row(tuple(prefixes[slot])) for slot in slots])
            ids, probabilities = choose(logits, slots=slots, positions=positions)
            assert ids.shape == probabilities.shape == (len(slots),)
            for slot, position, token in zip(slots, positions, ids.tolist(), strict=True):
                right = self.draft_right(slot, depth, position)
                prefixes[slot].append(token if right else (token + 1) % self.vocabulary)
                chosen[slot].append(prefixes[slot][-1])
        return tuple(Draft(slot, tuple(tokens), (0.9,) * len(tokens)) for slot, tokens in chosen.items())
