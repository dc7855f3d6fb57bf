"""Writes small GGUF files, right or deliberately wrong, and a miniature qwen4exp model that can be changed anywhere.

Example::

    model = tiny_model()
    data = model.key("qwen4exp.expert_used_count", 9).to_bytes()      # one file, in memory
    path = model.write(tmp_path / "model.gguf")
    paths = model.write_split(tmp_path, parts=3)
    draft = model.draft_only().write(tmp_path / "draft.gguf")
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from appliance.gguf.metadata import ValueType
from appliance.gguf.types import BY_NAME

Plain = int | float | bool | str
_FORMATS = "BbHhIif?__QqdB"


@dataclass(frozen=True)
class Typed:
    """A metadata value with its stored type spelt out; a tuple is an array."""

    type: ValueType
    value: Plain | tuple[Plain, ...]


Key = Plain | tuple[Plain, ...] | Typed | bytes


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to write. Shape outermost first; `data` None means zeros of the type's size.

    `number`, `dims` (innermost first) and `offset` override what would be written, to write what is wrong.
    """

    name: str
    shape: tuple[int, ...]
    type: str = "F32"
    data: bytes | None = None
    number: int | None = None
    dims: tuple[int, ...] | None = None
    offset: int | None = None

    def stored(self) -> bytes:
        """The bytes of the data section."""
        if self.data is not None:
            return self.data
        kind = BY_NAME[self.type]
        return bytes(math.prod(self.shape) * kind.block_bytes // kind.block_weights)


def text(value: str | bytes) -> bytes:
    """A GGUF string: length and bytes."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value_bytes(key: Key) -> bytes:
    """Type and value of a key; bytes stay as they are, plain integers take the first type of ours that holds them."""
    if isinstance(key, bytes):
        return key
    typed = key if isinstance(key, Typed) else Typed(_guess(key), key)
    if isinstance(typed.value, tuple):
        head = struct.pack("<IIQ", ValueType.ARRAY, typed.type, len(typed.value))
        return head + b"".join(_item(typed.type, v) for v in typed.value)
    return struct.pack("<I", typed.type) + _item(typed.type, typed.value)


def _guess(value: Plain | tuple[Plain, ...]) -> ValueType:
    items = value if isinstance(value, tuple) else (value,)
    if all(isinstance(v, bool) for v in items):
        return ValueType.BOOL if items else ValueType.INT32
    if all(isinstance(v, str) for v in items):
        return ValueType.STRING
    if any(isinstance(v, float) for v in items):
        return ValueType.FLOAT32
    small = all(isinstance(v, int) and v < 1 << 31 for v in items)
    if isinstance(value, tuple):
        return ValueType.INT32 if small else ValueType.UINT64
    return ValueType.UINT32 if isinstance(value, int) and 0 <= value < 1 << 32 else ValueType.INT64


def _item(kind: ValueType, value: Plain) -> bytes:
    return text(str(value)) if kind is ValueType.STRING else struct.pack("<" + _FORMATS[kind], value)


def gguf_bytes(
    keys: Mapping[str, Key],
    tensors: Sequence[TensorSpec] = (),
    *,
    version: int = 3,
    alignment: int = 32,
    tensor_count: int | None = None,
    key_count: int | None = None,
) -> bytes:
    """One whole file. Counts can be overridden to lie; `general.alignment` is written when it is not 32."""
    keys = dict(keys) | ({"general.alignment": alignment} if alignment != 32 else {})
    counts = (len(tensors) if tensor_count is None else tensor_count, len(keys) if key_count is None else key_count)
    out = bytearray(b"GGUF" + struct.pack("<IQQ", version, *counts))
    for key, value in keys.items():
        out += text(key) + value_bytes(value)
    place, data = 0, bytearray()
    for tensor in tensors:
        dims = tensor.dims if tensor.dims is not None else tensor.shape[::-1]
        number = tensor.number if tensor.number is not None else BY_NAME[tensor.type].number
        out += text(tensor.name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        out += struct.pack("<IQ", number, place if tensor.offset is None else tensor.offset)
        data += tensor.stored()
        data += bytes(-len(data) % alignment)
        place = len(data)
    return bytes(out + bytes(-len(out) % alignment) + data)


def split_bytes(
    keys: Mapping[str, Key], tensors: Sequence[TensorSpec], *, parts: int, first_empty: bool = False
) -> tuple[bytes, ...]:
    """The files of a split set, tensors in order and in even shares."""
    holders = parts - first_empty
    share = -(-len(tensors) // holders)
    shares = [tensors[n * share : (n + 1) * share] for n in range(holders)]
    if first_empty:
        shares.insert(0, ())
    files = []
    for number, own in enumerate(shares):
        marks: dict[str, Key] = {
            "split.no": Typed(ValueType.UINT16, number),
            "split.count": Typed(ValueType.UINT16, parts),
            "split.tensors.count": Typed(ValueType.INT32, len(tensors)),
        }
        files.append(gguf_bytes((dict(keys) if number == 0 else {}) | marks, own))
    return tuple(files)


def split_names(stem: str, parts: int) -> tuple[str, ...]:
    """The file names of a split set."""
    return tuple(f"{stem}-{n:05d}-of-{parts:05d}.gguf" for n in range(1, parts + 1))


@dataclass(frozen=True)
class TinyModel:
    """A miniature model that is being put together; every change gives a new one."""

    keys: Mapping[str, Key]
    tensors: Mapping[str, TensorSpec]

    def key(self, name: str, value: Key | None) -> TinyModel:
        """With a metadata key set; None removes it."""
        kept = {k: v for k, v in self.keys.items() if k != name or value is not None}
        return replace(self, keys=kept if value is None else {**kept, name: value})

    def tensor(self, name: str, changed: TensorSpec | None) -> TinyModel:
        """With a tensor set; None removes it."""
        kept = {k: v for k, v in self.tensors.items() if k != name or changed is not None}
        return replace(self, tensors=kept if changed is None else {**kept, name: changed})

    def shape(self, name: str, *shape: int, kind: str = "F32") -> TinyModel:
        """With a tensor of this shape (outermost first) and type, zeros inside."""
        return self.tensor(name, TensorSpec(name, shape, kind))

    def rename(self, old: str, new: str) -> TinyModel:
        """With a tensor under another name, in the same place."""
        renamed = {(new if k == old else k): (replace(t, name=new) if k == old else t) for k, t in self.tensors.items()}
        return replace(self, tensors=renamed)

    def without(self, *starts: str) -> TinyModel:
        """Without the tensors whose name starts with one of these."""
        return replace(self, tensors={k: t for k, t in self.tensors.items() if not k.startswith(starts)})

    def draft_only(self) -> TinyModel:
        """The draft block alone, as a companion file that borrows embedding and head."""
        block = f"blk.{int(str(self.keys['qwen4exp.block_count'])) - 1}."
        kept = {k: t for k, t in self.tensors.items() if k.startswith(block)}
        return TinyModel({k: v for k, v in self.keys.items() if ".ple." not in k}, kept)

    def without_draft(self) -> TinyModel:
        """The trunk alone, as a file made without a draft block."""
        blocks = int(str(self.keys["qwen4exp.block_count"])) - 1
        ratios = self.keys["qwen4exp.attention.compress_ratios"]
        assert isinstance(ratios, tuple)
        trunk = self.without(f"blk.{blocks}.").key("qwen4exp.block_count", blocks)
        return trunk.key("qwen4exp.nextn_predict_layers", None).key(
            "qwen4exp.attention.compress_ratios", ratios[:blocks]
        )

    def to_bytes(self) -> bytes:
        """One file, in memory."""
        return gguf_bytes(self.keys, tuple(self.tensors.values()))

    def write(self, path: Path) -> Path:
        """One file, on disk."""
        path.write_bytes(self.to_bytes())
        return path

    def write_split(
        self, folder: Path, *, parts: int = 3, stem: str = "tiny", first_empty: bool = True
    ) -> tuple[Path, ...]:
        """A split set, on disk."""
        files = split_bytes(self.keys, tuple(self.tensors.values()), parts=parts, first_empty=first_empty)
        paths = tuple(folder / name for name in split_names(stem, parts))
        for path, data in zip(paths, files, strict=True):
            path.write_bytes(data)
        return paths


# Sizes of the miniature: all different where the real model's coincide.
TRUNK, HIDDEN, STREAMS, LOW_RANK = 4, 32, 2, 8
WIDE = STREAMS * HIDDEN
QUERY_HEADS, KV_HEADS, HEAD_DIM, ROPE = 4, 2, 16, 8
INDEXER_HEADS, INDEXER_DIM, RATIO, BUDGET = 2, 8, 4, 16
KEY_HEADS, VALUE_HEADS, STATE, CONV = 2, 4, 8, 4
QKV = 2 * KEY_HEADS * STATE + VALUE_HEADS * STATE
EXPERTS, USED, EXPERT_FF, SHARED_FF = 4, 2, 32, 32
ORDER, HEADS_PER_ORDER, ROW_WIDTH, NGRAM_CONV = 3, 2, 32, 4
HEAD_ROWS = (11, 13, 17, 19)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|image_pad|>")
CHAT_TEMPLATE = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def byte_tokens() -> tuple[str, ...]:
    """The 256 stand-ins of byte-level BPE, in byte order (GPT-2's table)."""
    kept = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return tuple(chr(b) if b in kept else chr(next(others)) for b in range(256))


def tiny_model(*, plain_tokens: Sequence[str] | None = None, seed: int = 0) -> TinyModel:
    """A whole valid model with trunk, n-gram layer and draft block, F32, random weights of sensible size.

    Args:
        plain_tokens: the vocabulary before the special tokens; the byte alphabet by default.
        seed: of the weights.
    """
    plain = byte_tokens() if plain_tokens is None else tuple(plain_tokens)
    random = np.random.default_rng(seed)
    tensors: dict[str, TensorSpec] = {}
    for name, shape in tiny_shapes(len(plain) + len(SPECIAL)).items():
        tensors[name] = TensorSpec(name, shape, data=_weights(name, shape, random))
    return TinyModel(tiny_keys(plain), tensors)


def tiny_keys(plain: tuple[str, ...]) -> dict[str, Key]:
    """Metadata of the miniature."""
    special = {name: len(plain) + n for n, name in enumerate(SPECIAL)}
    own: dict[str, Key] = {
        "block_count": TRUNK + 1,
        "nextn_predict_layers": 1,
        "context_length": 512,
        "embedding_length": HIDDEN,
        "attention.head_count": QUERY_HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": ROPE,
        "rope.dimension_sections": (2, 1, 1, 0),
        "expert_count": EXPERTS,
        "expert_used_count": USED,
        "expert_feed_forward_length": EXPERT_FF,
        "expert_shared_feed_forward_length": SHARED_FF,
        "ssm.conv_kernel": CONV,
        "ssm.state_size": STATE,
        "ssm.group_count": KEY_HEADS,
        "ssm.time_step_rank": VALUE_HEADS,
        "ssm.inner_size": VALUE_HEADS * STATE,
        "full_attention_interval": TRUNK,
        "hyper_connection.count": STREAMS,
        "hyper_connection.low_rank": LOW_RANK,
        "attention.indexer.head_count": INDEXER_HEADS,
        "attention.indexer.key_length": INDEXER_DIM,
        "attention.indexer.top_k": BUDGET,
        "attention.compress_ratios": (*([0] * (TRUNK - 1)), RATIO, 0),
        "ple.layers": (1,),
        "ple.ngram_size": ORDER,
        "ple.heads_per_ngram": HEADS_PER_ORDER,
        "ple.conv_kernel": NGRAM_CONV,
        "ple.eos_token_id": special["<|endoftext|>"],
        "ple.image_token_id": special["<|image_pad|>"],
        "embedding_length_per_layer_input": ROW_WIDTH,
        "ple.layer_multipliers": Typed(ValueType.UINT64, (23703573157769, 20109073645365, 8052911324071)),
        "ple.head_vocab_sizes": Typed(ValueType.UINT64, HEAD_ROWS),
        "ple.head_offsets": Typed(ValueType.UINT64, tuple(sum(HEAD_ROWS[:n]) for n in range(len(HEAD_ROWS)))),
    }
    return {
        "general.architecture": "qwen4exp",
        "general.name": "miniature",
        **{f"qwen4exp.{k}": v for k, v in own.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.tokens": (*plain, *SPECIAL),
        "tokenizer.ggml.token_type": (*([1] * len(plain)), *([3] * len(SPECIAL))),
        "tokenizer.ggml.merges": Typed(ValueType.STRING, ()),
        "tokenizer.ggml.eos_token_id": special["<|im_end|>"],
        "tokenizer.ggml.padding_token_id": special["<|endoftext|>"],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def tiny_shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of the miniature, outermost first."""
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocabulary, HIDDEN),
        "output.weight": (vocabulary, HIDDEN),
        "output_hc_norm.weight": (WIDE,),
        "output_hc_down.weight": (LOW_RANK, WIDE),
        "output_hc_up.weight": (WIDE, LOW_RANK),
        "per_layer_token_embd.weight": (sum(HEAD_ROWS) + 4, ROW_WIDTH),
    }
    for block in range(TRUNK + 1):
        full = block >= TRUNK - 1
        shapes |= {f"blk.{block}.{k}": v for k, v in (_COMMON | (_FULL if full else _LINEAR)).items()}
    shapes |= {f"blk.1.{k}": v for k, v in _NGRAM.items()}
    return shapes | {f"blk.{TRUNK}.{k}": v for k, v in _DRAFT.items()}


_COMMON: dict[str, tuple[int, ...]] = {
    **{
        f"hc_{part}_{name}.weight": shape
        for part in ("attn", "ffn")
        for name, shape in {
            "norm": (WIDE,),
            "down": (LOW_RANK, WIDE),
            "up": (WIDE, LOW_RANK),
            "inject": (STREAMS, WIDE),
        }.items()
    },
    "ffn_gate_inp.weight": (EXPERTS, HIDDEN),
    "ffn_gate_exps.weight": (EXPERTS, EXPERT_FF, HIDDEN),
    "ffn_up_exps.weight": (EXPERTS, EXPERT_FF, HIDDEN),
    "ffn_down_exps.weight": (EXPERTS, HIDDEN, EXPERT_FF),
    "ffn_gate_inp_shexp.weight": (HIDDEN,),
    "ffn_gate_shexp.weight": (SHARED_FF, HIDDEN),
    "ffn_up_shexp.weight": (SHARED_FF, HIDDEN),
    "ffn_down_shexp.weight": (HIDDEN, SHARED_FF),
}
_LINEAR: dict[str, tuple[int, ...]] = {
    "attn_qkv.weight": (QKV, HIDDEN),
    "attn_gate.weight": (VALUE_HEADS * STATE, HIDDEN),
    "ssm_alpha.weight": (VALUE_HEADS, HIDDEN),
    "ssm_beta.weight": (VALUE_HEADS, HIDDEN),
    "ssm_a": (VALUE_HEADS,),
    "ssm_dt.bias": (VALUE_HEADS,),
    "ssm_conv1d.weight": (QKV, CONV),
    "ssm_norm.weight": (STATE,),
    "ssm_out.weight": (HIDDEN, VALUE_HEADS * STATE),
}
_FULL: dict[str, tuple[int, ...]] = {
    "attn_q.weight": (2 * QUERY_HEADS * HEAD_DIM, HIDDEN),
    "attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output.weight": (HIDDEN, QUERY_HEADS * HEAD_DIM),
    "attn_q_norm.weight": (HEAD_DIM,),
    "attn_k_norm.weight": (HEAD_DIM,),
    "indexer.q_proj.weight": (INDEXER_HEADS * INDEXER_DIM, HIDDEN),
    "indexer.k_proj.weight": (INDEXER_DIM, HIDDEN),
    "indexer.q_norm.weight": (INDEXER_DIM,),
    "indexer.k_norm.weight": (INDEXER_DIM,),
}
_NGRAM: dict[str, tuple[int, ...]] = {
    "ple_key.weight": (WIDE, len(HEAD_ROWS) * ROW_WIDTH),
    "ple_value.weight": (HIDDEN, len(HEAD_ROWS) * ROW_WIDTH),
    "ple_norm_key.weight": (WIDE,),
    "ple_norm_query.weight": (WIDE,),
    "ple_norm_conv.weight": (WIDE,),
    "ple_conv1d.weight": (WIDE, NGRAM_CONV),
}
_DRAFT: dict[str, tuple[int, ...]] = {
    "nextn.enorm.weight": (HIDDEN,),
    "nextn.hnorm.weight": (WIDE,),
    "nextn.eh_proj.weight": (HIDDEN, 2 * HIDDEN),
    "nextn.hc_head_norm.weight": (WIDE,),
    "nextn.hc_head_down.weight": (LOW_RANK, WIDE),
    "nextn.hc_head_up.weight": (WIDE, LOW_RANK),
}


def _weights(name: str, shape: tuple[int, ...], random: np.random.Generator) -> bytes:
    if "norm" in name:
        values = np.ones(shape)
    elif name.endswith("ssm_a"):
        values = -random.uniform(0.1, 1.0, shape)
    else:
        values = random.normal(0.0, 1.0 / math.sqrt(shape[-1]), shape)
    return values.astype("<f4").tobytes()
