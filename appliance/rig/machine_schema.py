"""Owns the [machine] table of rig.toml: what was measured, written by the wizard and compared at boot."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from appliance.rig.fields import CardIndex, Table, Text, key
from appliance.rig.size import Size

Rate = Annotated[float, Field(ge=0)]


class CardTable(Table):
    """One card as it was when the rig was written; repeated as [[machine.card]]."""

    name: Text | None = key(None, "Product name.", allowed="text", example='"NVIDIA RTX PRO 4500"')
    uuid: Text | None = key(None, "UUID as the driver gives it.", allowed="text", example='"GPU-1b2c3d4e"')
    vram: Size | None = key(None, "All its memory.", allowed="a size", example='"32 GiB"')
    capability: Text | None = key(None, "CUDA compute capability.", allowed="text", example='"12.0"')
    link_gbps: tuple[Rate, ...] | None = key(
        None,
        "Measured GB/s to the card, from the card, and read in place.",
        allowed="three numbers",
        example="[25.1, 25.9, 22.0]",
    )
    vram_gbps: Rate | None = key(None, "Measured GB/s of its own memory.", allowed="a number", example="880.0")
    tflops: Rate | None = key(None, "Measured TFLOPS of dense FP16 products.", allowed="a number", example="120.0")
    peers: tuple[CardIndex, ...] = key(
        (), "Cards it reaches directly.", allowed="a list of card numbers", example="[1]"
    )


class BenchTable(Table):
    """What this machine reached, written by `strata bench --record`; no longer shown once what it is of has changed."""

    measured_on: Text | None = key(None, "Day of the measurement.", allowed="text", example='"2026-09-01"')
    model: Text | None = key(
        None, "The model that was measured.", allowed="text", example='"Qwen4, 58,123,456,789 bytes"'
    )
    machine: Text | None = key(
        None, "The cards, or the cores, that computed.", allowed="text", example='"GPU-1b2c3d4e, driver 580.65.06"'
    )
    settings: Text | None = key(
        None, "Mark of the rig's settings, server and sampling left out.", allowed="text", example='"9f86d081884c"'
    )
    users_1: Rate | None = key(None, "Tokens a second with one user.", allowed="a number", example="61.0")
    users_2: Rate | None = key(None, "Tokens a second in all with two users.", allowed="a number", example="98.0")
    users_4: Rate | None = key(None, "Tokens a second in all with four users.", allowed="a number", example="150.0")
    users_8: Rate | None = key(None, "Tokens a second in all with eight users.", allowed="a number", example="210.0")
    prompt: Rate | None = key(None, "Prompt tokens a second.", allowed="a number", example="1800.0")
    hit_share: Annotated[float, Field(ge=0, le=1)] | None = key(
        None, "Share of routed experts found in VRAM.", allowed="0.0 to 1.0", example="0.81"
    )
    acceptance: Annotated[float, Field(ge=0, le=1)] | None = key(
        None, "Share of first drafts accepted.", allowed="0.0 to 1.0", example="0.72"
    )


class MachineTable(Table):
    """What was measured when the rig was written; a difference that matters is one line at start."""

    measured_on: Text | None = key(None, "Day of the measurement.", allowed="text", example='"2026-09-01"')
    driver: Text | None = key(None, "Driver of the cards.", allowed="text", example='"580.65.06"')
    ram_limit: Size | None = key(
        None, "RAM this process may use: the machine's, or the container's limit.", allowed="a size", example='"64 GiB"'
    )
    ram_gbps: Rate | None = key(None, "Measured RAM bandwidth in GB/s.", allowed="a number", example="48.0")
    storage_gbps: Rate | None = key(
        None, "Measured sequential reads of the model's disk in GB/s.", allowed="a number", example="6.1"
    )
    storage_rows_per_s: Rate | None = key(
        None, "Measured random 4 KiB reads a second of the model's disk.", allowed="a number", example="310000.0"
    )
    card: tuple[CardTable, ...] = key((), "One table for each card.", allowed="[[machine.card]] tables", example="[]")
    bench: BenchTable = key(BenchTable(), "Recorded speeds.", allowed="a [machine.bench] table", example="{}")
