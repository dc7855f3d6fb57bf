"""The placement: pure arithmetic that equals what the model allocates, and refusals that say what would fit."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

import numpy as np
import pytest

from appliance.errors import DoesNotFitError, ExitCode
from appliance.examine import BUILTIN_MODEL
from appliance.gguf.reader import open_set
from appliance.model.qwen4exp.device_footprint import HOST_TILE_WORDS, TILE_WORDS, WIDE_TILE_WORDS
from appliance.model.qwen4exp.load import load_model
from appliance.model.qwen4exp.spec import ModelSpec, read_spec
from appliance.placed import Placement
from appliance.placement import place
from appliance.rig.judge import Device
from appliance.rig.load import load_text
from appliance.rig.size import GIB, MIB
from appliance.sizing import HEADROOM_LEAST, RUNTIME_BYTES
from kernels.planes import FORMATS, formats_of
from tests.builders.machines import card, machine

CPU = Device("cpu", "")


@pytest.fixture(scope="module")
def spec() -> Iterator[ModelSpec]:
    model = open_set(BUILTIN_MODEL)
    yield read_spec(model)
    model.close()


def large(spec: ModelSpec) -> ModelSpec:
    """The same shapes with many more layers, a long context and the draft block."""
    layers = 48
    tensors = {name: tensor for name, tensor in spec.tensors.items() if not name.startswith("blk.")}
    for layer in range(layers + 1):
        source = spec.trunk_layers if layer == layers else layer % spec.trunk_layers
        for name, tensor in spec.tensors.items():
            if name.startswith(f"blk.{source}."):
                tensors[name.replace(f"blk.{source}.", f"blk.{layer}.", 1)] = tensor
    full = tuple((layer + 1) % 4 == 0 for layer in range(layers))
    return dataclasses.replace(spec, trunk_layers=layers, full_attention=full, tensors=tensors, context_tokens=262144)


def placed(spec: ModelSpec, rig: str = "", *, ram_bytes: int = 16 * GIB, cores: int = 2) -> Placement:
    return place(machine(ram_bytes=ram_bytes, cores=cores), spec, load_text(rig).rig, device=CPU)


def size_of(placement: Placement, name: str) -> int:
    return next(item.size_bytes for item in placement.items if item.name == name)


def test_automatic_values_of_the_built_in_model(spec: ModelSpec) -> None:
    found = placed(spec)
    assert (found.parallel, found.max_tokens, found.draft_max, found.unpack, found.ngram_home) == (
        8,
        4096,
        4,
        "once",
        "ram",
    )
    assert found.pages * found.page_tokens == 8 * 4096
    assert found.page_tokens % spec.block_tokens == 0
    assert found.total_bytes == sum(item.size_bytes for item in found.items) <= found.budget_bytes
    assert found.load_plan().max_window_rows == found.window_rows == 8 * 5 + found.prompt_chunk


def test_it_is_pure(spec: ModelSpec) -> None:
    assert placed(spec) == placed(spec)


@pytest.mark.parametrize("drafts", [0, 4])
def test_its_bytes_are_those_that_loading_allocates(spec: ModelSpec, drafts: int) -> None:
    """The plan is the truth: to the byte for the state, and for the weights."""
    found = placed(spec, f"[serving]\nparallel = 3\ndraft_max = {drafts}\n[context]\nmax_tokens = 300\n")
    model = load_model(spec, plan=found.load_plan(), progress=lambda stage, percent: None)
    state = model.state  # type: ignore[attr-defined]
    slots = sum(t.nbytes for t in (state.delta, state.conv, state.ple, state.index))
    pages = sum(t.nbytes for t in (state.keys, state.values, state.pooled))
    assert size_of(found, "recurrent states") == slots
    assert size_of(found, "KV pages") == pages
    weights = sum(array.nbytes for array in arrays_of(model.weights))  # type: ignore[attr-defined]
    assert weights == pytest.approx(size_of(found, "weights"), rel=0.002)


def arrays_of(root: object) -> list[np.ndarray]:
    """Every array reachable from an object, each once."""
    seen: dict[int, np.ndarray] = {}
    visited: set[int] = set()
    todo = [root]
    while todo:
        value = todo.pop()
        if id(value) in visited:
            continue
        visited.add(id(value))
        if isinstance(value, np.ndarray):
            seen[value.ctypes.data] = value
        elif isinstance(value, (list, tuple)):
            todo += value
        elif isinstance(value, dict):
            todo += value.values()
        elif type(value).__module__.startswith(("appliance.model", "kernels")):
            names = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
            todo += [getattr(value, name) for name in names if hasattr(value, name)]
            todo += vars(value).values() if hasattr(value, "__dict__") else []
    return [array for array in seen.values() if array.size]


def test_a_slot_is_priced_at_the_configured_context(spec: ModelSpec) -> None:
    sizes = [size_of(placed(spec, f"[context]\nmax_tokens = {tokens}\n"), "KV pages") for tokens in (1024, 2048, 4096)]
    assert sizes[0] < sizes[1] < sizes[2]
    assert sizes[2] == pytest.approx(4 * sizes[0], rel=0.01)


def test_without_drafts_there_is_no_draft_layer(spec: ModelSpec) -> None:
    with_drafts, without = placed(spec), placed(spec, "[serving]\ndraft_max = 0\n")
    for name in ("weights", "KV pages"):
        assert size_of(without, name) < size_of(with_drafts, name)
    none = placed(dataclasses.replace(spec, has_draft=False, draft_note="the file has no draft layer"))
    assert none.draft_max == 0
    assert any("no draft layer" in note for note in none.notes)


def test_automatic_values_shrink_before_they_are_refused(spec: ModelSpec) -> None:
    model = large(spec)
    roomy = placed(model, ram_bytes=64 * GIB)
    assert (roomy.unpack, roomy.max_tokens, roomy.parallel) == ("once", 32768, 8)
    shorter = placed(model, ram_bytes=4 * GIB)
    assert (shorter.parallel, shorter.max_tokens) == (8, 16384)
    tight = placed(model, ram_bytes=950 * MIB)
    assert tight.unpack == "per_use"
    assert tight.parallel < 8
    for found in (shorter, tight):
        assert found.total_bytes <= found.budget_bytes


def test_stated_values_are_kept_or_refused_with_what_would_fit(spec: ModelSpec) -> None:
    """CFG-19: never changed silently; the refusal itemises and names the largest that fits."""
    model = large(spec)
    rig = "[context]\nmax_tokens = 262144\n[serving]\nparallel = 2\n"
    assert placed(model, rig, ram_bytes=64 * GIB).max_tokens == 262144
    with pytest.raises(DoesNotFitError) as caught:
        placed(model, rig, ram_bytes=6 * GIB)
    assert caught.value.exit_code is ExitCode.DOES_NOT_FIT
    message = str(caught.value)
    for part in (
        "2 x 262144 tokens need",
        "may use 6 GiB",
        "short",
        "weights",
        "KV pages",
        "recurrent states",
        "headroom",
    ):
        assert part in message
    hint = re.search(r"max_tokens = (\d+) with parallel = 2", message)
    assert hint is not None
    assert placed(model, rig.replace("262144", hint[1]), ram_bytes=6 * GIB).max_tokens == int(hint[1])
    with pytest.raises(DoesNotFitError):
        placed(model, rig.replace("262144", str(int(hint[1]) + 64)), ram_bytes=6 * GIB)


def test_the_limit_of_the_container_is_named(spec: ModelSpec) -> None:
    """MEM-01"""
    small = machine(ram_bytes=300 * MIB)
    limited = dataclasses.replace(
        small, ram=dataclasses.replace(small.ram, total_bytes=128 * GIB, limit_source="/sys/fs/cgroup/memory.max")
    )
    with pytest.raises(DoesNotFitError, match=r"limit in /sys/fs/cgroup/memory\.max") as caught:
        place(limited, spec, load_text("").rig, device=CPU)
    assert "no setting of this model fits" in str(caught.value)


def test_the_runtime_and_headroom_are_part_of_the_plan(spec: ModelSpec) -> None:
    """MEM-02: weights that just fit are refused when the process around them does not."""
    found = placed(spec)
    assert size_of(found, "runtime") == RUNTIME_BYTES
    assert size_of(found, "headroom") >= HEADROOM_LEAST
    alone = size_of(found, "weights")
    with pytest.raises(DoesNotFitError):
        placed(spec, "[serving]\nparallel = 1\n", ram_bytes=alone + 64 * MIB)


def test_empty_parts_take_nothing(spec: ModelSpec) -> None:
    """MEM-03: a model without an n-gram table, or with its table elsewhere, has an empty piece and not an error."""
    tensors = {name: t for name, t in spec.tensors.items() if name != "per_layer_token_embd.weight"}
    assert size_of(placed(dataclasses.replace(spec, ngram=None, tensors=tensors)), "n-gram table") == 0
    assert size_of(placed(spec, '[ngram]\nhome = "mmap"\n'), "n-gram table") == 0


def test_prompt_windows_grow_with_the_cores(spec: ModelSpec) -> None:
    assert placed(spec, cores=2).prompt_chunk < placed(spec, cores=16).prompt_chunk
    assert placed(spec, "[serving]\nprompt_chunk = 100\n", cores=16).prompt_chunk == 100


def on_card(spec: ModelSpec, rig: str = "", *, vram_bytes: int = 32 * GIB, ram_bytes: int = 64 * GIB) -> Placement:
    here = card(vram_bytes=vram_bytes)
    device = Device("cuda:0", "", (here,))
    return place(machine(ram_bytes=ram_bytes, cards=1), spec, load_text(rig).rig, device=device)


def test_a_card_holds_everything_it_can(spec: ModelSpec) -> None:
    found = on_card(spec)
    experts = next(item for item in found.card_items if item.name == "card: experts")
    assert "100.0%" in experts.note
    assert size_of(found, "experts") == 0
    assert found.fits
    assert (found.max_rows, found.span_rows, found.kv_type) == (40, 13, "bf16")
    assert found.load_plan().expert_pool_bytes == experts.size_bytes


def test_experts_that_the_card_cannot_hold_stay_in_ram(spec: ModelSpec) -> None:
    """MEM-05: what is left after everything else is the cache, and the rest is priced in RAM."""
    whole = on_card(spec).card_items[1].size_bytes
    rig = '[experts]\ncache = "4 MiB"\n'
    part = on_card(spec, rig)
    assert part.card_items[1].size_bytes == 4 * MIB
    assert size_of(part, "experts") == pytest.approx(whole - 4 * MIB, rel=0.01)


def test_a_card_too_small_is_refused_with_numbers(spec: ModelSpec) -> None:
    with pytest.raises(DoesNotFitError, match=r"on card 0 \(NVIDIA Test 32G\) and it has") as caught:
        on_card(spec, vram_bytes=GIB, rig="[serving]\nparallel = 8\n[context]\nmax_tokens = 4096\n")
    assert "short; card: weights" in str(caught.value)


def test_the_planes_of_the_footprint_are_those_of_the_kernels() -> None:
    for name, words in TILE_WORDS.items():
        assert formats_of(name)[0].tile_words == words, name
    assert FORMATS["wide"].tile_words == WIDE_TILE_WORDS
    for name, words in HOST_TILE_WORDS.items():
        assert words in {form.tile_words for form in formats_of(name)}, name
