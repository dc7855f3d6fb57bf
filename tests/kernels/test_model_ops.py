"""Model operations against their plain references: random data, odd sizes, one row, none."""

from __future__ import annotations

import pytest
import torch

import kernels.attention.reference as attention_reference
import kernels.gdn.reference as gdn_reference
import kernels.hyper.reference as hyper_reference
import kernels.moe.reference as moe_reference
import kernels.ngram.reference as ngram_reference
import kernels.norm.reference as norm_reference
import kernels.qsa.reference as qsa_reference
import kernels.rope.reference as rope_reference
from kernels.attention import attend, causal_mask, gather_pages
from kernels.attention import op as attention_op
from kernels.gdn import DeltaRows, causal_conv, commit_state, delta_rule, gated_norm, unit_keys
from kernels.hyper import ReadWeights, read_streams, write_streams
from kernels.moe import op as moe_op
from kernels.moe import route, run_experts, run_fetched
from kernels.ngram import GateWeights, context_windows, gate_values, hash_rows
from kernels.norm import rms_norm
from kernels.qsa import pool_keys, select_blocks, selection_mask
from kernels.rope import rope_tables, rotate_

EPS = 1e-6


def near(found: torch.Tensor, wanted: torch.Tensor, tolerance: float = 2e-5) -> None:
    assert found.shape == wanted.shape
    assert torch.isfinite(found).all()
    assert (found - wanted).abs().max() <= tolerance * max(1.0, float(wanted.abs().max())) if wanted.numel() else True


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(7)


@pytest.mark.parametrize("shape", [(5, 8), (1, 3), (2, 3, 7), (0, 4)], ids=["rows", "one", "heads", "none"])
def test_rms_norm(shape: tuple[int, ...]) -> None:
    x, weight = torch.randn(shape), torch.randn(shape[1:] if len(shape) > 2 else shape[-1:])
    near(rms_norm(x, weight, eps=EPS), norm_reference.rms_norm(x, weight, eps=EPS))


def test_rms_norm_refuses_other_widths() -> None:
    with pytest.raises(ValueError, match="must be equal"):
        rms_norm(torch.zeros(2, 4), torch.zeros(5), eps=EPS)


@pytest.mark.parametrize(("rows", "streams", "hidden", "low"), [(5, 4, 12, 6), (1, 2, 7, 3), (0, 4, 8, 2)])
def test_streams_are_read_and_written(rows: int, streams: int, hidden: int, low: int) -> None:
    wide = streams * hidden
    x, norm = torch.randn(rows, streams, hidden) * 3, torch.rand(streams, hidden) + 0.5
    down, up, inject = torch.randn(low, wide), torch.randn(wide, low), torch.randn(streams, wide)
    weights = ReadWeights(norm=norm, mix=torch.cat((down, inject)).t() / streams, up=up.t().contiguous(), low=low)
    block, shares = read_streams(x, weights, eps=EPS)
    wanted = hyper_reference.read_streams(x, norm=norm, down=down, up=up, inject=inject, eps=EPS)
    near(block, wanted[0])
    near(shares, wanted[1])
    out = torch.randn(rows, hidden)
    after = hyper_reference.write_streams(x, out, shares)
    write_streams(x, out, shares)
    near(x, after)


@pytest.mark.parametrize(
    ("dims", "sections"), [(8, (2, 1, 1)), (12, (2, 2, 2)), (64, (11, 11, 10))], ids=["small", "even", "real"]
)
def test_rope_follows_three_axes(dims: int, sections: tuple[int, int, int]) -> None:
    positions = torch.tensor([[0, 5, 900], [0, 6, 7], [0, 2, 31]])
    x = torch.randn(3, 2, dims + 3)
    wanted = rope_reference.rotate(x, positions, dims=dims, theta=1e4, sections=sections)
    cos, sin = rope_tables(positions, dims=dims, theta=1e4, sections=sections)
    near(rotate_(x.clone(), cos, sin), wanted, 1e-4)
    text = rope_tables(positions[0], dims=dims, theta=1e4, sections=sections)
    same = rope_tables(positions[:1].expand(3, 3), dims=dims, theta=1e4, sections=sections)
    assert all(torch.equal(a, b) for a, b in zip(text, same, strict=True))


@pytest.mark.parametrize(("taps", "dilation", "length"), [(4, 1, 5), (4, 3, 1), (2, 1, 9), (4, 1, 0)])
def test_causal_conv(taps: int, dilation: int, length: int) -> None:
    rows, weight = torch.randn(3, (taps - 1) * dilation + length, 6), torch.randn(taps, 6)
    near(causal_conv(rows, weight, dilation=dilation), gdn_reference.causal_conv(rows, weight, dilation=dilation))


def delta_case(batch: int, length: int, key_heads: int, heads: int, dim: int, decay: float) -> list[torch.Tensor]:
    both = unit_keys(torch.randn(batch, length, 2 * key_heads, dim), key_heads=key_heads)
    value, beta = torch.randn(batch, length, heads, dim), torch.rand(batch, length, heads)
    log_decay = -torch.rand(batch, length, heads) * decay
    return [both, value, log_decay, beta, torch.randn(batch, heads, dim, dim)]


DELTA_CASES = {
    "drafts": (3, 5, 2, 6, 8, 1.0),
    "one row": (2, 1, 1, 3, 4, 1.0),
    "ratio one": (1, 7, 2, 2, 4, 0.1),
    "one chunk": (1, 64, 2, 4, 8, 0.5),
    "past a chunk": (1, 65, 2, 4, 8, 0.5),
    "three chunks": (2, 150, 1, 2, 4, 0.05),
    "huge decays": (2, 40, 1, 2, 4, 5000.0),
}


@pytest.mark.parametrize("case", DELTA_CASES.values(), ids=DELTA_CASES)
def test_delta_rule_and_every_prefix(case: tuple[int, int, int, int, int, float]) -> None:
    both, value, log_decay, beta, state = delta_case(*case)
    key_heads = case[2]
    out, rows = delta_rule(both, value, log_decay, beta, state)
    wanted, states = gdn_reference.delta_rule(
        both[:, :, :key_heads], both[:, :, key_heads:], value, log_decay, beta, state
    )
    near(out, wanted)
    for kept in {1, case[1] // 2, case[1] - 1, case[1]} - {0}:
        near(commit_state(state, rows, torch.full((case[0],), kept)), states[:, kept - 1])
    assert torch.equal(commit_state(state, rows, torch.zeros(case[0], dtype=torch.int64)), state)


def test_small_decays_after_a_huge_one_stay_exact() -> None:
    both, value, log_decay, beta, state = delta_case(1, 20, 1, 1, 4, 0.01)
    log_decay[:, 3] = -30000.0
    out, rows = delta_rule(both, value, log_decay, beta, state)
    wanted, states = gdn_reference.delta_rule(both[:, :, :1], both[:, :, 1:], value, log_decay, beta, state)
    near(out, wanted, 2e-6)
    near(commit_state(state, rows, torch.tensor([20])), states[:, -1], 2e-6)


def test_rows_that_were_not_kept_leave_no_trace() -> None:
    both, value, log_decay, beta, state = delta_case(2, 5, 2, 4, 8, 1.0)
    kept = torch.tensor([2, 3])
    clean = delta_rule(both, value, log_decay, beta, state)[1]
    value[0, 2:], value[1, 3:] = 1e30, float("nan")
    beta[0, 2:] = float("inf")
    poisoned = delta_rule(both, value, log_decay, beta, state)[1]
    assert torch.equal(commit_state(state, clean, kept), commit_state(state, poisoned, kept))


def test_no_rows_change_nothing() -> None:
    state = torch.randn(2, 2, 3, 3)
    empty = DeltaRows(torch.empty(2, 1, 0, 3), torch.empty(2, 2, 0, 3), torch.empty(2, 2, 0, dtype=torch.float64))
    assert torch.equal(commit_state(state, empty, torch.zeros(2, dtype=torch.int64)), state)


def test_gated_norm() -> None:
    out, gate, weight = torch.randn(3, 2, 5), torch.randn(3, 2, 5), torch.rand(5)
    near(gated_norm(out, gate, weight, eps=EPS), norm_reference.rms_norm(out, weight, eps=EPS) * torch.sigmoid(gate))


@pytest.mark.parametrize(
    ("batch", "length", "heads", "kv_heads", "limit"),
    [(2, 5, 6, 2, 1 << 24), (1, 1, 2, 2, 1 << 24), (2, 7, 4, 1, 60), (3, 2, 4, 2, 1)],
    ids=["batch", "one row", "slices", "row by row"],
)
def test_attention_over_scattered_pages(
    batch: int, length: int, heads: int, kv_heads: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_op, "SCORE_LIMIT", limit)
    pools = torch.randn(2, kv_heads, 9, 4, 8)
    pages = torch.randperm(9)[: batch * 3].view(batch, 3) if batch * 3 <= 9 else torch.randint(0, 9, (batch, 3))
    keys, values = gather_pages(pools[0], pages), gather_pages(pools[1], pages)
    query = torch.randn(batch, length, heads, 8)
    positions = torch.arange(length).expand(batch, -1) + 12 - length
    mask = causal_mask(positions, context=12)
    wanted = attention_reference.attend(query, keys, values, mask == 0)
    near(attend(query, keys, values, mask), wanted)
    assert torch.equal(keys[0, 0, 4:8], pools[0, 0, pages[0, 1]])


@pytest.mark.parametrize(
    ("batch", "length", "blocks", "budget"), [(2, 5, 12, 3), (1, 1, 4, 2), (2, 40, 10, 4), (1, 3, 2, 8)]
)
def test_selection_prefers_earlier_blocks_among_equals(batch: int, length: int, blocks: int, budget: int) -> None:
    query, pooled = torch.randn(batch, length, 2, 6), torch.randn(batch, blocks, 6)
    pooled[:, 1::3] = -query[:, :1, 0] * 5  # many scores that are exactly 0 or equal
    pooled[:, 2::4] = pooled[:, :1]
    positions = torch.arange(length).expand(batch, -1) + blocks * 4 - length
    chosen = select_blocks(query, pooled, (positions + 1) // 4, budget_blocks=budget)
    found = selection_mask(chosen, positions, block_tokens=4) == 0
    wanted = qsa_reference.visible_tokens(query, pooled, positions, block_tokens=4, budget_blocks=budget)
    assert torch.equal(found, wanted)


def test_unfinished_blocks_may_hold_anything() -> None:
    query, pooled = torch.randn(1, 2, 2, 6), torch.randn(1, 5, 6)
    positions = torch.tensor([[9, 10]])
    clean = select_blocks(query, pooled, (positions + 1) // 4, budget_blocks=1)
    pooled[:, 2:] = float("nan")
    assert torch.equal(select_blocks(query, pooled, (positions + 1) // 4, budget_blocks=1), clean)


def test_pooled_keys_are_averaged_then_normed_then_rotated() -> None:
    raw, weight = torch.randn(11, 8), torch.rand(8)
    index = torch.tensor([[0, 1, 2], [5, 6, 7]])
    cos, sin = rope_tables(torch.tensor([3, 30]), dims=4, theta=100.0, sections=(1, 1, 0))
    mean = torch.stack([raw[0:3].mean(0), raw[5:8].mean(0)])
    normed = norm_reference.rms_norm(mean, weight, eps=EPS).unsqueeze(1)
    positions = torch.tensor([[3, 30]] * 3)
    wanted = rope_reference.rotate(normed, positions, dims=4, theta=100.0, sections=(1, 1, 0)).squeeze(1)
    near(pool_keys(raw, index, weight, cos, sin, eps=EPS), wanted, 1e-4)


@pytest.mark.parametrize("rows", [1, 2, 5, 33, 0], ids=["one", "two", "drafts", "many", "none"])
@pytest.mark.parametrize("path", ["loop", "padded"])
def test_experts(rows: int, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if path == "padded" and rows:
        monkeypatch.setattr(moe_op, "LOOP_PAIRS", 0)
    if path == "loop":
        monkeypatch.setattr(moe_op, "LOOP_PAIRS", 1 << 30)
    gate_up, down = torch.randn(7, 6, 10) * 0.4, torch.randn(7, 5, 6) * 0.4
    x, logits = torch.randn(rows, 6), torch.randn(rows, 7)
    ids, weights = route(logits, used=3)
    wanted = moe_reference.mixture(x, logits, gate_up, down, used=3)
    near(run_experts(x, ids, weights, gate_up, down), wanted)
    touched: list[int] = []

    def fetch(expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        touched.append(expert)
        return gate_up[expert], down[expert]

    near(run_fetched(x, ids, weights, fetch), wanted)
    assert touched == sorted(set(ids.reshape(-1).tolist()))


def test_all_rows_on_one_expert() -> None:
    gate_up, down, x = torch.randn(4, 6, 10), torch.randn(4, 5, 6), torch.randn(40, 6)
    logits = torch.full((40, 4), -50.0).index_fill_(1, torch.tensor([2]), 50.0)
    ids, weights = route(logits, used=1)
    near(run_experts(x, ids, weights, gate_up, down), moe_reference.mixture(x, logits, gate_up, down, used=1))


MULTIPLIERS = (23703573157769, 20109073645365, 8052911324071)
HASH = {"multipliers": MULTIPLIERS, "head_rows": (101, 103, 107, 109), "head_offsets": (0, 101, 204, 311)}


@pytest.mark.parametrize(
    "tokens",
    [[5, 9, 9, 7], [9], [7, 9, 5, 9, 9, 9, 248319, 3, 248319]],
    ids=["reset inside", "only reset", "resets in a row"],
)
@pytest.mark.parametrize("cut", [0, 1, 3], ids=["whole", "after one", "after three"])
def test_hash_goes_on_across_windows(tokens: list[int], cut: int) -> None:
    wanted = ngram_reference.hash_rows(tokens, reset=9, **HASH)
    history = torch.tensor([[9, 9, *tokens[:cut]][-2:]])
    windows = context_windows(torch.tensor([tokens[cut:]], dtype=torch.int64), history, reset=9)
    tensors = {name: torch.tensor(values, dtype=torch.int64) for name, values in HASH.items()}
    assert hash_rows(windows, **tensors)[0].tolist() == wanted[cut:]


def test_gate_values() -> None:
    x, rows = torch.randn(4, 2, 6), torch.randn(4, 5)
    key, value = torch.randn(12, 5), torch.randn(6, 5)
    norms = {f"norm_{name}": torch.rand(2, 6) + 0.5 for name in ("key", "query", "conv")}
    wanted = ngram_reference.gate_values(x, rows, key=key, value=value, **norms, eps=EPS)
    weights = GateWeights(key=key.t().contiguous(), value=value.t().contiguous(), **norms)
    for found, right in zip(gate_values(x, rows, weights, eps=EPS), wanted, strict=True):
        near(found, right, 1e-4)


def test_a_score_of_zero_opens_the_gate_half() -> None:
    weights = GateWeights(
        key=torch.zeros(3, 4),
        value=torch.ones(3, 2),
        norm_key=torch.ones(2, 2),
        norm_query=torch.ones(2, 2),
        norm_conv=torch.ones(2, 2),
    )
    gated, _ = gate_values(torch.ones(1, 2, 2), torch.ones(1, 3), weights, eps=EPS)
    assert torch.equal(gated, torch.full((1, 2, 2), 1.5))


PAIR = torch.zeros(2, 1, 4, 2)
REFUSALS = {
    "heads": lambda: attend(
        torch.zeros(1, 1, 3, 2), torch.zeros(2, 1, 4, 2), torch.zeros(2, 1, 4, 2), torch.zeros(1, 1, 4)
    ),
    "mask": lambda: attend(
        torch.zeros(1, 1, 2, 2), torch.zeros(2, 1, 4, 2), torch.zeros(2, 1, 4, 2), torch.zeros(1, 1, 3)
    ),
    "streams": lambda: write_streams(torch.zeros(2, 2, 3), torch.zeros(2, 3), torch.zeros(2, 3)),
    "experts": lambda: route(torch.zeros(1, 2), used=3),
    "budget": lambda: select_blocks(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 2), torch.zeros(1, 1), budget_blocks=0),
    "rope": lambda: rotate_(torch.zeros(1, 1, 2), torch.zeros(1, 1, 4), torch.zeros(1, 1, 4)),
    "conv": lambda: causal_conv(torch.zeros(1, 2, 3), torch.zeros(4, 3)),
}


@pytest.mark.parametrize("call", REFUSALS.values(), ids=REFUSALS)
def test_shapes_that_do_not_fit_are_refused(call: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        call()  # type: ignore[operator]
