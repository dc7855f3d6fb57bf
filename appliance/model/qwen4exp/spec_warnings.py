"""What is odd in a model file and yet not refused: small tensors stored too coarsely, tensors nothing uses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from appliance.gguf.reader import TensorInfo

_LISTED: Final = 8
_LEAST_BITS: Final = 8.0
# Small tensors that steer the rest: stream mixers, decay, convolutions, router, gates, indexer, every norm.
_STRUCTURAL: Final = re.compile(
    r"(?:^|\.)(?:(?:output_)?hc_\w+|ssm_(?:a|dt|alpha|beta|conv1d|norm)|ffn_gate_inp(?:_shexp)?|\w*norm\w*|ple_conv1d"
    r"|[qk]_proj|hc_head_\w+)(?:\.weight|\.bias)?$"
)


def structural_warning(tensors: Mapping[str, TensorInfo]) -> tuple[str, ...]:
    """One sentence about structural tensors below 8 bits, if there are any.

    Files quantised that way load, run fast and ignore the prompt.
    """
    coarse = [f"{n} {t.type.name}" for n, t in tensors.items() if _is_coarse(n, t)]
    if not coarse:
        return ()
    return (
        f"{len(coarse)} structural tensor(s) are stored below 8 bits ({_short(coarse)}): answers may ignore the "
        f"prompt; prefer a file that keeps them at 8 bits or more",
    )


def unused_warning(names: Sequence[str]) -> tuple[str, ...]:
    """One sentence about tensors in the files that nothing uses, if there are any."""
    return (f"{len(names)} tensor(s) in the file are not used: {_short(names)}",) if names else ()


def _is_coarse(name: str, tensor: TensorInfo) -> bool:
    return tensor.type.bits_per_weight < _LEAST_BITS and _STRUCTURAL.search(name) is not None


def _short(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(f"{n:.80}" for n in names[:_LISTED]) + more
