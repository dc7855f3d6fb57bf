"""Windows of several slots, drafts that are rejected, homes and layouts of the weights, the sparse budget, refusals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch

from appliance.errors import EngineFault
from appliance.model.qwen4exp.cpu import Qwen4Exp
from appliance.model.qwen4exp.load import load_model
from appliance.model.qwen4exp.table import DirectTable, open_table
from appliance.model.window import Commit, Draft, Span, Window
from tests.model.models import ORACLE, ROOT, TINY, greedy, load, open_slot, plan_of, spec_of, step

MOE = ORACLE / "moe32" / "model.gguf"


@cache
def moe() -> Qwen4Exp:
    return load(MOE, slots=6, tokens=400)


@cache
def tiny() -> Qwen4Exp:
    return load(TINY, slots=8, tokens=400)


def prompt(length: int, seed: int) -> list[int]:
    ids = np.random.default_rng(seed).integers(0, 448, length)
    ids[seed % length] = 400  # the n-gram reset token
    return [int(i) for i in ids]


def opened(model: Qwen4Exp, prompts: Sequence[Sequence[int]]) -> Qwen4Exp:
    for slot, ids in enumerate(prompts):
        open_slot(model, slot, tokens=400)
        if ids:
            step(model, slot, ids, following=1)
    return model


def state_of(model: Qwen4Exp, slot: int) -> dict[str, torch.Tensor | tuple[int, ...]]:
    """Everything that a later window of the slot can see."""
    state, length = model.state, model.length(slot)
    pages, size = state.pages[slot], state.keys.shape[3]
    places = torch.tensor([int(pages[p // size]) * size + p % size for p in range(length)], dtype=torch.int64)
    block = model._spec.block_tokens
    blocks = torch.tensor(
        [int(pages[b * block // size]) * (size // block) + b % (size // block) for b in range(length // block)],
        dtype=torch.int64,
    )
    return {
        "delta": state.delta[:, slot].clone(),
        "conv": state.conv[:, slot].clone(),
        "ple": state.ple[slot].clone(),
        "index": state.index[:, slot].clone(),
        "keys": state.keys.flatten(2, 3).index_select(2, places),
        "values": state.values.flatten(2, 3).index_select(2, places),
        "pooled": state.pooled.flatten(1, 2).index_select(1, blocks),
        "context": state.contexts[slot],
        "length": (length,),
    }


def compare(found: dict[str, torch.Tensor | tuple[int, ...]], wanted: dict, *, tolerance: float) -> None:  # type: ignore[type-arg]
    for name, value in found.items():
        if isinstance(value, tuple):
            assert value == wanted[name], name
        elif tolerance == 0:
            assert torch.equal(value, wanted[name]), name
        else:
            assert value.shape == wanted[name].shape
            assert torch.allclose(value, wanted[name], rtol=0, atol=tolerance), name


def run(model: Qwen4Exp, spans: Sequence[tuple[int, Sequence[int]]]) -> list[np.ndarray]:
    """One window; logits per span."""
    window = Window(tuple(Span(slot=s, start=model.length(s), tokens=tuple(ids)) for s, ids in spans))
    logits = model.forward(window).numpy().copy()
    cuts = np.cumsum([len(ids) for _, ids in spans])[:-1]
    return np.split(logits, cuts)


WINDOWS = {
    "rows": [1, 1, 1, 1],
    "drafts": [5, 5, 5, 5],
    "uneven drafts": [5, 1, 3, 2],
    "prompt among drafts": [4, 60, 1, 5],
    "two prompts": [30, 1, 90, 9],
    "first tokens": [8, 9, 1, 2],
}


@pytest.mark.parametrize("sizes", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("lengths", [(50, 41, 30, 63), (0, 0, 0, 0), (250, 3, 0, 17)], ids=str)
def test_slots_in_company_equal_slots_alone(sizes: list[int], lengths: tuple[int, ...]) -> None:
    prompts = [prompt(length, seed + 1) if length else [] for seed, length in enumerate(lengths)]
    new = [prompt(size, seed + 50) for seed, size in enumerate(sizes)]
    model = opened(moe(), prompts)
    order = [2, 0, 3, 1]
    together = run(model, [(slot, new[slot]) for slot in order])
    commits = [Commit(slot=s, kept=len(new[s]), next_token=7, draft_max=3) for s in (3, 1, 0, 2)]
    drafts = {draft.slot: draft for draft in model.advance(commits, greedy)}
    states = [state_of(model, slot) for slot in range(4)]
    opened(model, prompts)
    for place, slot in enumerate(order):
        alone = run(model, [(slot, new[slot])])[0]
        assert np.abs(alone - together[place]).max() <= 1e-4
        draft = model.advance((Commit(slot=slot, kept=len(new[slot]), next_token=7, draft_max=3),), greedy)[0]
        assert draft.tokens == drafts[slot].tokens
        assert draft.probabilities == pytest.approx(drafts[slot].probabilities, abs=1e-5)
        compare(states[slot], state_of(model, slot), tolerance=1e-4)


@pytest.mark.parametrize("kept", [1, 2, 4, 5])
@pytest.mark.parametrize("length", [0, 2, 37, 95], ids=str)
def test_rejected_drafts_leave_no_trace(kept: int, length: int) -> None:
    """SPEC-08: 1 (no draft) to 5 (all drafts) rows kept; the state is that of the kept rows, to the bit."""
    old, new = prompt(length, 3) if length else [], prompt(5, 9)
    others = [new[:kept] + prompt(5, seed)[kept:] for seed in (20, 21)]
    states = []
    for tokens in (new, *others):
        model = opened(moe(), [old, prompt(20, 5)])
        run(model, [(0, tokens), (1, prompt(3, 6))])
        model.advance(
            (Commit(slot=0, kept=kept, next_token=11, draft_max=4), Commit(slot=1, kept=1, next_token=3)), greedy
        )
        states.append(state_of(model, 0))
    compare(states[0], states[1], tolerance=0)
    compare(states[0], states[2], tolerance=0)
    model = opened(moe(), [old])
    run(model, [(0, new[:kept])])
    model.advance((Commit(slot=0, kept=kept, next_token=11),), greedy)
    compare(states[0], state_of(model, 0), tolerance=1e-4)


def test_part_of_a_prompt_chunk_can_be_kept() -> None:
    ids = prompt(150, 4)
    model = opened(moe(), [[]])
    run(model, [(0, ids)])
    model.advance((Commit(slot=0, kept=77, next_token=1),), greedy)  # `opened` says that 1 follows
    kept = state_of(model, 0)
    model = opened(moe(), [ids[:77]])
    compare(kept, state_of(model, 0), tolerance=1e-4)


def play(model: Qwen4Exp, slot: int, ids: Sequence[int], count: int, wrong: int) -> list[int]:
    """Greedy answer with drafts; every `wrong`-th window's drafts are replaced by nonsense (0: none at all)."""
    _, draft = step(model, slot, ids[:-1], following=ids[-1], drafts=4 if wrong else 0)
    answer, following, turn = [], ids[-1], 0
    while len(answer) < count:
        turn += 1
        tokens = [following, *draft.tokens]
        if wrong and turn % wrong == 0:
            tokens = [following, *(3 + turn + i for i in range(len(draft.tokens)))]
        span = Span(slot=slot, start=model.length(slot), tokens=tuple(tokens), draft_count=len(tokens) - 1)
        chosen = model.forward(Window((span,))).argmax(1).tolist()
        kept = 1
        while kept < len(tokens) and tokens[kept] == chosen[kept - 1]:
            kept += 1
        answer += chosen[:kept]
        following = chosen[kept - 1]
        commit = Commit(slot=slot, kept=kept, next_token=following, draft_max=4 if wrong else 0)
        draft = model.advance((commit,), greedy)[0]
    return answer[:count]


@pytest.mark.parametrize("wrong", [1, 2, 1000], ids=["all rejected", "every second", "as drafted"])
def test_drafts_never_change_a_greedy_answer(wrong: int) -> None:
    """SPEC-02, SPEC-07: across the sparse budget of 256 tokens, drafts on equals drafts off."""
    ids = (expected()[3]["prompt_ids"] + expected()[3]["output_ids"]) * 3
    ids = ids[:240]
    model = tiny()
    open_slot(model, 2, tokens=400)
    plain = play(model, 2, ids, 40, 0)
    open_slot(model, 2, tokens=400)
    assert play(model, 2, ids, 40, wrong) == plain


@pytest.mark.parametrize("length", [254, 255, 256, 257, 258, 259, 260, 261])
@pytest.mark.parametrize("rows", [1, 4])
def test_windows_around_the_sparse_budget(length: int, rows: int) -> None:
    """SPEC-07: budget 256, blocks of 4; windows of 1 and 4 rows that end before, at and past it."""
    ids = (expected()[4]["prompt_ids"] + expected()[3]["output_ids"]) * 5
    model = tiny()
    open_slot(model, 0, tokens=400)
    whole, _ = step(model, 0, ids[: length + 12])
    open_slot(model, 0, tokens=400)
    found = [step(model, 0, ids[: length - 3])[0]]
    found.append(windows(model, ids, length, rows))
    assert np.abs(np.concatenate(found) - whole).max() <= 1e-3


def windows(model: Qwen4Exp, ids: Sequence[int], length: int, rows: int) -> np.ndarray:
    found, done = [], length - 3
    while done < length + 12:
        stop = min(done + rows, length + 12)
        found.append(step(model, 0, ids[done:stop])[0])
        done = stop
    return np.concatenate(found)


@cache
def expected() -> list[dict]:  # type: ignore[type-arg]
    return json.loads((ROOT / "tests/data/strata-tiny-expected.json").read_text())["cases"]


@pytest.mark.parametrize("number", range(6))
def test_built_in_model_answers_and_drafts_as_expected(number: int) -> None:
    case, model = expected()[number], tiny()
    open_slot(model, 1, tokens=400)
    ids, wanted = case["prompt_ids"], case["output_ids"]
    logits, draft = step(model, 1, ids, following=wanted[0], drafts=3)
    best = logits[-1].argsort()[::-1][:5]
    assert best.tolist() == [token for token, _ in case["first_top5"]]
    assert logits[-1][best] == pytest.approx([value for _, value in case["first_top5"]], abs=2e-3)
    answer, steps = [wanted[0]], case["verify_steps"]
    for expected_step in steps:
        assert (model.length(1), list(draft.tokens)) == (expected_step["pos"], expected_step["drafts"])
        tokens = (answer[-1], *draft.tokens)
        chosen = model.forward(Window((Span(slot=1, start=model.length(1), tokens=tokens, draft_count=3),)))
        chosen_ids = chosen.argmax(1).tolist()
        kept = 1
        while kept < 4 and tokens[kept] == chosen_ids[kept - 1]:
            kept += 1
        # The expected file stops counting where the answer ends.
        assert min(kept - 1, len(wanted) - len(answer)) == expected_step["accepted"]
        answer += chosen_ids[:kept]
        draft = model.advance((Commit(slot=1, kept=kept, next_token=answer[-1], draft_max=3),), greedy)[0]
    assert answer[: len(wanted)] == wanted


def test_a_draft_ends_at_the_wanted_confidence() -> None:
    model, case = tiny(), expected()[0]
    drafts: list[Draft] = []
    for least in (0.0, 0.9, 1.1):
        open_slot(model, 1, tokens=400)
        model.forward(Window((Span(slot=1, start=0, tokens=tuple(case["prompt_ids"])),)))
        commit = Commit(
            slot=1, kept=len(case["prompt_ids"]), next_token=case["output_ids"][0], draft_max=4, draft_min_p=least
        )
        drafts += model.advance((commit,), greedy)
    assert len(drafts[0].tokens) == 4
    sure = [p >= 0.9 for p in drafts[0].probabilities]
    assert len(drafts[1].tokens) == (sure.index(False) if False in sure else 4)
    assert drafts[2].tokens == ()


def test_drafts_end_where_the_pages_end() -> None:
    model, ids = tiny(), expected()[3]["output_ids"]
    model.open_slot(1)
    model.set_pages(1, [1, 9])  # 32 tokens
    _, draft = step(model, 1, ids[:30], following=ids[30], drafts=4)
    assert len(draft.tokens) == 2
    assert draft == step_again(model, ids)


def step_again(model: Qwen4Exp, ids: Sequence[int]) -> Draft:
    open_slot(model, 1, tokens=400)
    return step(model, 1, ids[:30], following=ids[30], drafts=2)[1]


@pytest.mark.parametrize("home", ["ram", "mmap", "direct", "vram"])
@pytest.mark.parametrize("unpack", ["once", "per_use"])
def test_homes_and_layouts_agree(home: str, unpack: str) -> None:
    """SPEC-05: where the n-gram table is and how weights are kept never changes what is computed."""
    ids = expected()[1]["prompt_ids"]
    model = tiny()
    open_slot(model, 3, tokens=400)
    wanted, wanted_draft = step(model, 3, ids, following=320, drafts=3)
    other = load(TINY, slots=1, tokens=64, ngram_home=home, unpack=unpack)
    open_slot(other, 0, tokens=64)
    found, draft = step(other, 0, ids, following=320, drafts=3)
    assert np.abs(found - wanted).max() <= 2e-4
    assert draft.tokens == wanted_draft.tokens


@pytest.mark.parametrize("home", ["ram", "mmap", "direct", "vram"])
def test_table_rows(home: str) -> None:
    info = spec_of(TINY).tensors["per_layer_token_embd.weight"]
    rows = torch.tensor([0, 131583, 7, 7, 65536, 4095])
    device = torch.device("cpu")
    table = open_table(info, home=home, device=device)
    wanted = open_table(info, home="ram", device=device).gather(rows)
    assert torch.equal(table.gather(rows), wanted)
    assert torch.equal(table.gather(rows[:0]), wanted[:0])
    if isinstance(table, DirectTable):
        table.close()


def test_bf16_pages_stay_close() -> None:
    ids = expected()[1]["prompt_ids"]
    model = load(TINY, slots=1, tokens=64, kv_type="bf16")
    open_slot(model, 0, tokens=64)
    half, _ = step(model, 0, ids)
    open_slot(tiny(), 0, tokens=64)
    assert np.abs(half - step(tiny(), 0, ids)[0]).max() < 1.0
    assert half[-1].argmax() == expected()[1]["output_ids"][0]


def test_pages_that_held_nan_do_not_reach_the_next_conversation() -> None:
    model = moe()
    open_slot(model, 0, tokens=400)
    clean, _ = step(model, 0, prompt(60, 2))
    with torch.inference_mode():
        for pool in (model.state.keys, model.state.values, model.state.pooled, model.state.delta, model.state.conv):
            pool.fill_(float("nan"))
    open_slot(model, 0, tokens=400)
    again, _ = step(model, 0, prompt(60, 2))
    assert np.array_equal(again, clean)


def test_logits_only_where_wanted() -> None:
    model = opened(moe(), [prompt(9, 1), prompt(12, 2)])
    spans = (
        Span(slot=1, start=12, tokens=(5, 6, 7), logits_from=3),
        Span(slot=0, start=9, tokens=(8, 9, 10, 11), logits_from=2),
    )
    some = model.forward(Window(spans))
    full = model.forward(Window(tuple(Span(slot=s.slot, start=s.start, tokens=s.tokens) for s in spans)))
    assert torch.equal(some, full[5:])


def test_without_drafts_nothing_is_loaded_for_them() -> None:
    model = load(MOE, slots=1, tokens=64, draft_max=0)
    assert not model.can_draft
    assert model.state.keys.shape[0] == 1
    open_slot(model, 0, tokens=64)
    assert step(model, 0, prompt(9, 1), drafts=4)[1].tokens == ()


def refuse_start(model: Qwen4Exp) -> None:
    model.forward(Window((Span(slot=0, start=3, tokens=(1,)),)))


def refuse_pages(model: Qwen4Exp) -> None:
    model.forward(Window((Span(slot=5, start=0, tokens=tuple([1] * 17)),)))


def refuse_twice(model: Qwen4Exp) -> None:
    model.forward(Window((Span(slot=0, start=0, tokens=(1,)), Span(slot=0, start=0, tokens=(1,)))))


def refuse_token(model: Qwen4Exp) -> None:
    model.forward(Window((Span(slot=0, start=0, tokens=(448,)),)))


def refuse_advance(model: Qwen4Exp) -> None:
    model.advance((Commit(slot=0, kept=1, next_token=1),), greedy)


def refuse_kept(model: Qwen4Exp) -> None:
    model.forward(Window((Span(slot=0, start=0, tokens=(1,)),)))
    model.advance((Commit(slot=0, kept=2, next_token=1),), greedy)


def refuse_moved_pages(model: Qwen4Exp) -> None:
    model.set_pages(5, [4, 3])


@pytest.mark.parametrize(
    "call",
    [refuse_start, refuse_pages, refuse_twice, refuse_token, refuse_advance, refuse_kept, refuse_moved_pages],
)
def test_windows_that_cannot_be_are_refused(call: object) -> None:
    model = opened(moe(), [[]])
    model.open_slot(5)
    model.set_pages(5, [3])
    model.ran = []
    with pytest.raises(EngineFault, match=r"."):
        call(model)  # type: ignore[operator]


@pytest.mark.parametrize(
    "plan", [{"unpack": "never"}, {"kv_type": "int8"}, {"ngram_home": "moon"}], ids=lambda plan: next(iter(plan))
)
def test_plans_that_cannot_be_are_refused(plan: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="allowed are"):
        load_model(spec_of(MOE), plan=plan_of(**plan), progress=lambda sentence, percent: None)
