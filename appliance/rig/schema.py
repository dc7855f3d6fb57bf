"""Owns rig.toml: every table and key with its type, bounds, one sentence and an example."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from appliance.rig.card_schema import CardsTable, ExpertsTable
from appliance.rig.fields import Auto, Host, Origin, Table, Text, key
from appliance.rig.machine_schema import MachineTable
from appliance.rig.size import Size

SCHEMA = 1
BUILTIN = "builtin"


class ModelTable(Table):
    """Which model is served, and under which names."""

    path: Text = key(
        BUILTIN,
        "First GGUF part, or a folder holding one model; a relative path starts at the rig's folder.",
        allowed='"builtin" or a path',
        example='"/models/Qwen3.8-Flash-Next-00001-of-00004.gguf"',
    )
    draft_path: Text | None = key(
        None,
        "Separate GGUF with the MTP layer, when it is not in the model.",
        allowed="a path",
        example='"/models/mtp-Q8_0.gguf"',
    )
    vision_path: Text | None = key(
        None, "GGUF of the vision tower (mmproj).", allowed="a path", example='"/models/mmproj.gguf"', only=(None,)
    )
    name: Text | None = key(
        None, "Id in /v1/models; without it, the name in the GGUF.", allowed="text", example='"office"'
    )
    aliases: tuple[Text, ...] = key(
        (), "Further ids that mean this model.", allowed="a list of texts", example='["gpt-4o", "default"]'
    )


class ContextTable(Table):
    """How long a conversation may be, and how it is kept."""

    max_tokens: Auto | Annotated[int, Field(ge=64, le=4_194_304)] = key(
        "auto",
        "Tokens per conversation, prompt and answer together.",
        allowed='"auto", or 64 to the trained length of the model',
        example="4096",
    )
    kv: Auto | Literal["f32", "bf16", "int8"] = key(
        "auto",
        "Number format of keys and values; on the CPU it is f32.",
        allowed='"auto", "f32", "bf16" or "int8"',
        example='"f32"',
        only=("auto", "f32"),
        on_card=(),
    )
    kv_home: Auto | Literal["vram", "ram"] = key(
        "auto",
        "Where keys and values are; from RAM, attention reads what it selected over PCIe.",
        allowed='"auto", "vram" or "ram"',
        example='"ram"',
        only=("auto",),
    )
    rope_scaling: Literal["none", "linear", "yarn"] = key(
        "none",
        "How positions are stretched beyond the trained length.",
        allowed='"none", "linear" or "yarn"',
        example='"yarn"',
        only=("none",),
    )
    rope_factor: Annotated[float, Field(ge=1, le=64)] | None = key(
        None, "By how much positions are stretched.", allowed="1 to 64", example="4.0", only=(None,)
    )


class NgramTable(Table):
    """The n-gram (PLE) table."""

    home: Auto | Literal["vram", "ram", "direct", "mmap"] = key(
        "auto",
        'Where the n-gram table is: "ram" (read at load), "mmap" (the page cache decides), "direct" (read past it).',
        allowed='"auto", "vram", "ram", "direct" or "mmap"',
        example='"mmap"',
        only=("auto", "ram", "direct", "mmap"),
        on_card=(),
    )


class ServingTable(Table):
    """How many are served together, and how."""

    parallel: Auto | Annotated[int, Field(ge=1, le=64)] = key(
        "auto", "Conversations decoded together.", allowed='"auto", or 1 to 64', example="8"
    )
    batch_mtp: bool = key(
        True,
        "Drafts in every window; false: only while one conversation decodes.",
        allowed="true or false",
        example="false",
    )
    batch_groups: Auto | Annotated[int, Field(ge=1, le=8)] = key(
        "auto",
        "Most groups of conversations that follow each other through several cards.",
        allowed='"auto": as many as keep the cards busy, or 1 to 8; above 1 it needs several cards',
        example="2",
        only=("auto",),
        on_card=(),
    )
    draft_max: Annotated[int, Field(ge=0, le=4)] = key(
        4, "Longest draft; 0 for no drafts.", allowed="0 to 4", example="2"
    )
    draft_min_p: Auto | Annotated[float, Field(ge=0, le=1)] = key(
        "auto",
        "The drafter's confidence below which a draft ends.",
        allowed='"auto", or 0.0 to 1.0',
        example="0.4",
    )
    prompt_chunk: Auto | Annotated[int, Field(ge=16, le=8192)] = key(
        "auto", "Tokens per prompt window.", allowed='"auto", or 16 to 8192', example="256"
    )
    queue: Annotated[int, Field(ge=0, le=100_000)] = key(
        32, "Waiting requests before one more is answered 429.", allowed="0 to 100000", example="64"
    )
    conversation_cache_ram: Auto | Size = key(
        "auto",
        "RAM for parked conversations and checkpoints.",
        allowed='"auto" or a size',
        example='"8 GiB"',
        only=("auto",),
    )
    conversation_cache_disk: Auto | Size = key(
        "auto",
        "Disk for parked conversations and checkpoints.",
        allowed='"auto" or a size',
        example='"40 GiB"',
        only=("auto",),
    )


class ServerTable(Table):
    """Where the server listens, and who may ask."""

    host: Host = key(
        "127.0.0.1",
        'Address to listen on; beyond loopback it needs keys_file, or open = true. "0.0.0.0" is every address.',
        allowed="an IP address or a host name of this machine",
        example='"0.0.0.0"',
    )
    port: Annotated[int, Field(ge=1, le=65535)] = key(8080, "TCP port.", allowed="1 to 65535", example="8080")
    keys_file: Text | None = key(
        None,
        "File with named, hashed API keys, written by `strata keys add NAME`.",
        allowed="a path",
        example='"/config/keys.json"',
    )
    open: bool = key(False, "Listen beyond loopback without keys.", allowed="true or false", example="true")
    cors_origins: tuple[Origin, ...] = key(
        (),
        "Web origins whose pages may call the API.",
        allowed="a list of origins such as https://chat.example",
        example='["https://chat.example"]',
    )
    allowed_hosts: tuple[Text, ...] = key(
        (),
        "Names, beside IP addresses and localhost, under which clients may call the server.",
        allowed="a list of host names",
        example='["strata.office.lan"]',
    )


class SamplingTable(Table):
    """What a request gets that does not say; without a key, the model's own default."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = key(
        None, "0 is greedy.", allowed="0.0 to 2.0", example="0.6"
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = key(
        None, "Share of probability kept; 1.0 is off.", allowed="above 0.0, to 1.0", example="0.9"
    )
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] | None = key(
        None, "Likeliest tokens kept; 0 is off.", allowed="0 to 1000000", example="20"
    )
    min_p: Annotated[float, Field(ge=0, le=1)] | None = key(
        None, "Least probability relative to the likeliest token; 0.0 is off.", allowed="0.0 to 1.0", example="0.05"
    )


class EngineTable(Table):
    """For comparison and search of faults."""

    plain: bool = key(
        False,
        "The loop without graphs, for comparison. On the CPU there are no graphs, so both values run the same loop.",
        allowed="true or false",
        example="true",
    )
    nvtx: bool = key(
        False,
        "Names windows, waits and stages on the timeline of Nsight Systems; costs microseconds of every window.",
        allowed="true or false",
        example="true",
        only=(False,),
        on_card=(),
    )


class Rig(Table):
    """The validated contents of rig.toml."""

    schema_: Annotated[int, Field(ge=1, le=SCHEMA)] = Field(
        default=SCHEMA,
        alias="schema",
        description="Version of this file; an older one is migrated in memory.",
        json_schema_extra={"allowed": str(SCHEMA), "example": str(SCHEMA)},
    )
    model: ModelTable = ModelTable()
    cards: CardsTable = CardsTable()
    experts: ExpertsTable = ExpertsTable()
    context: ContextTable = ContextTable()
    ngram: NgramTable = NgramTable()
    serving: ServingTable = ServingTable()
    server: ServerTable = ServerTable()
    sampling: SamplingTable = SamplingTable()
    engine: EngineTable = EngineTable()
    machine: MachineTable = MachineTable()


TABLES: dict[str, type[Table]] = {
    "model": ModelTable,
    "cards": CardsTable,
    "experts": ExpertsTable,
    "context": ContextTable,
    "ngram": NgramTable,
    "serving": ServingTable,
    "server": ServerTable,
    "sampling": SamplingTable,
    "engine": EngineTable,
    "machine": MachineTable,
}
