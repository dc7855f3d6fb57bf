"""A model of a given shape without a file: random weights on the device, routed experts straight in their pools."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, cast

import torch

from appliance.bench.routing import Histogram, scales
from appliance.bench.shapes import SHAPES
from appliance.errors import UsageError
from appliance.gguf.part import GgufPart, TensorInfo
from appliance.gguf.types import BY_NAME
from appliance.model.qwen4exp.device.store import StoreLayer
from appliance.model.qwen4exp.footprint import NGRAM_TABLE
from appliance.model.qwen4exp.spec import ModelSpec, SamplingDefaults
from appliance.model.qwen4exp.spec_tensors import block_rules, draft_rules, global_rules, ngram_rules
from kernels.experts import ExpertKind, pack_expert
from kernels.planes import Planes, pack

# Rows that are packed once and then repeated: values do not matter to the time, places do.
_SAMPLE_ROWS = 1024
_SAMPLE_EXPERTS = 2

# Tokens enter the streams at unit size and blocks add little to them. Were it the other way round, the rows of a
# window could come to look alike, route alike, and touch fewer experts than rows of a text.
_ENTRY: Final = 50.0
_ADDED: Final = 0.005
_ADDING: Final = ("attn_output.", "ssm_out.", "ffn_down_")


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticShape:
    """What is made.

    Attributes:
        name: in SHAPES.
        layers: of the trunk; a quarter of them full attention.
        gate_up, down: ggml types of the routed experts.
    """

    name: str = "real"
    layers: int = 48
    gate_up: str = "IQ3_S"
    down: str = "IQ4_NL"


def parse_shape(text: str) -> SyntheticShape:
    """`real`, or `real:12` for twelve layers of it.

    Raises:
        UsageError: another word, or a number of layers that is no multiple of 4.
    """
    name, _, layers = text.partition(":")
    if name not in SHAPES or (layers and (not layers.isdigit() or int(layers) < 4 or int(layers) % 4)):
        raise UsageError(
            f"--synthetic {text}: allowed are {', '.join(SHAPES)}, each with :LAYERS, a multiple of 4 (real:12)"
        )
    return SyntheticShape(name=name, layers=int(layers) if layers else SHAPES[name].trunk_layers)


def synthetic_spec(shape: SyntheticShape, *, draft: bool) -> ModelSpec:
    """The spec of a model that no file holds."""
    h = replace(SHAPES[shape.name], trunk_layers=shape.layers)
    full = tuple((layer + 1) % 4 == 0 for layer in range(shape.layers))
    shapes = {name: rule.shape for name, rule in global_rules(h).items()}
    for layer in range(shape.layers):
        rules = block_rules(h, full=full[layer], fused=False)
        rules |= ngram_rules(h) if h.ngram is not None and h.ngram.layer == layer else {}
        shapes |= {f"blk.{layer}.{name}": rule.shape for name, rule in rules.items()}
    if draft:
        rules = draft_rules(h, fused=False, halves=False)
        shapes |= {f"blk.{shape.layers}.{name}": rule.shape for name, rule in rules.items()}
    if h.ngram is not None:
        shapes[NGRAM_TABLE] = (sum(h.ngram.head_rows), h.ngram.row_width)
    tensors = {name: _tensor(name, size, shape) for name, size in shapes.items()}
    return ModelSpec(
        **{name: getattr(h, name) for name in h.__dataclass_fields__},
        name="synthetic",
        size_label="",
        has_draft=draft,
        draft_note=None if draft else "left out",
        full_attention=full,
        block_tokens=4,
        stop_token_ids=frozenset(),
        sampling=SamplingDefaults(),
        tensors=tensors,
        warnings=(),
    )


def _tensor(name: str, size: tuple[int, ...], shape: SyntheticShape) -> TensorInfo:
    type_name = "Q8_0"
    if "_exps." in name:
        type_name = shape.down if "_down_" in name else shape.gate_up
    elif name == NGRAM_TABLE:
        type_name = "IQ4_NL"
    elif len(size) == 1 or any(
        part in name for part in ("norm", "inject", "conv1d", "gate_inp", "alpha", "beta", "ssm_a")
    ):
        type_name = "F32"
    elif "indexer." in name:
        type_name = "BF16"
    kind = BY_NAME[type_name]
    count = math.prod(size)
    return TensorInfo(
        name=name,
        shape=size,
        type=kind,
        byte_count=count // kind.block_weights * kind.block_bytes,
        part=cast(GgufPart, None),
        offset=0,
    )


_PLAIN: Final = ("norm", "inject", "conv1d", "gate_inp", "alpha", "beta", "ssm_a")


class SyntheticSource:
    """Implements `Source` with random weights."""

    def __init__(
        self, tensors: Mapping[str, TensorInfo], device: torch.device, routing: Histogram | None = None
    ) -> None:
        """Routers choose as `routing` says, the most used experts first; uniformly without it."""
        self.device = device
        self._routing = routing
        self._tensors = tensors
        self._samples: dict[tuple[str, int, int, float], torch.Tensor] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def info(self, name: str) -> TensorInfo:
        """See `Source`."""
        return self._tensors[name]

    def planes(self, name: str) -> Planes:
        """See `Source`: a sample of rows, repeated."""
        info = self._tensors[name]
        rows, columns = math.prod(info.shape[:-1]), info.shape[-1]
        raw = self._raw(info.type.name, min(rows, _SAMPLE_ROWS), columns, gain=_gain(name))
        sample = pack(info.type.name, raw, columns=columns)
        if rows <= _SAMPLE_ROWS:
            return sample
        strips = -(-rows // 32)
        words = sample.words.view(_SAMPLE_ROWS // 32, -1)
        repeated = words.repeat(-(-strips // words.shape[0]), 1)[:strips]
        return Planes(sample.format, rows, columns, repeated.reshape(-1).contiguous())

    def floats(self, name: str) -> torch.Tensor:
        """See `Source`."""
        info = self._tensors[name]
        if "norm" in name:
            return torch.ones(info.shape, device=self.device)
        if name.endswith("ssm_a"):
            return torch.full(info.shape, -0.5, device=self.device)
        values = torch.randn(info.shape, generator=_generator(name)).mul_(float(info.shape[-1]) ** -0.5)
        if self._routing is not None and name.endswith(".ffn_gate_inp.weight"):
            values *= scales(self._routing.shares(int(name.split(".")[1]))).unsqueeze(1)
        return values.to(self.device)

    def blocks(self, name: str, *, first_row: int = 0, rows: int | None = None) -> torch.Tensor:
        """See `Source`."""
        info = self._tensors[name]
        count = math.prod(info.shape[:-1]) if rows is None else rows
        sample = self._raw(info.type.name, min(count, _SAMPLE_ROWS), info.shape[-1], gain=_gain(name))
        return sample.repeat(-(-count // sample.shape[0]), 1)[:count].contiguous()

    def table(self, name: str, *, on_device: bool) -> torch.Tensor:
        """See `Source`; always on the device."""
        return self.blocks(name)

    def release(self) -> None:
        """See `Source`; all tables are on the device, and go with it."""

    def expert_words(self) -> Callable[[StoreLayer, bool, int], torch.Tensor]:
        """Makes routed experts: a few packed ones, repeated."""
        samples: dict[ExpertKind, torch.Tensor] = {}

        def words(layer: StoreLayer, host: bool, count: int) -> torch.Tensor:
            layout = layer.experts.layout
            kind = layout.host_kind if host else layout.kind
            if kind not in samples:
                samples[kind] = torch.stack([self._expert(layer.block, kind) for _ in range(_SAMPLE_EXPERTS)])
            return samples[kind].repeat(-(-count // _SAMPLE_EXPERTS), 1)[:count]

        return words

    def _expert(self, block: str, kind: ExpertKind) -> torch.Tensor:
        parts = []
        for name in ("gate", "up", "down"):
            info = self._tensors[f"{block}.ffn_{name}_exps.weight"]
            raw = self._raw(info.type.name, info.shape[1], info.shape[2], gain=_gain(info.name))
            parts.append((info.type.name, raw))
        return pack_expert(parts[0], parts[1], parts[2], kind=kind)

    def _raw(self, type_name: str, rows: int, columns: int, *, gain: float) -> torch.Tensor:
        """Random blocks, the same for equal shapes and gains."""
        key = (type_name, rows, columns, gain)
        if key not in self._samples:
            self._samples[key] = self._make(type_name, rows, columns, size=gain * float(columns) ** -0.5)
        return self._samples[key]

    def _make(self, type_name: str, rows: int, columns: int, *, size: float) -> torch.Tensor:
        """Random blocks of values of that size, root mean square; the same on every device and in every order."""
        generator = _generator(f"{type_name} {rows} {columns} {size}")
        if type_name in ("F32", "BF16"):
            dtype = torch.float32 if type_name == "F32" else torch.bfloat16
            values = torch.randn(rows, columns, generator=generator).mul_(size).to(dtype)
            return values.view(torch.uint8).reshape(rows, -1).to(self.device)
        kind = BY_NAME[type_name]
        count = rows * columns // kind.block_weights
        raw = torch.randint(0, 256, (count, kind.block_bytes), generator=generator, dtype=torch.uint8)
        scale = size / _CODES[type_name]
        raw[:, :2] = torch.full((count, 1), scale, dtype=torch.float16).view(torch.uint8)
        return raw.reshape(rows, -1).to(self.device)


def _generator(key: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(key.encode()))


def _gain(name: str) -> float:
    """How much larger a tensor's products are than their inputs."""
    if name == "token_embd.weight":
        return _ENTRY
    return _ADDED if any(part in name for part in _ADDING) else 1.0


# About the root mean square of a block's codes before the scale in its first two bytes.
_CODES: Final[dict[str, float]] = {"Q8_0": 73.0, "IQ4_NL": 60.0, "IQ3_S": 100.0, "Q4_0": 4.6, "IQ4_XS": 900.0}
