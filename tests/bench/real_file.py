"""Writes a GGUF of the real model's shape with random blocks, for timing what a file of that size costs.

    python -m tests.bench.real_file OUT.gguf --layers 12

Every tensor is filled from a pool of blocks of its type, begun at another place, so that no two pages of the file are
equal. The numbers are of a sensible size and mean nothing.
"""

from __future__ import annotations

import argparse
import math
import os
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.bench.synthetic import SyntheticShape, synthetic_spec
from appliance.gguf.metadata import ValueType
from appliance.gguf.reader import TensorInfo
from appliance.gguf.types import BY_NAME
from appliance.model.qwen4exp.spec import ModelSpec
from tests.builders.gguf import CHAT_TEMPLATE, SPECIAL, Key, Typed, byte_tokens, text, value_bytes

_ALIGN = 4096
_POOL_BYTES = 24 << 20
_THREADS = 8
# Root mean square of a block's integers before the scale in its first two bytes.
_INTEGERS = {"Q8_0": 73.9, "IQ4_NL": 69.3, "IQ3_S": 150.0}


def write_real_file(path: Path, shape: SyntheticShape, *, draft: bool, flushed: bool = True) -> ModelSpec:
    """Writes the file; its size is 1.2 GB a layer and 1.5 GB besides.

    Args:
        path: of the file.
        shape: of the model.
        draft: whether it has a draft layer.
        flushed: whether to wait until it is on the disk; a warm load finds it in the page cache all the same.

    Returns:
        The spec it was written from.
    """
    spec = synthetic_spec(shape, draft=draft)
    head, places = _head(spec)
    pools = {info.type.name: _pool(info.type.name, spec.hidden) for info in spec.tensors.values()}
    with path.open("wb") as file:
        file.truncate(len(head) + sum(-(-info.byte_count // _ALIGN) * _ALIGN for info in spec.tensors.values()))
        os.pwrite(file.fileno(), head, 0)
        with ThreadPoolExecutor(_THREADS) as threads:
            jobs = [
                threads.submit(os.pwrite, file.fileno(), data, at)
                for info in spec.tensors.values()
                for at, data in _pieces(info, len(head) + places[info.name], pools[info.type.name])
            ]
            for job in jobs:
                job.result()
        if flushed:
            os.fsync(file.fileno())
    return spec


def _head(spec: ModelSpec) -> tuple[bytes, Mapping[str, int]]:
    keys = _keys(spec)
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(spec.tensors), len(keys)))
    for key, value in keys.items():
        out += text(key) + value_bytes(value)
    at, places = 0, {}
    for info in spec.tensors.values():
        places[info.name] = at
        dims = info.shape[::-1]
        out += text(info.name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        out += struct.pack("<IQ", info.type.number, at)
        at += -(-info.byte_count // _ALIGN) * _ALIGN
    return bytes(out + bytes(-len(out) % _ALIGN)), places


def _keys(spec: ModelSpec) -> dict[str, Key]:
    blocks = spec.trunk_layers + int(spec.has_draft)
    ratios = [spec.block_tokens if full else 0 for full in spec.full_attention] + [0] * int(spec.has_draft)
    plain = byte_tokens()
    filler = tuple(f"w{number}" for number in range(spec.vocabulary - len(plain) - len(SPECIAL)))
    own: dict[str, Key] = {
        "block_count": blocks,
        "nextn_predict_layers": int(spec.has_draft),
        "context_length": spec.context_tokens,
        "embedding_length": spec.hidden,
        "attention.head_count": spec.query_heads,
        "attention.head_count_kv": spec.kv_heads,
        "attention.key_length": spec.head_dim,
        "attention.value_length": spec.head_dim,
        "attention.layer_norm_rms_epsilon": spec.rms_eps,
        "rope.freq_base": spec.rope_theta,
        "rope.dimension_count": spec.rope_dims,
        "rope.dimension_sections": (*spec.rope_sections, 0),
        "expert_count": spec.experts,
        "expert_used_count": spec.experts_used,
        "expert_feed_forward_length": spec.expert_ff,
        "expert_shared_feed_forward_length": spec.shared_ff,
        "ssm.conv_kernel": spec.conv_kernel,
        "ssm.state_size": spec.gdn_head_dim,
        "ssm.group_count": spec.gdn_key_heads,
        "ssm.time_step_rank": spec.gdn_value_heads,
        "ssm.inner_size": spec.gdn_value_width,
        "full_attention_interval": 4,
        "hyper_connection.count": spec.streams,
        "hyper_connection.low_rank": spec.low_rank,
        "attention.indexer.head_count": spec.indexer_heads,
        "attention.indexer.key_length": spec.indexer_dim,
        "attention.indexer.top_k": spec.indexer_budget,
        "attention.compress_ratios": tuple(ratios),
        **_ngram_keys(spec),
    }
    return {
        "general.architecture": "qwen4exp",
        "general.name": "real shape, random blocks",
        "general.alignment": _ALIGN,
        **{f"qwen4exp.{name}": value for name, value in own.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.tokens": (*plain, *filler, *SPECIAL),
        "tokenizer.ggml.token_type": (*([1] * (len(plain) + len(filler))), *([3] * len(SPECIAL))),
        "tokenizer.ggml.merges": Typed(ValueType.STRING, ()),
        "tokenizer.chat_template": CHAT_TEMPLATE,
        "tokenizer.ggml.eos_token_id": spec.vocabulary - len(SPECIAL) + SPECIAL.index("<|im_end|>"),
    }


def _ngram_keys(spec: ModelSpec) -> dict[str, Key]:
    assert spec.ngram is not None
    ngram = spec.ngram
    return {
        "ple.layers": (ngram.layer,),
        "ple.ngram_size": ngram.order,
        "ple.heads_per_ngram": ngram.heads_per_order,
        "ple.conv_kernel": ngram.conv_kernel,
        "ple.eos_token_id": ngram.reset_token_id,
        "ple.image_token_id": ngram.image_token_id,
        "embedding_length_per_layer_input": ngram.row_width,
        "ple.layer_multipliers": Typed(ValueType.UINT64, ngram.multipliers),
        "ple.head_vocab_sizes": Typed(ValueType.UINT64, ngram.head_rows),
        "ple.head_offsets": Typed(ValueType.UINT64, ngram.head_offsets),
    }


def _pool(type_name: str, hidden: int) -> NDArray[np.uint8]:
    """uint8 [_POOL_BYTES or a block less]: blocks whose scales make a row of `hidden` weights a unit projection."""
    random = np.random.default_rng(zlib.crc32(type_name.encode()))
    kind, size = BY_NAME[type_name], hidden**-0.5
    count = _POOL_BYTES // kind.block_bytes
    if type_name in ("F32", "BF16"):
        values = (random.standard_normal(count, dtype=np.float32) * np.float32(size)).view(np.uint32)
        return (values if type_name == "F32" else (values >> 16).astype(np.uint16)).view(np.uint8)
    blocks = random.integers(0, 256, (count, kind.block_bytes), dtype=np.uint8)
    scale = np.full(1, size / _INTEGERS[type_name], np.float16)
    blocks[:, :2] = scale.view(np.uint8)
    return blocks.reshape(-1)


def _pieces(info: TensorInfo, at: int, pool: NDArray[np.uint8]) -> Iterator[tuple[int, memoryview]]:
    """(place in the file, bytes) of a tensor: the pool over and over, from a block that the name chooses."""
    if "norm" in info.name or info.name.endswith("ssm_a"):
        value = 1.0 if "norm" in info.name else -0.5
        yield at, memoryview(np.full(math.prod(info.shape), value, np.float32).view(np.uint8))
        return
    block, left = info.type.block_bytes, info.byte_count
    start = zlib.crc32(info.name.encode()) % (pool.size // block // 2) * block
    while left:
        size = min(left, pool.size - start)
        yield at, memoryview(pool[start : start + size])
        at, left, start = at + size, left - size, 0


def drop_cached(path: Path) -> None:
    """Asks the kernel to forget the file's clean pages."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    """Writes the file that the command line names."""
    command = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    command.add_argument("path", type=Path)
    command.add_argument("--layers", type=int, default=12, help="of the trunk, a multiple of 4")
    command.add_argument("--cached", action="store_true", help="do not wait until it is on the disk")
    arguments = command.parse_args()
    began = time.monotonic()
    write_real_file(arguments.path, SyntheticShape(layers=arguments.layers), draft=True, flushed=not arguments.cached)
    print(f"{arguments.path.stat().st_size / 1e9:.1f} GB in {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()
