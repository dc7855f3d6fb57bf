"""Tensors that follow the sessions from window to window on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.window import WindowRows


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """What each slot has committed and what it proposes; int32 where not said otherwise, the dummy slot last.

    Attributes:
        length: [slots + 1], committed tokens.
        next_token: [slots + 1], the token that follows them.
        drafts: [slots + 1, draft_max], proposed after it.
        draft_count: [slots + 1].
        draft_probability: float32 [slots + 1, draft_max].
        draft_limit: [slots + 1], drafts wanted at most; set by the host.
        draft_least: float32 [slots + 1], the probability below which a proposal ends; set by the host.
        capacity: [slots + 1], tokens that the slot's pages hold; set by the host.
        axis_offset: [slots + 1], what a text row's rotary position has over its position (negative after pictures).
        axis_ring: [slots + 1, 16, 3], rotary positions of the last tokens.
    """

    length: torch.Tensor
    next_token: torch.Tensor
    drafts: torch.Tensor
    draft_count: torch.Tensor
    draft_probability: torch.Tensor
    draft_limit: torch.Tensor
    draft_least: torch.Tensor
    capacity: torch.Tensor
    axis_offset: torch.Tensor
    axis_ring: torch.Tensor

    @classmethod
    def empty(cls, *, slots: int, draft_max: int, device: torch.device | str) -> SlotState:
        """State of `slots` slots and the dummy, all zero."""

        def whole(*shape: int) -> torch.Tensor:
            return torch.zeros((slots + 1, *shape), dtype=torch.int32, device=device)

        most = max(1, draft_max)
        return cls(
            length=whole(),
            next_token=whole(),
            drafts=whole(most),
            draft_count=whole(),
            draft_probability=torch.zeros((slots + 1, most), device=device),
            draft_limit=whole(),
            draft_least=torch.zeros(slots + 1, device=device),
            capacity=whole(),
            axis_offset=whole(),
            axis_ring=whole(16, 3),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawRows:
    """What the sampler needs to know of the rows it draws for; int32 [rows] where not said otherwise.

    Attributes:
        slot: whose rules hold.
        position: that the drawn token takes.
        wanted: 0 where nothing is drawn.
        recent_tokens: any length; tokens that count as generated although they are not counted yet.
        recent_first, recent_count: each row's part of them.
    """

    slot: torch.Tensor
    position: torch.Tensor
    wanted: torch.Tensor
    recent_tokens: torch.Tensor
    recent_first: torch.Tensor
    recent_count: torch.Tensor

    @classmethod
    def of_window(cls, rows: WindowRows) -> DrawRows:
        """For the rows of a window, to be filled by `fill`; earlier drafts of a span are recent for the later ones."""
        return cls(
            slot=rows.slot,
            position=torch.zeros_like(rows.position),
            wanted=torch.zeros_like(rows.position),
            recent_tokens=rows.tokens,
            recent_first=torch.zeros_like(rows.position),
            recent_count=torch.zeros_like(rows.position),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a window; int32 [rows].

    Attributes:
        kept: of each span, rows that stay.
        next_token: of each span.
        last_row: of each span, the last row that stays.
        following: of each row, the token after it, as the draft layer pairs them; 0 for rows that do not stay.
    """

    kept: torch.Tensor
    next_token: torch.Tensor
    last_row: torch.Tensor
    following: torch.Tensor

    @classmethod
    def empty(cls, *, rows: int, device: torch.device | str) -> Verdict:
        """To be filled by `accept`."""
        kept, token, last, following = (torch.zeros(rows, dtype=torch.int32, device=device) for _ in range(4))
        return cls(kept=kept, next_token=token, last_row=last, following=following)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Rows of a draft chain: row s is the next row of span s.

    Attributes:
        rows: one row a span, with the positions of the draft layer.
        axis_position: int32 [3, rows].
        draw: for the sampler; a slot's earlier drafts are recent.
        active: int32 [rows], 1 while the proposal grows.
    """

    rows: WindowRows
    axis_position: torch.Tensor
    draw: DrawRows
    active: torch.Tensor

    @classmethod
    def empty(cls, *, rows: int, state: SlotState) -> Chain:
        """A chain of up to `rows` spans."""
        chain = empty_rows(rows, device=state.length.device)
        chain.span.copy_(torch.arange(rows))
        chain.span_first.copy_(torch.arange(rows))
        whole = [torch.zeros_like(chain.slot) for _ in range(5)]
        draw = DrawRows(
            slot=chain.slot,
            position=whole[0],
            wanted=whole[1],
            recent_tokens=state.drafts.view(-1),
            recent_first=whole[2],
            recent_count=whole[3],
        )
        axis_position = torch.zeros((3, rows), dtype=torch.int32, device=state.length.device)
        return cls(rows=chain, axis_position=axis_position, draw=draw, active=whole[4])


def empty_rows(rows: int, *, device: torch.device | str) -> WindowRows:
    """Metadata of a bucket, all zero."""
    names = (
        "tokens", "slot", "position", "span", "span_slot", "span_first", "span_count", "span_start", "span_certain",
    )  # fmt: skip
    tensors = {name: torch.zeros(rows, dtype=torch.int32, device=device) for name in names}
    ones = {name: torch.zeros(1, dtype=torch.int32, device=device) for name in ("rows_used", "spans_used")}
    return WindowRows(**tensors, **ones)
