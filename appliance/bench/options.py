"""The command line of `strata bench`, and what of it belongs together; torch-free."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, Final

from appliance.errors import UsageError

ROWS: Final = (1, 2, 4, 8, 16)
MOST_ROWS: Final = 40
MOST_DRAFTS: Final = 4

# What each way of measuring understands, with its default.
SYNTHETIC: Final[Mapping[str, Any]] = {
    "rows": list(ROWS),
    "context": 8192,
    "hits": 1.0,
    "kv": "bf16",
    "plain": False,
    "routing": None,
    "drafts": "off",
    "prompts": [],
}
RIG: Final[Mapping[str, Any]] = {
    "rig": None,
    "model": None,
    "set": [],
    "clients": None,
    "tokens": 128,
    "record": False,
    "record_routing": None,
    "drafts": "both",
    "prompts": None,
}


def add_options(command: argparse.ArgumentParser) -> None:
    """The command line of `strata bench`; what is not given stays None, so that nothing is ignored silently."""
    what = command.add_argument_group("what", "the rig's model by default, and the built-in one where there is no rig")
    what.add_argument("--rig", metavar="FILE", help="rig.toml; without it $STRATA_RIG, then the default place")
    what.add_argument("--model", metavar="PATH", help="another model file; short for --set model.path=PATH")
    what.add_argument("--set", metavar="TABLE.KEY=VALUE", action="append", help="overrides a key of the rig")
    what.add_argument(
        "--synthetic", metavar="SHAPE", help="random weights of a shape instead: real, or real:LAYERS; needs a card"
    )
    how = command.add_argument_group("how")
    how.add_argument("--drafts", choices=("on", "off", "both"), nargs="?", const="on", help="drafts; both for a rig")
    how.add_argument("--prompts", type=int, nargs="+", metavar="TOKENS", help="lengths of prompts to read")
    how.add_argument("--kernels", action="store_true", help="which kernels the time goes to, on a card")
    how.add_argument("--json", action="store_true", help="as JSON")
    rig = command.add_argument_group("a rig's model")
    rig.add_argument("--clients", type=int, nargs="+", help="numbers of clients; 1 2 4 8 as far as the rig goes")
    rig.add_argument("--tokens", type=int, help="of each answer, 128 by default")
    rig.add_argument("--record", action="store_true", default=None, help="keep the numbers in the rig, for the planner")
    rig.add_argument("--record-routing", metavar="FILE", help="write how often each expert was chosen, for --routing")
    synthetic = command.add_argument_group("a synthetic model")
    synthetic.add_argument("--rows", type=int, nargs="+", help=f"rows of the windows, up to {MOST_ROWS}")
    synthetic.add_argument("--context", type=int, help="tokens before the window, 8192 by default")
    synthetic.add_argument("--hits", type=float, help="share of the experts on the card, 0 to 1")
    synthetic.add_argument("--kv", choices=("bf16", "int8", "f32"), help="storage of keys and values, bf16 by default")
    synthetic.add_argument("--plain", action="store_true", default=None, help="every launch by itself, without graphs")
    synthetic.add_argument("--routing", metavar="FILE", help="a recorded histogram; without it every expert alike")


def settle(arguments: argparse.Namespace) -> None:
    """Fills in the defaults of the chosen way, and refuses what belongs to the other or cannot be.

    Raises:
        UsageError: which option, what was found and what is allowed.
    """
    own, other = (SYNTHETIC, RIG) if arguments.synthetic is not None else (RIG, SYNTHETIC)
    for name in other:
        if name not in own and getattr(arguments, name) is not None:
            option = f"--{name.replace('_', '-')}"
            way = "a synthetic model" if own is RIG else "a rig's model"
            raise UsageError(f"{option} is for {way}", hint="strata bench --help lists what belongs together")
    for name, default in own.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, default)
    _require(arguments, "rows", least=1, most=MOST_ROWS, words="windows have 1 to 40 rows")
    _require(arguments, "clients", least=1, most=64, words="clients are 1 to 64")
    _require(arguments, "prompts", least=2, most=1 << 20, words="prompts have 2 to 1,048,576 tokens")
    _require(arguments, "tokens", least=8, most=4096, words="answers have 8 to 4,096 tokens")
    _require(arguments, "context", least=64, most=1 << 20, words="contexts are 64 to 1,048,576 tokens")
    _require(arguments, "hits", least=0.0, most=1.0, words="a share is from 0 to 1")
    if arguments.record and (arguments.set or arguments.model is not None):
        raise UsageError(
            "--record keeps what the rig as it is written reaches; found --set or --model beside it",
            hint="write the change into the rig first",
        )


def _require(arguments: argparse.Namespace, name: str, *, least: float, most: float, words: str) -> None:
    found = getattr(arguments, name)
    values = found if isinstance(found, list) else [] if found is None else [found]
    if not all(least <= value <= most for value in values):
        raise UsageError(f"--{name} {' '.join(str(value) for value in values)}: {words}")
