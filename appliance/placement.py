"""Owns the placement: machine, model and rig in, bytes for every part out; pure and torch-free."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from appliance.errors import DoesNotFitError
from appliance.model.qwen4exp.footprint import ngram_bytes
from appliance.model.qwen4exp.spec import ModelSpec
from appliance.rig.judge import Device
from appliance.rig.machine import Machine
from appliance.rig.schema import Rig
from appliance.rig.size import format_size
from appliance.sizing import Item, Placement, Shape, size_up

__all__ = ["Item", "Placement", "place"]

AUTO_PARALLEL = 8
AUTO_CONTEXT = 32768
FLOOR_CONTEXT = 8192
LEAST_CONTEXT = 64


def place(machine: Machine, spec: ModelSpec, rig: Rig, *, device: Device) -> Placement:
    """Decides what goes where.

    Automatic values shrink until everything fits: the weights stay packed, then the context goes down to 8,192, then
    fewer conversations. A value that the rig states is kept or refused, never changed.

    Raises:
        DoesNotFitError: nothing that the rig allows fits; names the shortfall and what would fit.
    """
    price = partial(size_up, machine=machine, spec=spec, rig=rig, device=device)
    homes = _homes(machine, spec, rig, card=device.card is not None)
    smallest: Placement | None = None
    for tokens, parallel in _wanted(spec, rig):
        for placement in map(price, _shapes(tokens, parallel, homes)):
            if placement.fits:
                return placement
            if smallest is None or placement.total_bytes < smallest.total_bytes:
                smallest = placement
    if smallest is None:
        raise AssertionError("no placement was tried")
    raise _refusal(smallest, machine, fits=lambda t, p: any(price(s).fits for s in _shapes(t, p, homes)))


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


def _homes(machine: Machine, spec: ModelSpec, rig: Rig, *, card: bool) -> Sequence[str]:
    if rig.ngram.home != "auto":
        return (rig.ngram.home,)
    if card:
        return ("ram", "vram")
    # A few small reads a token: from RAM when the table costs little of it, else through the page cache.
    return ("ram", "mmap") if ngram_bytes(spec) <= machine.ram.budget_bytes // 4 else ("mmap",)


def _refusal(smallest: Placement, machine: Machine, *, fits: Callable[[int, int], bool]) -> DoesNotFitError:
    """The sentence: needed, allowed, by how much, the parts, and the largest that fits."""
    if smallest.card_free_bytes < 0:
        return _card_refusal(smallest, fits=fits)
    parts = _parts(smallest.items)
    limit = f" (limit in {machine.ram.limit_source})" if machine.ram.limit_source else ""
    return DoesNotFitError(
        f"{smallest.parallel} x {smallest.max_tokens} tokens need {format_size(smallest.total_bytes)} and this process "
        f"may use {format_size(smallest.budget_bytes)}{limit}: {format_size(-smallest.free_bytes)} short; {parts}",
        hint=_largest(smallest, fits),
    )


def _card_refusal(smallest: Placement, *, fits: Callable[[int, int], bool]) -> DoesNotFitError:
    needed = sum(item.size_bytes for item in smallest.card_items if item.size_bytes > 0)
    missing = -smallest.card_free_bytes
    return DoesNotFitError(
        f"{smallest.parallel} x {smallest.max_tokens} tokens need {format_size(needed)} on the card and it has "
        f"{format_size(smallest.card_budget_bytes)} besides its reserve: {format_size(missing)} short; "
        f"{_parts(smallest.card_items)}",
        hint=_largest(smallest, fits),
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
