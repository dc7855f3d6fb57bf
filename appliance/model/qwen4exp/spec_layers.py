"""Which trunk layers are full attention, and how many tokens an indexer block has: from the file, not a formula."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from appliance.gguf.metadata import Metadata
from appliance.gguf.reader import TensorInfo
from appliance.model.qwen4exp.spec_problems import Keys, Problems

_BLOCK: Final = re.compile(r"blk\.(\d{1,9})\.")
_DEFAULT_INTERVAL: Final = 4


def blocks_present(names: Iterable[str]) -> frozenset[int]:
    """Numbers of the blocks that have at least one tensor."""
    return frozenset(int(m[1]) for m in map(_BLOCK.match, names) if m)


def number_ranges(numbers: Iterable[int]) -> str:
    """Numbers in short: `0-3, 7`."""
    found: list[list[int]] = []
    for n in sorted(numbers):
        if found and found[-1][-1] == n - 1:
            found[-1] = [found[-1][0], n]
        else:
            found.append([n])
    return ", ".join("-".join(map(str, r)) for r in found)


def check_blocks(names: Iterable[str], problems: Problems, *, trunk_layers: int, has_draft: bool) -> bool:
    """Every trunk block must be there, and none beyond those that the metadata count.

    Returns:
        Whether the blocks are such that looking at their tensors makes sense.
    """
    names = frozenset(names)
    found = blocks_present(names)
    missing = set(range(trunk_layers)) - found
    if len(missing) == trunk_layers:
        problems.add(
            "none of the trunk blocks is in the file; a file that holds only a draft block belongs in "
            "model.draft_path, beside its model"
        )
    elif missing:
        problems.add(f"trunk blocks {number_ranges(missing)} are missing; blocks 0-{trunk_layers - 1} must be there")
    last = trunk_layers - 1 + has_draft
    beyond = {n for n in found if n > last}
    if beyond:
        problems.add(
            f"tensors of block {number_ranges(beyond)} exist; qwen4exp.block_count {last + 1} allows blocks 0-{last}"
        )
    drafts = {n for n in found if n < trunk_layers and f"blk.{n}.nextn.enorm.weight" in names}
    if drafts:
        problems.add(
            f"block {number_ranges(drafts)} holds nextn tensors; qwen4exp.nextn_predict_layers must then be 1 and "
            f"qwen4exp.block_count count the draft block"
        )
    return not (missing or beyond or drafts)


def layer_kinds(
    metadata: Metadata, tensors: Mapping[str, TensorInfo], problems: Problems, *, trunk_layers: int
) -> tuple[bool, ...]:
    """For each trunk layer, whether it is full attention: as its tensors say, which the metadata must not deny.

    `attention.recurrent_layers` wins over `full_attention_interval`; both are optional.
    """
    stated, key = _stated_kinds(metadata, problems, trunk_layers)
    kinds = []
    wrong: dict[str, list[int]] = {}
    for n in range(trunk_layers):
        full, linear = f"blk.{n}.attn_q.weight" in tensors, f"blk.{n}.attn_qkv.weight" in tensors
        if full and linear:
            problems.add(f"block {n} has attn_q and attn_qkv; it must be full attention or linear")
        kind = stated[n] if full == linear else full
        if kind != stated[n] and key is not None:
            wrong.setdefault("full-attention" if kind else "linear", []).append(n)
        kinds.append(kind)
    for what, layers in wrong.items():
        problems.add(f"blocks {number_ranges(layers)} hold the tensors of a {what} layer; {key} says otherwise")
    if not any(kinds):
        problems.add(f"none of the {trunk_layers} trunk layers is full attention; at least one must be")
    return tuple(kinds)


def _stated_kinds(metadata: Metadata, problems: Problems, trunk_layers: int) -> tuple[tuple[bool, ...], str | None]:
    key = "qwen4exp.attention.recurrent_layers"
    if key in metadata:
        linear = metadata.bools(key)
        if len(linear) >= trunk_layers:
            return tuple(not v for v in linear[:trunk_layers]), key
        problems.add(f"{key} has {len(linear)} entries; it must have one for each of the {trunk_layers} trunk layers")
    key = "qwen4exp.full_attention_interval"
    interval = Keys(metadata, problems).count(key, default=_DEFAULT_INTERVAL)
    return tuple((n + 1) % interval == 0 for n in range(trunk_layers)), key if key in metadata else None


def read_block_tokens(
    metadata: Metadata, full_attention: tuple[bool, ...], problems: Problems, *, block_count: int
) -> int:
    """Tokens of one indexer block, the same for every full-attention layer of the trunk; 1 when that is a problem.

    The draft block's own entry is not used: it is 0 where its attention is dense.
    """
    key = "qwen4exp.attention.compress_ratios"
    ratios = Keys(metadata, problems).ints(key, low=0)
    if key not in metadata:
        return 1
    if len(ratios) != block_count:
        problems.add(f"{key} has {len(ratios)} entries; it must have one for each of the {block_count} blocks")
        return 1
    zero = [n for n, full in enumerate(full_attention) if full and not ratios[n]]
    if zero:
        problems.add(
            f"{key} is 0 for the full-attention layers {number_ranges(zero)}, which have indexer tensors; it must be "
            f"the block size there (an early upload had this wrong: use a newer file)"
        )
    linear = [n for n, full in enumerate(full_attention) if not full and ratios[n]]
    if linear:
        problems.add(f"{key} is not 0 for the linear layers {number_ranges(linear)}; it must be 0 there")
    sizes = sorted({ratios[n] for n, full in enumerate(full_attention) if full} - {0})
    if len(sizes) > 1:
        problems.add(f"{key} has the values {sizes[:8]}; all full-attention layers must have the same")
    return sizes[0] if len(sizes) == 1 else 1
