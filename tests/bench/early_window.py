"""What a lone user on several cards could gain if the first card began the next window before the last one is verified.

    python -m tests.bench.early_window [--measure]

The next window would be guessed: that every draft of the window on its way stands, and that the draft after them is
the token drawn then. Where the guess is right, the window is ahead by what the first cards did meanwhile; where it is
wrong, it is thrown away. Times are of a window's stages; with `--measure` acceptance by depth is taken from the
built-in model on the CPU at ten drafts, besides the shares that are usual of a large model.

For every number of drafts the simulation plays windows by chance, with the guess and without, and each way keeps its
best number. It is generous to the guess: drafts that only a guess needs are grown while the last card waits, and
nothing that a wrong guess still computes is in anybody's way.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from appliance.gguf.reader import open_set
from appliance.model.plan import LoadPlan
from appliance.model.qwen4exp.load import load_model
from appliance.model.qwen4exp.spec import read_spec
from tests.engine.harness import collect, running
from tests.engine.real import BUILTIN, CONFIG, chats

BIG = (0.8, 0.65, 0.5, 0.4)
DEEP = 10
WINDOWS = 20_000


@dataclass(frozen=True, kw_only=True)
class Cards:
    """Cards that share the layers evenly, and a lone user's window on them, in milliseconds.

    Attributes:
        count: of cards.
        window: of one row through all layers and the head.
        row: more for each further row.
        step: of the chain of drafts, on the last card.
        handoff: from a card to the next.
        undo: of each card and window, to keep states from which two windows can be taken back.
        host: from an answer to the next window's start.
    """

    count: int
    window: float
    row: float
    step: float
    handoff: float
    undo: float
    host: float

    def stage(self, drafts: int) -> float:
        """One card's share of a window."""
        return (self.window + drafts * self.row) / self.count


@dataclass(frozen=True, kw_only=True)
class Played:
    """Tokens a second with a number of drafts; how many guesses of all windows were right."""

    drafts: int
    rate: float
    right: float


def deepened(accepted: Sequence[float], *, fall: float = 1.0) -> list[float]:
    """Shares by depth, to any depth.

    Args:
        accepted: the first ones.
        fall: how much less often each further draft stands after the one before than that one did; 1: as often.
    """
    found = list(accepted)
    after = found[-1] / found[-2] if found[-2] else 0.0
    while len(found) < 2 * DEEP + 2:
        after *= fall
        found.append(found[-1] * after)
    return found


def luck(random: Random, shares: Sequence[float], most: int) -> int:
    """How many drafts in a row would stand."""
    one, right = random.random(), 0
    while right < most and one < shares[right]:
        right += 1
    return right


def plain(cards: Cards, shares: Sequence[float], drafts: int) -> Played:
    """One window after the other: every card, then the chain, then the host."""
    seconds = cards.count * cards.stage(drafts) + (cards.count - 1) * cards.handoff + drafts * cards.step + cards.host
    return Played(drafts=drafts, rate=1e3 * (1 + sum(shares[:drafts])) / seconds, right=0.0)


def early(cards: Cards, shares: Sequence[float], drafts: int, *, windows: int = WINDOWS) -> Played:
    """The next window begins on the first card as soon as that is free, and waits before the last card for the verdict.

    A guess needs the draft after the window's own for its first row, and `drafts` more for the others: the deeper end
    of a chain, which the last card grows while the first one computes the window. Where a guess was right, the chain
    has to begin at a verified window again, beyond the rows of the guessed one, and holds up the last card.
    """
    random, stage, deep = Random(3), cards.stage(drafts) + cards.undo, 2 * drafts + 1
    begin = done = 0.0  # of the window on its way
    tokens = right = 0
    ahead = False  # whether it was a guess that was right; then its drafts are from the deep end of a chain
    for _ in range(windows):
        reached = begin + (cards.count - 1) * (stage + cards.handoff)
        own = max(reached, done + (deep * cards.step if ahead else 0.0)) + stage
        passed = drafts + 1 if ahead else 0
        before = shares[passed - 1] if passed else 1.0
        stands = luck(random, [share / before for share in shares[passed:]], drafts + 1)
        tokens += 1 + min(stands, drafts)
        grown = done + deep * cards.step if ahead else begin + (drafts + 1) * cards.step
        done = own
        ahead = stands > drafts
        right += ahead
        begin = max(begin + stage, grown) if ahead else done + drafts * cards.step + cards.host
    return Played(drafts=drafts, rate=1e3 * tokens / done, right=right / windows)


def best(played: Sequence[Played]) -> Played:
    """The quickest."""
    return max(played, key=lambda one: one.rate)


def measure() -> list[float]:
    """Share of the drafts that stood, by depth, of the built-in model's chats on the CPU."""
    config = replace(CONFIG, draft_max=DEEP)
    plan = LoadPlan(
        device="cpu", slots=config.slots, pages=config.pages, page_tokens=config.page_tokens,
        max_tokens=config.max_tokens, max_window_rows=config.window_rows, draft_max=DEEP,
    )  # fmt: skip
    model = load_model(read_spec(open_set(BUILTIN)), plan=plan, progress=lambda stage, percent: None)

    async def ask() -> list[float]:
        async with running(model, config) as run:
            # Ends of turns end the answers, as a user's would; what comes after them repeats itself.
            await asyncio.gather(*(collect(run.ask(prompt, 200)) for prompt in chats()))
            counts = run.status().drafts
            return [hit / max(1, tried) for hit, tried in zip(counts.accepted, counts.offered, strict=True)]

    return asyncio.run(ask())


def main() -> None:
    """A line for each number of cards and each acceptance."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--measure", action="store_true")
    options.add_argument("--window", type=float, default=4.36, help="ms, of one row and no further one")
    options.add_argument("--row", type=float, default=0.27)
    options.add_argument("--step", type=float, default=0.26)
    options.add_argument("--handoff", type=float, default=0.05)
    options.add_argument("--undo", type=float, default=0.04, help="of a card and window")
    options.add_argument("--host", type=float, default=0.15)
    options.add_argument("--most", type=int, default=4, help="drafts of a window")
    asked = options.parse_args()
    texts = {
        "large model, deep drafts as good": deepened(BIG),
        "large model, each a tenth worse": deepened(BIG, fall=0.9),
    }
    if asked.measure:
        found = measure()
        print("built-in model, accepted by depth: " + " ".join(f"{share:.2f}" for share in found))
        texts["built-in model"] = deepened(found)
    print("cards  drafts  tok/s   early: drafts  right  tok/s  gain   text")
    for (name, shares), count in itertools.product(texts.items(), (2, 3, 4)):
        times = {key: getattr(asked, key) for key in ("window", "row", "step", "handoff", "undo", "host")}
        cards = Cards(count=count, **times)
        lengths = range(asked.most + 1)
        now = best([plain(cards, shares, drafts) for drafts in lengths])
        then = best([early(cards, shares, drafts) for drafts in lengths])
        print(
            f"{count:5}  {now.drafts:6}  {now.rate:5.0f}  {then.drafts:13}  {then.right:5.0%}  {then.rate:5.0f}  "
            f"{then.rate / now.rate - 1:4.0%}   {name}"
        )


if __name__ == "__main__":
    main()
