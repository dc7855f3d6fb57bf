"""Owns the placement: machine, model and rig in, bytes for every part out; pure and torch-free."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from appliance.card_choice import best_cards
from appliance.card_placement import size_up_cards
from appliance.errors import DoesNotFitError
from appliance.model.qwen4exp.footprint import ngram_bytes
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.placed import Item, Placement, Shape, StagePlan
from appliance.placed_speed import busy_groups, company_rate
from appliance.rig.judge import Device
from appliance.rig.machine import Machine
from appliance.rig.recorded import with_recorded
from appliance.rig.schema import Rig
from appliance.rig.size import format_size
from appliance.sizing import size_up

__all__ = ["Item", "Placement", "StagePlan", "place"]

AUTO_PARALLEL = 8
AUTO_CONTEXT = 32768
FLOOR_CONTEXT = 8192
LEAST_CONTEXT = 64


def place(machine: Machine, spec: ModelSpec, rig: Rig, *, device: Device) -> Placement:
    """Decides what goes where, and where several cards are open to choice, which of them in which order.

    Automatic values shrink until everything fits: the weights stay packed, then the context goes down to 8,192, then
    fewer conversations. A value that the rig states is kept or refused, never changed.

    Raises:
        DoesNotFitError: nothing that the rig allows fits; names the shortfall and what would fit.
    """
    machine = with_recorded(machine, rig.machine)
    if len(device.cards) > 1 and _is_open(rig):
        return best_cards(
            device,
            lambda some: _place(machine, spec, rig, device=some),
            lambda found: company_rate(machine, spec, found),
            most=spec.trunk_layers,
        )
    return _place(machine, spec, rig, device=device)


def _is_open(rig: Rig) -> bool:
    """Whether nothing in the rig counts on certain cards in a certain order."""
    per_card = (rig.cards.vram_reserve, rig.experts.cache)
    return (
        rig.cards.devices == "auto"
        and rig.cards.layer_split == "auto"
        and not any(isinstance(sizes, tuple) for sizes in per_card)
    )


def _place(machine: Machine, spec: ModelSpec, rig: Rig, *, device: Device) -> Placement:
    price = partial(size_up_cards if device.cards else size_up, machine=machine, spec=spec, rig=rig, device=device)
    homes = _homes(machine, spec, rig, device)
    smallest: Placement | None = None
    for tokens, parallel in _wanted(spec, rig):
        for placement in map(price, _shapes(tokens, parallel, homes)):
            if placement.fits:
                return _with_groups(placement, machine, spec, rig)
            if smallest is None or placement.short_bytes < smallest.short_bytes:
                smallest = placement
    if smallest is None:
        raise AssertionError("no placement was tried")
    raise _refusal(smallest, machine, fits=lambda t, p: any(price(s).fits for s in _shapes(t, p, homes)))


def _with_groups(placement: Placement, machine: Machine, spec: ModelSpec, rig: Rig) -> Placement:
    """As many groups as keep the cards busy, where the rig does not say how many."""
    if rig.serving.batch_groups != "auto" or len(placement.stages) < 2:
        return placement
    return dataclasses.replace(placement, groups=busy_groups(machine, spec, placement))


def _shapes(tokens: int, parallel: int, homes: Sequence[str]) -> Iterator[Shape]:
    for unpack in ("once", "per_use"):
        for home in homes:
            yield Shape(tokens=tokens, parallel=parallel, unpack=unpack, home=home)


def _wanted(spec: ModelSpec, rig: Rig) -> Iterator[tuple[int, int]]:
    """(context, parallel), the most wanted first."""
    top = min(spec.context_tokens, AUTO_CONTEXT)
    contexts = _halves(top, least=min(top, 1024)) if rig.context.max_tokens == "auto" else [rig.context.max_tokens]
    slots = _halves(AUTO_PARALLEL, least=1) if rig.serving.parallel == "auto" else [rig.serving.parallel]
    roomy = [tokens for tokens in contexts if tokens >= FLOOR_CONTEXT] or contexts[:1]
    for group in (roomy, [tokens for tokens in contexts if tokens not in roomy]):
        for parallel in slots:
            for tokens in group:
                yield tokens, parallel


def _halves(top: int, *, least: int) -> list[int]:
    values = [top]
    while values[-1] // 2 >= least:
        values.append(values[-1] // 2)
    return values


def _homes(machine: Machine, spec: ModelSpec, rig: Rig, device: Device) -> Sequence[str]:
    if rig.ngram.home != "auto":
        return (rig.ngram.home,)
    if device.cards:
        roomiest = max(card.free_bytes or card.vram_bytes or 0 for card in device.cards)
        # A window needs a few rows of it: from storage that is a few small reads, before the window can be sent.
        return ("ram", "vram", "mmap") if ngram_bytes(spec) < roomiest else ("ram", "mmap")
    # A few small reads a token: from RAM when the table costs little of it, else through the page cache.
    return ("ram", "mmap") if ngram_bytes(spec) <= machine.ram.budget_bytes // 4 else ("mmap",)


def _refusal(smallest: Placement, machine: Machine, *, fits: Callable[[int, int], bool]) -> DoesNotFitError:
    """The sentence: needed, allowed, by how much, the parts, and the largest that fits."""
    if any(stage.free_bytes < 0 for stage in smallest.stages):
        return _card_refusal(smallest, fits=fits)
    parts = _parts(smallest.items)
    limit = f" (limit in {machine.ram.limit_source})" if machine.ram.limit_source else ""
    return DoesNotFitError(
        f"{smallest.parallel} x {smallest.max_tokens} tokens need {format_size(smallest.total_bytes)} and this process "
        f"may use {format_size(smallest.budget_bytes)}{limit}: {format_size(-smallest.free_bytes)} short; {parts}",
        hint=_largest(smallest, fits),
    )


def _card_refusal(smallest: Placement, *, fits: Callable[[int, int], bool]) -> DoesNotFitError:
    """Every card that is too small, with its numbers."""
    short = [stage for stage in smallest.stages if stage.free_bytes < 0]
    says = "; ".join(_card_words(stage, several=len(smallest.stages) > 1) for stage in short)
    hint = _largest(smallest, fits)
    held = next((process for stage in short for process in stage.card.processes), None)
    if smallest.draft_max:
        hint += ", or draft_max = 0, which leaves the drafter out"
    if held is not None:
        hint += f", or end process {held.pid}, which holds memory of the card"
    return DoesNotFitError(f"{smallest.parallel} x {smallest.max_tokens} tokens need {says}", hint=hint)


def _card_words(stage: StagePlan, *, several: bool) -> str:
    layers = f" with layers {stage.first_layer} to {stage.past_layer - 1}" if several else ""
    where = f"card {stage.card.index} ({stage.card.name}){layers}"
    return (
        f"{format_size(stage.used_bytes)} on {where} and it has {format_size(stage.budget_bytes)} besides its reserve: "
        f"{format_size(-stage.free_bytes)} short; {_parts(stage.items)}"
    )


def _parts(items: Sequence[Item]) -> str:
    return ", ".join(f"{item.name} {format_size(item.size_bytes)}" for item in items if item.size_bytes > 0)


def _largest(smallest: Placement, fits: Callable[[int, int], bool]) -> str:
    """What the rig could ask for instead, by the same arithmetic."""
    tokens, parallel = smallest.max_tokens, smallest.parallel
    options = []
    longest = _longest(tokens, lambda t: fits(t, parallel))
    if longest is not None:
        options.append(f"max_tokens = {longest} with parallel = {parallel}")
    fewer = next((p for p in range(parallel - 1, 0, -1) if fits(tokens, p)), None)
    if fewer is not None:
        options.append(f"parallel = {fewer} with max_tokens = {tokens}")
    if not options and (alone := _longest(tokens, lambda t: fits(t, 1))) is not None:
        options.append(f"max_tokens = {alone} with parallel = 1")
    if not options:
        return "no setting of this model fits here: use a smaller model or more memory"
    return "the largest that fits: " + ", or ".join(options)


def _longest(below: int, fits: Callable[[int], bool]) -> int | None:
    """Largest context under `below` that fits, in steps of the least context; None when not even that does."""
    low, high = 0, (below - 1) // LEAST_CONTEXT
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * LEAST_CONTEXT) else (low, middle - 1)
    return low * LEAST_CONTEXT or None
