"""Owns the tables [cards] and [experts] of rig.toml: what the cards compute and hold."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from appliance.rig.fields import Auto, CardList, Table, Text, key
from appliance.rig.size import MIB, Size

SizePerCard = Annotated[tuple[Size, ...], Field(min_length=1)]


class CardsTable(Table):
    """Which cards compute, and which layers are where."""

    devices: Auto | Literal["cpu"] | CardList = key(
        "auto",
        'Cards in stage order, as nvidia-smi numbers them, or their UUIDs; "auto": those that are quickest together; '
        "without any, the CPU for the built-in model only.",
        allowed='"auto", "cpu", or a list of card numbers or UUIDs, each once',
        example='"cpu"',
    )
    layer_split: Auto | Annotated[tuple[int, ...], Field(min_length=1)] = key(
        "auto",
        "First layer of each later card, not a count per card.",
        allowed='"auto", or whole numbers: the first layer of each later card, from 1 to the last layer (47 of a '
        "48-layer model), strictly rising, one fewer than the cards",
        example="[24]",
        only=("auto",),
        on_card=(),
    )
    vram_reserve: Size | SizePerCard = key(
        700 * MIB,
        "VRAM left free per card: one size, or one per card.",
        allowed='a size such as "700 MiB", or a list with one per card',
        example='"1 GiB"',
        only=(700 * MIB,),
        on_card=(),
    )


class ExpertsTable(Table):
    """Where experts are that do not fit on the cards."""

    cache: Auto | Size | SizePerCard = key(
        "auto",
        "VRAM for the expert cache: one size, or one per card.",
        allowed='"auto", a size, or a list with one per card',
        example='"14.5 GiB"',
        only=("auto",),
        on_card=(),
    )
    ram: Auto | Literal["pinned", "file"] | Size = key(
        "auto",
        'Experts that no card holds: "pinned" (all in pinned RAM), a size (hottest that fit), or "file".',
        allowed='"auto", "pinned", "file", or a size',
        example='"48 GiB"',
        only=("auto",),
        on_card=("auto", "pinned"),
    )
    misses: Auto | Literal["pcie", "cpu", "split"] = key(
        "auto",
        "Who computes an expert that is not in VRAM.",
        allowed='"auto", "pcie", "cpu" or "split"',
        example='"pcie"',
        only=("auto",),
        on_card=("auto", "pcie"),
    )
    profile: Text = key(
        "auto",
        'File with a learned routing profile, saved on clean exit; "auto": beside the compiled kernels.',
        allowed='"auto" or a path',
        example='"/config/routing.profile"',
        only=("auto",),
        on_card=(),
    )
    adapt_every: Annotated[int, Field(ge=0, le=1_000_000)] = key(
        4,
        "Windows between cache swaps; 0 fixes the cache, for reproducible output.",
        allowed="0 to 1000000",
        example="0",
        only=(4,),
        on_card=(),
    )
