"""Compiled model operations against their plain references: random data, odd sizes, one row, none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kernels.block.reference as block_reference
import kernels.gdn.reference as gdn_reference
import kernels.hyper.reference as hyper_reference
import kernels.moe.reference as moe_reference
import kernels.ngram.reference as ngram_reference
import kernels.norm.reference as norm_reference
import kernels.rope.reference as rope_reference
from kernels.block.op import ENTRY, EntryWeights, enter_draft
from kernels.compiled.record import record
from kernels.gdn.op import DeltaRows, GdnWeights, commit_delta, commit_history, run_delta
from kernels.hyper.op import ReadWeights, read_streams, write_streams
from kernels.matrix import Part, join
from kernels.moe.op import ExpertWeights, MixWeights, add_experts, add_fetched, route
from kernels.ngram.op import Hash, PleWeights, add_values, hash_rows
from kernels.rope import rope_tables
from kernels.rope.rotate import rotate

EPS = np.float32(1e-6)


def near(found: np.ndarray, wanted: torch.Tensor, tolerance: float = 2e-5) -> None:
    assert found.shape == tuple(wanted.shape)
    assert np.isfinite(found).all()
    if wanted.numel():
        assert np.abs(found - wanted.numpy()).max() <= tolerance * max(1.0, float(wanted.abs().max()))


def spans_of(*counts: int) -> np.ndarray:
    """Spans of these lengths in slots 2, 1, 0, ..."""
    rows, first = [], 0
    for number, count in enumerate(counts):
        rows.append((len(counts) - 1 - number, first, count, 0))
        first += count
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(7)


@pytest.mark.parametrize(
    ("rows", "streams", "hidden", "low"), [(5, 4, 12, 6), (1, 2, 7, 3), (9, 4, 64, 32), (0, 4, 8, 2)]
)
def test_streams_are_read_and_written(rows: int, streams: int, hidden: int, low: int) -> None:
    wide = streams * hidden
    x, norm = torch.randn(rows, streams, hidden) * 3, torch.rand(streams, hidden) + 0.5
    down, up, inject = torch.randn(low, wide), torch.randn(wide, low), torch.randn(streams, wide)
    mix = join([Part(down / streams), Part(inject / streams)])
    weights = ReadWeights(norm=norm.numpy(), mix=mix, up=join([Part(up)]), low=low, injects=streams)
    block, shares = read_streams(x.numpy(), weights, EPS)
    wanted = hyper_reference.read_streams(x, norm=norm, down=down, up=up, inject=inject, eps=1e-6)
    near(block, wanted[0])
    near(shares, wanted[1])
    out = torch.randn(rows, hidden)
    after = hyper_reference.write_streams(x, out, wanted[1])
    write_streams(x.numpy(), out.numpy(), shares)
    near(x.numpy(), after)


@pytest.mark.parametrize(
    ("dims", "sections"), [(8, (2, 1, 1)), (12, (2, 2, 2)), (64, (11, 11, 10))], ids=["small", "even", "real"]
)
def test_rope_follows_three_axes(dims: int, sections: tuple[int, int, int]) -> None:
    positions = torch.tensor([[0, 5, 900], [0, 6, 7], [0, 2, 31]])
    x = torch.randn(3, 1, dims + 3)
    wanted = rope_reference.rotate(x, positions, dims=dims, theta=1e4, sections=sections)
    cos, sin = rope_tables(positions, dims=dims, theta=1e4, sections=sections)
    for row in range(3):
        rotate(x[row, 0].numpy(), cos[row, 0].numpy(), sin[row, 0].numpy())
    near(x.numpy(), wanted, 1e-4)
    text = rope_tables(positions[0], dims=dims, theta=1e4, sections=sections)
    same = rope_tables(positions[:1].expand(3, 3), dims=dims, theta=1e4, sections=sections)
    assert all(torch.equal(a, b) for a, b in zip(text, same, strict=True))


class Mixer:
    """Random weights of a Gated DeltaNet layer, and its reference."""

    def __init__(self, hidden: int, key_heads: int, heads: int, dim: int, *, slots: int, rate: float = 1.0) -> None:
        self.channels, self.shape = (2 * key_heads + heads) * dim, (key_heads, heads, dim)
        self.mix = torch.randn(self.channels + heads * dim + 2 * heads, hidden) / hidden**0.5
        self.conv, self.rate, self.bias = torch.randn(4, self.channels), -torch.rand(heads) * rate, torch.randn(heads)
        self.norm, self.out = torch.rand(dim) + 0.5, torch.randn(hidden, heads * dim) / (heads * dim) ** 0.5
        self.history, self.state = torch.randn(slots, 3, self.channels), torch.randn(slots, heads, dim, dim)

    @property
    def weights(self) -> GdnWeights:
        vectors = [part.numpy() for part in (self.conv, self.rate, self.bias, self.norm)]
        return GdnWeights(join([Part(self.mix)]), *vectors, join([Part(self.out)]), self.shape[0])

    def reference(self, block: torch.Tensor, slot: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Outputs of one span, states after every row, and the inputs of the convolution."""
        key_heads, heads, dim = self.shape
        mixed = (block @ self.mix.t())[None]
        raw, gate = mixed[:, :, : self.channels], mixed[0, :, self.channels : self.channels + heads * dim]
        signal = gdn_reference.causal_conv(torch.cat((self.history[slot : slot + 1], raw), 1), self.conv)
        both = signal[:, :, : 2 * key_heads * dim].reshape(1, -1, 2 * key_heads, dim)
        both = both / torch.sqrt((both**2).sum(-1, keepdim=True) + 1e-6)
        value = signal[:, :, 2 * key_heads * dim :].reshape(1, -1, heads, dim)
        decay = torch.nn.functional.softplus(mixed[:, :, -2 * heads : -heads] + self.bias) * self.rate
        beta = torch.sigmoid(mixed[:, :, -heads:])
        query, key = both[:, :, :key_heads] * dim**-0.5, both[:, :, key_heads:]
        out, states = gdn_reference.delta_rule(query, key, value, decay, beta, self.state[slot : slot + 1])
        normed = norm_reference.rms_norm(out[0], self.norm, eps=1e-6) * torch.sigmoid(gate.reshape(-1, heads, dim))
        return normed.flatten(1) @ self.out.t(), states[0], raw[0]


DELTA_CASES = {
    "drafts": ((5, 5, 5), 2, 6, 8, 1.0),
    "uneven": ((1, 4, 2), 1, 3, 4, 1.0),
    "ratio one": ((7,), 2, 2, 4, 0.1),
    "long": ((150,), 1, 2, 4, 0.05),
    "huge decays": ((40, 3), 1, 2, 4, 5000.0),
}


@pytest.mark.parametrize("case", DELTA_CASES.values(), ids=DELTA_CASES)
def test_delta_rule_and_every_prefix(case: tuple[tuple[int, ...], int, int, int, float]) -> None:
    counts, *shape, rate = case
    mixer, spans = Mixer(12, *shape, slots=len(counts), rate=rate), spans_of(*counts)
    block = torch.randn(sum(counts), 12)
    before = mixer.state.clone()
    out, delta = run_delta(block.numpy(), mixer.weights, mixer.history.numpy(), mixer.state.numpy(), spans, EPS)
    assert torch.equal(mixer.state, before)
    for number, (slot, first, count, _) in enumerate(spans):
        wanted, states, raw = mixer.reference(block[first : first + count], slot)
        near(out[first : first + count, :12], wanted)
        for kept in {0, 1, count // 2, count}:
            state, history = mixer.state.numpy().copy(), mixer.history.numpy().copy()
            all_kept = np.zeros(len(counts), np.int64)
            all_kept[number] = kept
            commit_delta(state, delta, spans, all_kept)
            commit_history(history, delta.raw, spans, all_kept)
            near(state[slot], states[kept - 1] if kept else mixer.state[slot])
            near(history[slot], torch.cat((mixer.history[slot], raw[:kept]))[kept:])
            others = [other for other in range(len(counts)) if other != slot]
            assert np.array_equal(state[others], mixer.state.numpy()[others])


def test_a_row_is_the_same_in_any_company() -> None:
    mixer, block = Mixer(12, 2, 4, 8, slots=3), torch.randn(12, 12).numpy()
    state, history, spans = mixer.state.numpy(), mixer.history.numpy(), spans_of(5, 3, 4)
    out, _ = run_delta(block, mixer.weights, history, state, spans, EPS)
    for slot, first, count, _ in spans:
        own = np.array([[slot, 0, count, 0]])
        alone, _ = run_delta(block[first : first + count], mixer.weights, history, state, own, EPS)
        assert np.array_equal(alone, out[first : first + count])


def test_small_decays_after_a_huge_one_stay_exact() -> None:
    rows = DeltaRows(
        raw=np.zeros((20, 1), np.float32),
        key=torch.nn.functional.normalize(torch.randn(20, 1, 4), dim=2).numpy(),
        update=torch.randn(20, 1, 4).numpy(),
        decay=-torch.rand(20, 1).numpy() * 0.01,
    )
    rows.decay[3] = -30000.0
    state = torch.randn(1, 1, 4, 4)
    wanted = state[0, 0].double()
    for t in range(20):
        pair = torch.outer(torch.from_numpy(rows.key[t, 0]).double(), torch.from_numpy(rows.update[t, 0]).double())
        wanted = wanted * np.exp(float(rows.decay[t, 0])) + pair
    commit_delta(state.numpy(), rows, spans_of(20), np.array([20]))
    near(state[0, 0].numpy(), wanted.float(), 2e-6)


def test_rows_that_were_not_kept_leave_no_trace() -> None:
    mixer, block, spans = Mixer(6, 2, 4, 8, slots=2), torch.randn(10, 6).numpy(), spans_of(5, 5)
    kept = np.array([2, 3])

    def after(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        state, history = mixer.state.numpy().copy(), mixer.history.numpy().copy()
        _, delta = run_delta(rows, mixer.weights, history, state, spans, EPS)
        commit_delta(state, delta, spans, kept)
        commit_history(history, delta.raw, spans, kept)
        return state, history

    poisoned = block.copy()
    poisoned[2:5], poisoned[8:] = np.nan, 1e30
    for clean, dirty in zip(after(block), after(poisoned), strict=True):
        assert np.array_equal(clean, dirty)


def experts_of(gate_up: torch.Tensor, down: torch.Tensor, first: int, stop: int) -> ExpertWeights:
    """gate_up [experts, hidden, 2 * ff], down [experts, ff, hidden]."""
    ff, hidden = down.shape[1:]
    both = Part(gate_up[first:stop].transpose(1, 2).reshape(-1, hidden)).filled(ff)
    columns = Part(down[first:stop].transpose(1, 2).reshape(-1, ff)).filled(hidden)
    return ExpertWeights(join([both]), join([columns]), stop - first)


@pytest.mark.parametrize("rows", [1, 2, 5, 33, 0], ids=["one", "two", "drafts", "many", "none"])
def test_experts(rows: int) -> None:
    gate_up, down = torch.randn(7, 6, 10) * 0.4, torch.randn(7, 5, 6) * 0.4
    router, door = torch.randn(7, 6), torch.randn(1, 6)
    gate, up, back = torch.randn(4, 6), torch.randn(4, 6), torch.randn(6, 4)
    x = torch.randn(rows, 6)
    mix = MixWeights(join([Part(torch.cat((gate, up, router, door)))]), join([Part(back)]), 7, 3)
    shared = (torch.nn.functional.silu(x @ gate.t()) * (x @ up.t())) @ back.t() * torch.sigmoid(x @ door.t())
    wanted = moe_reference.mixture(x, x @ router.t(), gate_up, down, used=3) + shared
    ids, shares, out = route(x.numpy(), mix)
    near(out, shared)
    fetched, touched = out.copy(), []
    add_experts(x.numpy(), ids, shares, experts_of(gate_up, down, 0, 7), out)
    near(out, wanted)

    def fetch(expert: int) -> ExpertWeights:
        touched.append(expert)
        return experts_of(gate_up, down, expert, expert + 1)

    add_fetched(x.numpy(), ids, shares, fetch, fetched)
    near(fetched, wanted)
    assert touched == sorted(set(ids.reshape(-1).tolist()))


def test_all_rows_on_one_expert_and_equal_ones_in_order() -> None:
    x = torch.ones(40, 6)
    router = torch.zeros(4, 6)
    router[2] = 20.0
    mix = MixWeights(
        join([Part(torch.cat((torch.zeros(2, 6), router, torch.zeros(1, 6))))]), join([Part(torch.zeros(6, 1))]), 4, 3
    )
    ids, shares, out = route(x.numpy(), mix)
    assert (ids == [2, 0, 1]).all()
    gate_up, down = torch.randn(4, 6, 10), torch.randn(4, 5, 6)
    add_experts(x.numpy(), ids, shares, experts_of(gate_up, down, 0, 4), out)
    near(out, moe_reference.mixture(x, x @ router.t(), gate_up, down, used=3))


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
    constants = Hash(*(np.array(values, dtype=np.int64) for values in HASH.values()), 9)
    own = np.array(tokens[cut:], dtype=np.int64)
    history = np.array([[9, 9, *tokens[:cut]][-2:], [1, 2]], dtype=np.int64)
    found = hash_rows(np.concatenate((own, [4])), history, spans_of(own.size, 1), constants)
    assert found[:-1].tolist() == wanted[cut:]


@pytest.mark.parametrize("zero", [False, True], ids=["random", "a score of zero"])
def test_values_are_gated_convolved_and_added(zero: bool) -> None:
    streams, hidden, width, counts = 2, 6, 5, (4, 1)
    x, found = torch.randn(5, streams, hidden), torch.randn(5, width)
    key, value = torch.randn(streams * hidden, width) * (not zero), torch.randn(hidden, width)
    norms = [torch.rand(streams, hidden) + 0.5 for _ in range(3)]
    conv, history, spans = torch.randn(3, streams * hidden), torch.randn(2, 4, streams * hidden), spans_of(*counts)
    names = dict(zip(("norm_key", "norm_query", "norm_conv"), norms, strict=True))
    gated, normed = ngram_reference.gate_values(x, found, key=key, value=value, **names, eps=1e-6)
    wanted = gated.clone()
    for slot, first, count, _ in spans:
        rows = torch.cat((history[slot], normed[first : first + count].flatten(1)))[None]
        mixed = gdn_reference.causal_conv(rows, conv, dilation=2)[0]
        wanted[first : first + count] += mixed.view(count, streams, hidden)
    weights = PleWeights(join([Part(key)]), join([Part(value)]), *(norm.numpy() for norm in norms), conv.numpy(), 2)
    after = x.numpy().copy()
    added, inputs = add_values(after, found.numpy(), weights, history.numpy(), spans, EPS)
    near(added, wanted, 1e-4)
    near(inputs, normed.flatten(1), 1e-4)
    near(after, x + wanted, 1e-4)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("rows", [1, 6, 0])
def test_draft_rows_begin_with_a_token_and_the_streams(rows: int, grouped: bool) -> None:
    streams, embedded = torch.randn(rows, 3, 10) * torch.tensor([1.0, 5.0, 0.1])[:, None], torch.randn(rows, 10)
    token_norm, state_norm = torch.rand(10), torch.rand(3, 10)
    from_token, from_state = torch.randn(10, 10), torch.randn(10, 10)
    matrices = {"from_token": join([Part(from_token)]), "from_state": join([Part(from_state)])}
    weights = EntryWeights(token_norm.numpy(), state_norm.numpy(), **matrices, grouped=grouped)
    wanted = block_reference.enter_draft(
        streams,
        embedded,
        token_norm=token_norm,
        state_norm=state_norm,
        from_token=from_token,
        from_state=from_state,
        grouped=grouped,
        eps=1e-6,
    )
    near(enter_draft(streams.numpy(), embedded.numpy(), record(weights, ENTRY), EPS), wanted)
