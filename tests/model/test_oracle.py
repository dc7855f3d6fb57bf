"""Every oracle in tests/oracle: logits within 2e-4 in float32, integer arrays equal."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from appliance.model.qwen4exp.cpu import Qwen4Exp
from appliance.model.qwen4exp.load import load_model
from appliance.model.window import Commit, Span, Window
from tests.model.models import ORACLE, greedy, load, open_slot, plan_of, read_in_parts, spec_of, step

TOLERANCE = 2e-4
CASES = ("base4", "hc2", "moe32", "realhead")
VARIANTS = {
    "q8_0-split": ("base4/model-q8_0-split-00001-of-00005.gguf", "base4/expected-q8_0-split.npz"),
    "q8_0-fused": ("hc2/model-q8_0-fused.gguf", "hc2/expected-q8_0-fused.npz"),
}


@cache
def expected(case: str) -> dict[str, NDArray[np.float32]]:
    with np.load(ORACLE / case / "expected.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


@cache
def loaded(path: Path, draft: Path | None = None) -> Qwen4Exp:
    return load(path, draft=draft)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def fresh(case: str) -> Qwen4Exp:
    model = loaded(ORACLE / case / "model.gguf")
    open_slot(model, 1)
    return model


def near(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> None:
    assert found.shape == wanted.shape
    assert float(np.abs(found - wanted).max()) <= TOLERANCE


def whole(ids: NDArray[np.int64]) -> Window:
    return Window((Span(slot=1, start=0, tokens=tuple(int(t) for t in ids)),))


@pytest.mark.parametrize("prompt", ["p20", "p70", "p300"])
def test_prompt_in_one_call(case: str, prompt: str) -> None:
    arrays, model = expected(case), fresh(case)
    seen: dict[str, NDArray[np.float32]] = {}
    logits = model.forward_at(
        whole(arrays[f"{prompt}_ids"]),
        tap=lambda name, value: seen.update({name: seen.get(name, value.copy())}),
    )
    near(logits.numpy(), arrays[f"{prompt}_logits"])
    assert np.array_equal(seen["ple_rows"], arrays[f"{prompt}_ple_rows"])
    full = 0
    for layer, kind in enumerate(model._spec.full_attention):
        if prompt == "p20":
            check_taps(arrays, seen, layer)
        if prompt == "p70":
            assert np.array_equal(seen[f"L{layer}_topk_id"], arrays[f"p70_L{layer}_topk_id"])
        if prompt == "p300" and kind:
            bits = np.unpackbits(arrays[f"p300_L{layer}_qsa_mask_bits"], axis=1)[:, :301]
            assert np.array_equal(visible(seen[f"qsa{full}"], model._spec.block_tokens), bits.astype(bool))
            full += 1
    if prompt == "p70":
        near(model.ran[0].streams[-1].reshape(-1), arrays["p70_wide_last"])


def visible(chosen: NDArray[np.uint8], block: int) -> NDArray[np.bool_]:
    """Tokens that the rows of a whole prompt see: their chosen blocks, and the block that is not complete."""
    count = chosen.shape[0]
    tokens, row = np.arange(count), np.arange(count)[:, None]
    tail = (tokens <= row) & (tokens >= (row + 1) // block * block)
    return np.pad(chosen.repeat(block, 1), ((0, 0), (0, block)))[:, :count].astype(bool) | tail


def check_taps(arrays: dict[str, NDArray[np.float32]], seen: dict[str, NDArray[np.float32]], layer: int) -> None:
    for name in ("attn_in", "attn_inject", "mix", "moe", "out", "ple"):
        wanted = arrays.get(f"p20_tap_L{layer}_{name}")
        assert (wanted is None) == (f"L{layer}_{name}" not in seen)
        if wanted is not None:
            near(seen[f"L{layer}_{name}"].reshape(wanted.shape), wanted)
    near(seen["wide"].reshape(arrays["p20_tap_wide"].shape), arrays["p20_tap_wide"])
    near(seen["mixed"], arrays["p20_tap_mixed"])


@pytest.mark.parametrize("parts", [(7, 1, 13, 64, 3), (9, 2, 5), (40, 8)], ids=str)
def test_prompt_in_odd_parts(case: str, parts: tuple[int, ...]) -> None:
    arrays, model = expected(case), fresh(case)
    near(read_in_parts(model, 1, arrays["p70_ids"], parts), arrays["p70_logits"])


@pytest.mark.parametrize("prompt", ["p20", "p70"])
def test_one_token_a_call(case: str, prompt: str) -> None:
    arrays, model = expected(case), fresh(case)
    near(read_in_parts(model, 1, arrays[f"{prompt}_ids"], [1]), arrays[f"{prompt}_decode"])


def test_one_token_a_call_after_a_long_prompt(case: str) -> None:
    arrays, model = expected(case), fresh(case)
    ids = arrays["p300_ids"]
    read_in_parts(model, 1, ids[:-24], [100, 33], following=int(ids[-24]))
    near(read_in_parts(model, 1, ids[-24:], [1]), arrays["p300_decode_tail"])


def test_three_axis_positions(case: str) -> None:
    arrays, model = expected(case), fresh(case)
    positions = torch.from_numpy(arrays["p70_mrope_positions"].astype(np.int64))
    near(model.forward_at(whole(arrays["p70_ids"]), positions=positions).numpy(), arrays["p70_mrope_logits"])


def draft_logits(model: Qwen4Exp, ids: NDArray[np.int64], following: int, parts: list[int]) -> NDArray[np.float32]:
    """Logits of the draft layer at every row, from windows of these lengths, through the layer's own pages."""
    rows, done = [], 0
    for size in parts:
        tokens = tuple(int(t) for t in ids[done : done + size])
        span = Span(slot=1, start=done, tokens=tokens)
        model.forward(Window((span,)))
        after = int(ids[done + size]) if done + size < len(ids) else following
        commit = Commit(slot=1, kept=size, next_token=after)
        with torch.inference_mode():
            rows.append(model.drafter.logits(model.drafter.follow(model.ran[0], (commit,))[1]))
        model.advance((commit,), greedy)
        done += size
    return np.concatenate(rows)


@pytest.mark.parametrize("parts", [[70], [33, 1, 5, 31]], ids=["one window", "four windows"])
def test_draft_layer_over_a_prompt(case: str, parts: list[int]) -> None:
    arrays, model = expected(case), fresh(case)
    found = draft_logits(model, arrays["p70_ids"], int(arrays["mtp70_next_ids"][-1]), parts)
    near(found, arrays["mtp70_global_dense_logits"])


def test_draft_layer_at_the_end_of_a_long_prompt(case: str) -> None:
    arrays, model = expected(case), fresh(case)
    following = int(arrays["p300_logits"][-1].argmax())
    found = draft_logits(model, arrays["p300_ids"], following, [301])
    near(found[-24:], arrays["mtp300_global_dense_tail"])


def check_chain(model: Qwen4Exp, arrays: dict[str, NDArray[np.float32]]) -> None:
    rows: list[NDArray[np.float32]] = []

    def choose(logits: torch.Tensor, *, slots: list[int], positions: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        rows.append(logits[0].clone().numpy())
        assert slots == [1]
        assert positions == [70 + len(rows)]
        return greedy(logits, slots=slots, positions=positions)

    model.forward(whole(arrays["p70_ids"]))
    commit = Commit(slot=1, kept=70, next_token=int(arrays["mtp70_next_ids"][-1]), draft_max=3)
    draft = model.advance((commit,), choose)[0]
    assert list(draft.tokens) == arrays["mtp70_global_dense_chain_ids"].tolist()
    near(np.stack(rows), arrays["mtp70_global_dense_chain_logits"])


def test_draft_chain(case: str) -> None:
    check_chain(fresh(case), expected(case))


def test_draft_layer_with_a_norm_per_stream(case: str) -> None:
    arrays = expected(case)
    if "mtp70_grouped_dense_logits" not in arrays:
        pytest.fail("the oracle lost its grouped form")
    model = load_model(
        replace(spec_of(ORACLE / case / "model.gguf"), hnorm_grouped=True),
        plan=plan_of(slots=2),
        progress=lambda sentence, percent: None,
    )
    open_slot(model, 1)
    found = draft_logits(model, arrays["p70_ids"], int(arrays["mtp70_next_ids"][-1]), [70])
    near(found, arrays["mtp70_grouped_dense_logits"])


def test_draft_companion_file() -> None:
    model = loaded(ORACLE / "base4" / "model.gguf", ORACLE / "base4" / "draft-only.gguf")
    open_slot(model, 1)
    check_chain(model, expected("base4"))


@pytest.mark.parametrize(("file", "arrays_file"), VARIANTS.values(), ids=VARIANTS)
def test_quantised_variant(file: str, arrays_file: str) -> None:
    with np.load(ORACLE / arrays_file) as arrays:
        wanted = {name: arrays[name] for name in arrays.files}
    prompts = expected(file.split("/", maxsplit=1)[0])
    model = loaded(ORACLE / file)
    open_slot(model, 1)
    logits, _ = step(model, 1, prompts["p70_ids"])
    near(logits, wanted["p70_logits"])
    open_slot(model, 1)
    logits, _ = step(model, 1, prompts["p300_ids"])
    for name, values in wanted.items():
        if name == "p300_tail":
            near(logits[-24:], values)
        if name == "mtp70_global_dense_logits":
            open_slot(model, 1)
            following = int(wanted["mtp70_next_ids"][-1])
            near(draft_logits(model, prompts["p70_ids"], following, [70]), values)
