"""What breaks, who is told, and who goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
import torch

from appliance.engine.config import EngineConfig
from appliance.engine.engine import Engine
from appliance.engine.fault_words import fault_sentence, is_card_error
from appliance.engine.handle import FinishReason, GenerationRequest
from appliance.engine.selftest import check_model
from appliance.engine.watchdog import patience_s
from appliance.errors import EngineFault, ModelFileError, NotReadyError, RigError
from appliance.model.interface import Chooser
from appliance.model.window import Commit, Draft, Window
from tests.builders.fake_model import FakeModel, always
from tests.engine.harness import SMALL, Gate, collect, play, running

A, B, C = (1, 2, 3), (4, 5, 6, 7), (8, 9)


class Breaking(FakeModel):
    """Raises in the named call of its n-th window."""

    def __init__(self, *, call: str, window: int, words: str = "the card fell off the bus") -> None:
        """Counts the windows of the self-test too."""
        super().__init__(draft_right=always)
        self._call = call
        self._words = words
        self._left = window + 2

    def forward(self, window: Window) -> torch.Tensor:
        """Maybe raises."""
        self._left -= 1
        if self._left == 0 and self.before_forward is not None:
            self.before_forward(window)
        if self._left == 0 and self._call == "forward":
            raise RuntimeError(self._words)
        return super().forward(window)

    def advance(self, commits: Sequence[Commit], choose: Chooser) -> tuple[Draft, ...]:
        """Maybe raises."""
        if self._left == 0 and self._call == "advance":
            raise RuntimeError(self._words)
        return super().advance(commits, choose)


@pytest.mark.parametrize("call", ["forward", "advance"])
@pytest.mark.parametrize("window", [1, 5])
def test_a_fault_ends_every_stream_and_refuses_later_ones(call: str, window: int) -> None:
    """STR-11: decoding, reading and waiting streams end with a fatal error; the callback is called once."""

    async def scenario() -> None:
        model = Breaking(call=call, window=window)
        gate = Gate(model)
        async with running(model, slots=2) as run:
            gate.close()  # the fault comes when everybody has asked
            streams = [run.ask(A, 200), run.ask((1,) * 200, 20), run.ask(B, 20), run.ask(C, 20)]
            gate.open()
            for answer in await asyncio.gather(*map(collect, streams)):
                assert answer.finished.reason is FinishReason.ERROR
                assert answer.finished.fatal
                assert answer.finished.error is not None
                assert "the card fell off the bus" in answer.finished.error
            await run.fault_seen.wait()
            assert len(run.faults) == 1
            with pytest.raises(EngineFault, match="fell off the bus"):
                run.ask(A, 5)
            assert run.status().last_fault == run.faults[0]
            run.engine.stop()
            run.engine.stop()

    play(scenario)


CUDA_LOST = (
    "CUDA error: unspecified launch failure\nSearch for `cudaErrorLaunchFailure' in the documentation.\n"
    "CUDA kernel errors might be asynchronously reported at some other API call.\n"
)


def test_a_lost_card_is_one_clear_line() -> None:
    """The driver's paragraph becomes a sentence; every stream ends with it, and the process is told once."""

    async def scenario() -> None:
        model = Breaking(call="forward", window=3, words=CUDA_LOST)
        gate = Gate(model)
        async with running(model, slots=2) as run:
            gate.close()
            streams = [run.ask(A, 200), run.ask(B, 200)]
            gate.open()
            for answer in await asyncio.gather(*map(collect, streams)):
                assert answer.finished.reason is FinishReason.ERROR
                assert answer.finished.fatal
            await run.fault_seen.wait()
            (sentence,) = run.faults
            assert "a card was lost: CUDA error: unspecified launch failure;" in sentence
            assert "\n" not in sentence
            assert "asynchronously" not in sentence

    play(scenario)


class OutOfMemoryError(RuntimeError):
    """As torch has one."""


@pytest.mark.parametrize(
    ("error", "card", "sentence"),
    [
        (
            RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
            True,
            "a card was lost: Triton",
        ),
        (RuntimeError("CUDA error: out of memory"), False, "a card has no memory left: CUDA error: out of memory"),
        (OutOfMemoryError("CUDA out of memory. Tried\nmore"), False, "a card has no memory left: CUDA out of memory."),
        (ValueError("first\nsecond"), False, "ValueError: first"),
        (AssertionError(), False, "AssertionError: "),
    ],
    ids=["triton", "full-by-the-driver", "full", "anything", "without-words"],
)
def test_errors_become_sentences(error: Exception, card: bool, sentence: str) -> None:
    assert is_card_error(error) is card
    assert fault_sentence(error).startswith(sentence)
    assert "\n" not in fault_sentence(error)


def test_a_silent_engine_is_a_fault() -> None:
    """STR-11: the watchdog ends the streams although the engine's thread never comes back by itself."""
    model = FakeModel()
    gate = Gate(model)

    async def scenario() -> None:
        async with running(model, watchdog_s=0.05) as run:
            gate.close()
            answer = await collect(run.ask(A, 50))
            assert answer.finished.fatal
            assert "silent" in (answer.finished.error or "")
            await run.fault_seen.wait()
            with pytest.raises(EngineFault):
                run.ask(A, 5)
            gate.open()

    play(scenario)


@pytest.mark.parametrize(
    ("rows", "bound_s"),
    [
        pytest.param(1, 10, id="one"),
        pytest.param(64, 10, id="few"),
        pytest.param(640, 100, id="ten times that"),
    ],
)
def test_patience_scales_with_the_rows_of_a_window(rows: int, bound_s: float) -> None:
    """STR-11."""
    assert patience_s(rows, 10) == bound_s


@pytest.mark.parametrize("place", [3, 4, 11], ids=["first token", "second token", "in the middle"])
@pytest.mark.parametrize("drafts", [False, True], ids=["no drafts", "drafts"])
def test_a_row_of_nan_ends_its_request_alone(place: int, drafts: bool) -> None:
    """TOOL-10: the others go on, the slot is usable again, the counter says it."""
    model = FakeModel(draft_right=always if drafts else None)
    model.nan_after = lambda prefix: prefix[:3] == A and len(prefix) == place

    async def scenario() -> None:
        async with running(model, slots=2) as run:
            bad, good = await asyncio.gather(collect(run.ask(A, 40)), collect(run.ask(B, 40)))
            assert bad.ids == model.greedy(A, place - 3)
            assert bad.finished.reason is FinishReason.ERROR
            assert not bad.finished.fatal
            assert bad.finished.error_code == "nonfinite_logits"
            assert good.ids == model.greedy(B, 40)
            after = await collect(run.ask(C, 40))
            assert after.ids == model.greedy(C, 40)
            assert run.status().nonfinite_rows == 1
            assert run.faults == []

    play(scenario)


def test_nan_in_a_scored_prompt_ends_its_request_alone() -> None:
    """TOOL-10."""
    model = FakeModel()
    model.nan_after = lambda prefix: prefix == (4, 5)

    async def scenario() -> None:
        async with running(model) as run:
            answer = await collect(run.ask(B, 4, prompt_logprobs=1))
            assert answer.scores is None
            assert answer.finished.error_code == "nonfinite_logits"
            assert (await collect(run.ask(A, 4, prompt_logprobs=1))).scores is not None

    play(scenario)


def test_one_token_for_ever_is_stopped() -> None:
    """TOOL-10: after the configured run, unless the request asked to ignore the end of turn."""
    model = FakeModel(draft_right=always)
    model.script = lambda prefix: 7

    async def scenario() -> None:
        async with running(model, repeat_limit=20) as run:
            stopped = await collect(run.ask(A, 100, stop_token_ids=frozenset({60})))
            assert stopped.ids == [7] * 20
            assert stopped.finished.reason is FinishReason.ERROR
            assert stopped.finished.error_code == "degenerate_output"
            assert not stopped.finished.fatal
            assert (await collect(run.ask(A, 100))).ids == [7] * 100

    play(scenario)


class Deaf(FakeModel):
    """Computes the same logits for every prompt."""

    def row(self, prefix: tuple[int, ...]) -> torch.Tensor:
        """A constant."""
        return torch.linspace(0, 1, self.vocabulary)


class Broken(FakeModel):
    """Computes nothing finite."""

    def row(self, prefix: tuple[int, ...]) -> torch.Tensor:
        """Not numbers."""
        return torch.full((self.vocabulary,), float("inf"))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        pytest.param(Deaf(), "same logits", id="GGUF-17 constant"),
        pytest.param(Broken(), "not finite", id="GGUF-17 not finite"),
    ],
)
def test_a_model_that_ignores_its_prompt_never_becomes_ready(model: FakeModel, said: str) -> None:
    async def scenario() -> None:
        with pytest.raises(ModelFileError, match=said):
            async with running(model):
                raise AssertionError("started")

    play(scenario)


def test_the_self_test_leaves_the_slot_empty() -> None:
    model = FakeModel()
    check_model(model, SMALL)
    assert model.length(0) == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"slots": 0}, "slots is 0", id="no slot"),
        pytest.param({"prompt_chunk": 3}, "prompt_chunk is 3; it must be at least 4", id="fewer rows than readers"),
        pytest.param({"draft_max": -1}, "draft_max", id="negative drafts"),
        pytest.param({"watchdog_s": 0.0}, "watchdog_s", id="no patience"),
        pytest.param({"pages": 63}, "63 KV pages of 4 tokens hold 252 tokens", id="pages below one conversation"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, int], said: str) -> None:
    fields = {"slots": 4, "page_tokens": 4, "pages": 64, "max_tokens": 256, "prompt_chunk": 16, "draft_max": 3}
    with pytest.raises(RigError, match=said):
        EngineConfig(**{**fields, **changes})  # type: ignore[arg-type]


def test_an_engine_that_never_started_refuses_and_stops() -> None:
    engine = Engine(FakeModel(), SMALL, on_fault=lambda sentence: None)
    with pytest.raises(NotReadyError, match="not started"):
        engine.handle.submit(GenerationRequest(id="early", prompt_ids=A, max_tokens=1))
    engine.drain(0.0)
    engine.stop()
    assert engine.handle.status().last_fault is None


def test_the_event_loop_is_called_once_a_window() -> None:
    model = FakeModel(draft_right=always)
    calls: list[str] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        original = loop.call_soon_threadsafe

        def counted(callback, *arguments, **named):  # type: ignore[no-untyped-def]
            calls.append(getattr(callback, "__name__", ""))
            return original(callback, *arguments, **named)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign, assignment]
        async with running(model) as run:
            await asyncio.gather(*(collect(run.ask(prompt, 100)) for prompt in (A, B, C)))

    play(scenario)
    assert 0 < calls.count("_deliver") <= len(model.windows)
