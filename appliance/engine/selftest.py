"""Refuses a model that loads and runs but ignores what it is asked, before the first request meets it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from appliance.engine.config import EngineConfig
from appliance.errors import ModelFileError
from appliance.model.interface import LoadedModel
from appliance.model.window import Span, Window

_PROMPT_TOKENS = 8
# Two prompts that differ at every position move the logits of any working model by far more than rounding does.
_LEAST_DIFFERENCE = 1e-3


def check_model(model: LoadedModel, config: EngineConfig) -> None:
    """Runs two fixed prompts through slot 0 and compares the logits that follow them (GGUF-17).

    Leaves slot 0 open and empty; call it while no conversation runs.

    Raises:
        ModelFileError: the logits are not finite, or are the same for both.
    """
    length = min(_PROMPT_TOKENS, config.max_tokens - 1)
    first, second = (
        _last_logits(model, config, tuple((start + step * index) % model.vocabulary for index in range(length)))
        for start, step in ((1, 3), (2, 5))
    )
    model.open_slot(0)
    for logits in (first, second):
        bad = int((~torch.isfinite(logits)).sum())
        if bad:
            raise ModelFileError(
                f"self-test: {bad} of {logits.numel()} logits are not finite; the file is damaged or badly quantised, "
                "check its checksum or choose another quantisation",
                code="self_test",
            )
    difference = float((first - second).abs().max())
    if difference < _LEAST_DIFFERENCE:
        raise ModelFileError(
            f"self-test: two different prompts give the same logits (largest difference {difference:.1e}, at "
            f"least {_LEAST_DIFFERENCE:.0e} is needed); structural tensors are "
            "quantised too hard, choose another quantisation",
            code="self_test",
        )


def _last_logits(model: LoadedModel, config: EngineConfig, prompt: tuple[int, ...]) -> torch.Tensor:
    """Float32 logits [vocabulary] after a prompt in a fresh slot 0."""
    model.open_slot(0)
    model.set_pages(0, range(-(-len(prompt) // config.page_tokens)))
    span = Span(slot=0, start=0, tokens=prompt, logits_from=len(prompt) - 1)
    with torch.inference_mode():
        logits = model.forward(Window((span,)))[0].float().clone()
        # Nothing of it is kept: the slot is reopened before its next use.
        model.advance((), _choose_nothing)
    return logits


def _choose_nothing(
    logits: torch.Tensor, *, slots: Sequence[int], positions: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    raise AssertionError(f"the self-test asks for no drafts, but slots {slots} were offered some at {positions}")
