"""Exchanges cold experts on the card for hot ones in RAM while windows go on; the host never waits for a copy.

An exchange has four steps, each begun after a window was sent and only when the copies of the step before have landed:

1. the hot expert is copied to a spare place on the card;
2. the table says so; the cold one goes, in the host's form, to the place in RAM that nobody reads any more;
3. the table says so; the hot one goes, in the card's form, to the slot that nobody reads any more;
4. the table says so; the spare place is free.

So nothing is kept twice, and at every moment each entry of the table is an expert that is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from appliance.model.qwen4exp.device.hotness import Heat, Move
from appliance.model.qwen4exp.device.store import ExpertStore
from appliance.model.qwen4exp.device_footprint import SWAP_MOVES
from kernels.experts import table_entry
from kernels.experts.recode import recode


class Ticket(Protocol):
    """Work that was sent beside the windows."""

    @property
    def done(self) -> bool:
        """Whether it has happened; does not wait."""
        ...


class Beside(Protocol):
    """Runs work beside the windows."""

    def run(self, work: Callable[[], None]) -> Ticket:
        """Does the work after all that the windows' stream was given so far, beside what it will be given."""
        ...


@dataclass(frozen=True, slots=True)
class _Done:
    done: bool = True


class AtOnce:
    """On a device without streams."""

    def run(self, work: Callable[[], None]) -> Ticket:
        """See `Beside`."""
        work()
        return _Done()


@dataclass(frozen=True, slots=True)
class _Event:
    event: torch.cuda.Event

    @property
    def done(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]


class SideStream:
    """On a card."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def run(self, work: Callable[[], None]) -> Ticket:
        """See `Beside`."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            work()
            event.record(self._stream)
        return _Event(event)


class Swapper:
    """Follows the routing of a stage; its state moves on by one step at each call of `between`."""

    def __init__(self, store: ExpertStore, heat: Heat, *, every: int, beside: Beside, device: torch.device) -> None:
        """Makes the spare places.

        Args:
            store: of the stage, loaded.
            heat: of its layers.
            every: windows between two looks at the counts.
            beside: how copies are made.
            device: of the stage.
        """
        cuda = device.type == "cuda"
        self.heat, self.swaps = heat, 0
        self._store, self._every, self._beside = store, every, beside
        words = [layer.experts.layout.host_kind.words for layer in store.layers]
        self._spare = torch.empty((SWAP_MOVES, max(words)), dtype=torch.int32, device=device)
        self._counts = torch.zeros(store.routing.counts.shape, dtype=torch.int32, pin_memory=cuda)
        self._pinned = [torch.zeros((2, SWAP_MOVES), dtype=torch.int64, pin_memory=cuda) for _ in range(3)]
        self._windows = 0
        self._ticket: Ticket = _Done()
        self._next: Callable[[], None] = self._look
        self._batch: list[_Exchange] = []

    @property
    def hit_share(self) -> float:
        """Share of the routed rows since start whose expert was on the card."""
        return self.heat.hits / self.heat.rows if self.heat.rows else self._store.hit_share

    def between(self) -> None:
        """To be called on the windows' stream after each window was sent, before its answer is waited for."""
        self._windows += 1
        if self._ticket.done:
            self._next()

    def _look(self) -> None:
        if self._windows < self._every:
            return
        self._windows = 0
        self._ticket, self._next = self._beside.run(self._read), self._choose

    def _read(self) -> None:
        self._counts.copy_(self._store.routing.counts, non_blocking=True)

    def _choose(self) -> None:
        counts: NDArray[np.int32] = self._counts.numpy()[:, : self._store.routing.experts]
        resident = np.stack([homes.resident for homes in self._store.homes])
        self.heat.add(np.ascontiguousarray(counts), resident)
        moves = self.heat.moves(resident, most=SWAP_MOVES)
        self._batch = [_Exchange(self._store, move, self._spare[at]) for at, move in enumerate(moves)]
        self._next = self._look
        if moves:
            self._run(lambda one: one.fetch(), then=self._to_spare)

    def _to_spare(self) -> None:
        self._change(0, lambda one: one.enter_spare())
        self._run(lambda one: one.evict(), then=self._to_ram)

    def _to_ram(self) -> None:
        self._change(1, lambda one: one.enter_ram())
        self._run(lambda one: one.settle(), then=self._to_slot)

    def _to_slot(self) -> None:
        self._change(2, lambda one: one.enter_slot())
        self.swaps += len(self._batch)
        self._batch, self._ticket, self._next = [], _Done(), self._look

    def _run(self, work: Callable[[_Exchange], None], *, then: Callable[[], None]) -> None:
        def all_of_them() -> None:
            for one in self._batch:
                work(one)

        self._ticket, self._next = self._beside.run(all_of_them), then

    def _change(self, step: int, enter: Callable[[_Exchange], tuple[int, int, int]]) -> None:
        self._store.routing.change([enter(one) for one in self._batch], pinned=self._pinned[step])


class _Exchange:
    """One move on its way; the `enter` methods give (layer, expert, entry) for the table and change the homes."""

    def __init__(self, store: ExpertStore, move: Move, spare: torch.Tensor) -> None:
        layer = store.layers[move.layer].experts
        self._move, self._homes, self._anchor = move, store.homes[move.layer], layer.anchor
        self._kind, self._host_kind = layer.layout.kind, layer.layout.host_kind
        self._slot = int(self._homes.slot[move.victim])
        self._place = int(self._homes.place[move.expert])
        self._on_card = store.slots(move.layer)[self._slot]
        self._in_ram = store.places(move.layer)[self._place]
        self._spare = spare[: self._host_kind.words]

    def fetch(self) -> None:
        self._spare.copy_(self._in_ram, non_blocking=True)

    def enter_spare(self) -> tuple[int, int, int]:
        entry = table_entry(self._spare, self._anchor, host=True)
        self._homes.place[self._move.expert] = -1
        self._homes.spare[self._move.expert] = entry
        return self._move.layer, self._move.expert, entry

    def evict(self) -> None:
        if self._kind == self._host_kind:
            self._in_ram.copy_(self._on_card, non_blocking=True)
        else:
            recode(self._on_card, self._kind, out=self._in_ram, to=self._host_kind)

    def enter_ram(self) -> tuple[int, int, int]:
        self._homes.slot[self._move.victim] = -1
        self._homes.place[self._move.victim] = self._place
        return self._move.layer, self._move.victim, table_entry(self._in_ram, self._anchor, host=True)

    def settle(self) -> None:
        recode(self._spare, self._host_kind, out=self._on_card, to=self._kind)

    def enter_slot(self) -> tuple[int, int, int]:
        del self._homes.spare[self._move.expert]
        self._homes.slot[self._move.expert] = self._slot
        return self._move.layer, self._move.expert, table_entry(self._on_card, self._anchor, host=False)
