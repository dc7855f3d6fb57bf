"""The rules of a window's rows as a few tensors, grouped by how they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.sampling.noise import noise_key
from kernels.sampling.rows import Row, Rules
from kernels.sampling.sparse import LogitChanges, changes

# Above this a partial selection is no longer cheaper than sorting the whole row.
_TOP_K_SELECTED = 1024
_OFF_TOP_P = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Sampled rows that are computed alike.

    Attributes:
        rows: their numbers, int64 [n]; None for all rows of the window, in order.
        temperature, top_p, min_p: float64 [n, 1]; top_p above 1 is off.
        top_k: int64 [n, 1]; at least the vocabulary is off.
        keys: int32 [n, 2], see `noise_key`.
        largest_top_k: the largest of top_k, known without asking the device.
        has_top_p, has_min_p: whether any row uses it.
    """

    rows: Tensor | None
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    keys: Tensor
    largest_top_k: int
    has_top_p: bool
    has_min_p: bool

    def take(self, index: Tensor) -> RowGroup:
        """The group of the rows with these indices within this group."""
        return RowGroup(
            rows=index if self.rows is None else self.rows[index],
            temperature=self.temperature[index],
            top_k=self.top_k[index],
            top_p=self.top_p[index],
            min_p=self.min_p[index],
            keys=self.keys[index],
            largest_top_k=self.largest_top_k,
            has_top_p=self.has_top_p,
            has_min_p=self.has_min_p,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowParams:
    """The rules of a window's rows as tensors. Rows in no group are greedy.

    Attributes:
        count: rows.
        vocabulary: tokens.
        changes: bias, penalties and forbidden tokens; None where no row has any.
        selected: rows with a small top_k.
        nucleus: rows with top_p or min_p and no top_k.
        ranked: rows with a large top_k.
        free: rows without filters.
    """

    count: int
    vocabulary: int
    changes: LogitChanges | None = None
    selected: RowGroup | None = None
    nucleus: RowGroup | None = None
    ranked: RowGroup | None = None
    free: RowGroup | None = None

    @property
    def all_greedy(self) -> bool:
        """Whether no row is drawn at random."""
        return not (self.selected or self.nucleus or self.ranked or self.free)


def build(rows: Sequence[Row], *, vocabulary: int, device: torch.device | str = "cpu") -> RowParams:
    """Gathers the rows' rules into as few tensors as possible.

    Args:
        rows: one per row of logits, in order.
        vocabulary: columns of the logits.
        device: where the logits are.

    Raises:
        ValueError: a biased, penalised or forbidden token outside the vocabulary.
    """
    members: dict[str, list[int]] = {"selected": [], "nucleus": [], "ranked": [], "free": []}
    changed = False
    for number, row in enumerate(rows):
        kind = _kind(row.rules, vocabulary)
        if kind is not None:
            members[kind].append(number)
        changed = changed or bool(row.forbidden or row.rules.logit_bias or row.rules.uses_generated)
    groups = {kind: _group(rows, found, vocabulary, device) for kind, found in members.items() if found}
    return RowParams(
        count=len(rows),
        vocabulary=vocabulary,
        changes=changes(rows, vocabulary=vocabulary, device=device) if changed else None,
        selected=groups.get("selected"),
        nucleus=groups.get("nucleus"),
        ranked=groups.get("ranked"),
        free=groups.get("free"),
    )


def _kind(rules: Rules, vocabulary: int) -> str | None:
    """The group of a row, None for greedy. One candidate left is greedy too."""
    if rules.temperature == 0 or rules.top_k == 1 or rules.top_p == 0:
        return None
    if 0 < rules.top_k < vocabulary:
        return "selected" if rules.top_k <= _TOP_K_SELECTED else "ranked"
    return "nucleus" if rules.top_p < 1 or rules.min_p > 0 else "free"


def _group(rows: Sequence[Row], members: list[int], vocabulary: int, device: torch.device | str) -> RowGroup:
    rules = [rows[number].rules for number in members]
    numbers = torch.tensor(
        [
            (rule.temperature, rule.top_p if rule.top_p < 1 else _OFF_TOP_P, rule.min_p, rule.top_k or vocabulary)
            for rule in rules
        ],
        dtype=torch.float64,
    ).to(device)
    keys = [noise_key(rows[number].rules.seed, rows[number].position) for number in members]
    whole = len(members) == len(rows)
    return RowGroup(
        rows=None if whole else torch.tensor(members, dtype=torch.int64).to(device),
        temperature=numbers[:, 0:1],
        top_p=numbers[:, 1:2],
        min_p=numbers[:, 2:3],
        top_k=numbers[:, 3:4].to(torch.int64),
        keys=torch.tensor(keys, dtype=torch.int32).to(device),
        largest_top_k=min(vocabulary, max(rule.top_k or vocabulary for rule in rules)),
        has_top_p=any(rule.top_p < 1 for rule in rules),
        has_min_p=any(rule.min_p > 0 for rule in rules),
    )
