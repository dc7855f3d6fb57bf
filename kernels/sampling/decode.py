"""Draws for the rows of a decode window on the device, by rules that lie there; nothing waits for the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from kernels.rows.tables import DrawRows
from kernels.sampling._draw import collect
from kernels.sampling._scan import scan
from kernels.sampling.slots import MOST_TOP_K, STOPS, SlotRules
from kernels.sampling.wide import draw_wide
from kernels.terms import check_tensor, launch_options

CANDIDATES = 1024
SHORT_CANDIDATES = 128
MOST_TOP_LOGPROBS = 20
_MOST_TILES = 256
_SLOW_BLOCK = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What was drawn for each row; rows that were not wanted have id 0, probability 0 and are not bad.

    Attributes:
        ids: int32 [rows].
        probabilities: float32 [rows], of each id in the distribution it was drawn from; for greedy rows 1, or the
            softmax at temperature 1 where confidence was asked for.
        bad: int32 [rows], 1 where a logit is NaN or infinite, or no token is left.
    """

    ids: Tensor
    probabilities: Tensor
    bad: Tensor

    @classmethod
    def empty(cls, *, rows: int, device: torch.device | str) -> Drawn:
        """To be filled by `draw`."""
        ids, bad = (torch.zeros(rows, dtype=torch.int32, device=device) for _ in range(2))
        return cls(ids=ids, probabilities=torch.zeros(rows, device=device), bad=bad)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLogprobs:
    """Log-probabilities of the model's own distribution.

    Attributes:
        tokens: int32 [rows, n], likeliest first, ties by the lower id.
        values: float32 [rows, n].
        chosen: float32 [rows], of the drawn tokens.
    """

    tokens: Tensor
    values: Tensor
    chosen: Tensor

    @classmethod
    def empty(cls, *, rows: int, count: int, device: torch.device | str) -> TopLogprobs:
        """To be filled by `top_logprobs`."""
        return cls(
            tokens=torch.zeros((rows, count), dtype=torch.int32, device=device),
            values=torch.zeros((rows, count), device=device),
            chosen=torch.zeros(rows, device=device),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawScratch:
    """Room for one draw at a time; it cleans its counters itself.

    Attributes:
        tile: tokens that one program looks at.
        work: float32 [rows, vocabulary]: changed logits.
        tiles_float: float32 [2, rows, tiles]: tops, masses.
        tiles_whole: int32 [3, rows, tiles]: ids of the tops, unsound tiles, ids of free draws.
        tiles_double: float64 [2, rows, tiles]: noisy tops and masses of free draws.
        rows_float: float32 [3, rows]: top, floor, log of the mass.
        tickets: int32 [rows, 2], zero between launches.
        list_count: int32 [rows], zero between launches.
        list_value, list_id: float32 and int32 [rows, candidates].
        best, best_id: float32 and int32 [rows, top k at most].
    """

    tile: int
    work: Tensor
    tiles_float: Tensor
    tiles_whole: Tensor
    tiles_double: Tensor
    rows_float: Tensor
    tickets: Tensor
    list_count: Tensor
    list_value: Tensor
    list_id: Tensor
    best: Tensor
    best_id: Tensor

    @classmethod
    def empty(cls, *, rows: int, vocabulary: int, device: torch.device | str, tile: int | None = None) -> DrawScratch:
        """Scratch for a bucket; `tile` is for tests, results do not depend on it."""
        tile = tile or max(16, triton.next_power_of_2(-(-vocabulary // _MOST_TILES)))
        tiles = -(-vocabulary // tile)

        def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            tile=tile,
            work=room(rows, vocabulary),
            tiles_float=room(2, rows, tiles),
            tiles_whole=room(3, rows, tiles, dtype=torch.int32),
            tiles_double=room(2, rows, tiles, dtype=torch.float64),
            rows_float=room(3, rows),
            tickets=room(rows, 2, dtype=torch.int32),
            list_count=room(rows, dtype=torch.int32),
            list_value=room(rows, CANDIDATES),
            list_id=room(rows, CANDIDATES, dtype=torch.int32),
            best=room(rows, MOST_TOP_K),
            best_id=room(rows, MOST_TOP_K, dtype=torch.int32),
        )


def draw(
    logits: Tensor,
    rows: DrawRows,
    rules: SlotRules,
    *,
    scratch: DrawScratch,
    out: Drawn,
    confidence: bool = False,
    wide: bool = False,
    greedy: bool = False,
    pdl: bool = False,
) -> None:
    """Draws a token for each wanted row, as `kernels.sampling.choose` does: the same noise, order and rounding.

    Args:
        logits: float32 [rows, vocabulary]; not changed.
        rows: slots, positions of the drawn tokens, and recent tokens that count as generated.
        rules: of all slots.
        scratch: for this bucket and vocabulary.
        out: gets the draws.
        confidence: give greedy rows the softmax probability of their token at temperature 1 instead of 1.
        wide: also serve slots whose kind is WIDE, at the cost of sorting every row; without, such rows are greedy.
        greedy: all slots are greedy, so the second launch is left out.
        pdl: start before the launch before this one is done.

    Raises:
        ValueError: shapes or dtypes that do not fit.
    """
    count, vocabulary = _check(logits, rows, rules, scratch)
    check_tensor("drawn ids", out.ids, (count,), torch.int32)
    check_tensor("probabilities", out.probabilities, (count,))
    check_tensor("bad rows", out.bad, (count,), torch.int32)
    shape = _launch(scratch, raw=False, keep_all=wide, pdl=pdl)
    _scan(logits, rows, rules, scratch, out, top_count=0, confidence=confidence, shape=shape)
    if not greedy:
        _collect(logits, rows, rules, scratch, out, None, shape)
    if wide:
        draw_wide(
            scratch.work,
            rules,
            slot=rows.slot,
            position=rows.position,
            wanted=rows.wanted,
            ids=out.ids,
            shares=out.probabilities,
        )
    assert vocabulary == rules.vocabulary


def top_logprobs(
    logits: Tensor,
    rows: DrawRows,
    rules: SlotRules,
    *,
    drawn: Drawn,
    scratch: DrawScratch,
    out: TopLogprobs,
    pdl: bool = False,
) -> None:
    """Log-probabilities of the unchanged logits: of the drawn tokens and of the likeliest, for wanted rows.

    Args:
        logits: float32 [rows, vocabulary].
        rows: as for `draw`.
        rules: of all slots.
        drawn: from `draw`.
        scratch: the same as for `draw`, after it.
        out: gets the log-probabilities; its width is how many are looked for, at most 20.
        pdl: start before the launch before this one is done.

    Raises:
        ValueError: shapes or dtypes that do not fit, or too many asked for.
    """
    count, vocabulary = _check(logits, rows, rules, scratch)
    width = out.tokens.shape[1]
    if not 1 <= width <= min(MOST_TOP_LOGPROBS, vocabulary):
        raise ValueError(f"{width} log-probabilities a row; allowed are 1 to {min(MOST_TOP_LOGPROBS, vocabulary)}")
    check_tensor("tokens", out.tokens, (count, width), torch.int32)
    check_tensor("values", out.values, (count, width))
    check_tensor("chosen", out.chosen, (count,))
    shape = _launch(scratch, raw=True, keep_all=False, pdl=pdl)
    _scan(logits, rows, rules, scratch, drawn, top_count=width, confidence=False, shape=shape)
    _collect(logits, rows, rules, scratch, drawn, out, shape)


def _check(logits: Tensor, rows: DrawRows, rules: SlotRules, scratch: DrawScratch) -> tuple[int, int]:
    count, vocabulary = logits.shape
    if logits.dtype != torch.float32 or logits.stride(1) != 1 or vocabulary != rules.vocabulary:
        raise ValueError(
            f"logits are float32 [rows, {rules.vocabulary}], found {logits.dtype} {list(logits.shape)} "
            f"with strides {logits.stride()}"
        )
    check_tensor("scratch", scratch.work, (count, vocabulary))
    for name, tensor in (("slot", rows.slot), ("position", rows.position), ("wanted", rows.wanted)):
        check_tensor(name, tensor, (count,), torch.int32)
    return count, vocabulary


def _launch(scratch: DrawScratch, *, raw: bool, keep_all: bool, pdl: bool) -> dict[str, int | bool]:
    tiles = scratch.tiles_float.shape[2]
    block = triton.next_power_of_2(tiles)
    return {
        "TILES": tiles,
        "BLOCK_TILES": block,
        "TILE": scratch.tile,
        "RAW": raw,
        "KEEP_ALL": keep_all,
        "PDL": pdl,
        "num_warps": 4,
        **launch_options(pdl),
    }


def _scan(
    logits: Tensor,
    rows: DrawRows,
    rules: SlotRules,
    scratch: DrawScratch,
    out: Drawn,
    *,
    top_count: int,
    confidence: bool,
    shape: dict[str, int | bool],
) -> None:
    tops, masses = scratch.tiles_float
    top_ids, unsound, _ = scratch.tiles_whole
    scan[(tops.shape[1], tops.shape[0])](
        logits,
        logits.stride(0),
        scratch.work,
        logits.shape[1],
        rows.slot,
        rows.position,
        rows.wanted,
        rows.recent_tokens,
        rows.recent_first,
        rows.recent_count,
        rules.numbers,
        rules.wholes,
        rules.stops,
        rules.bias,
        rules.generated,
        rules.prompt,
        tops,
        top_ids,
        masses,
        unsound,
        scratch.tickets,
        *scratch.rows_float,
        out.ids,
        out.probabilities,
        out.bad,
        top_count,
        CHUNK=min(32, triton.next_power_of_2(tops.shape[1])),
        STOPS=STOPS,
        CONFIDENCE=confidence,
        **shape,
    )


def _collect(
    logits: Tensor,
    rows: DrawRows,
    rules: SlotRules,
    scratch: DrawScratch,
    out: Drawn,
    top: TopLogprobs | None,
    shape: dict[str, int | bool],
) -> None:
    tops = scratch.tiles_float[0]
    collect[(tops.shape[1], tops.shape[0])](
        logits,
        logits.stride(0),
        scratch.work,
        logits.shape[1],
        rows.slot,
        rows.position,
        rows.wanted,
        rules.numbers,
        rules.wholes,
        rules.seeds,
        tops,
        scratch.tickets,
        *scratch.rows_float,
        scratch.list_count,
        scratch.list_value,
        scratch.list_id,
        scratch.best,
        scratch.best_id,
        scratch.tiles_double[0],
        scratch.tiles_whole[2],
        scratch.tiles_double[1],
        out.ids,
        out.probabilities,
        out.probabilities if top is None else top.values,
        out.ids if top is None else top.tokens,
        out.probabilities if top is None else top.chosen,
        0 if top is None else top.tokens.shape[1],
        LIST=CANDIDATES,
        SHORT=SHORT_CANDIDATES,
        TOP=MOST_TOP_K,
        BLOCK=_SLOW_BLOCK,
        **shape,
    )
