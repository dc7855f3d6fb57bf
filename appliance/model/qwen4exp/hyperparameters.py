"""The numbers of a qwen4exp model as its metadata states them, each checked on its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from appliance.gguf.metadata import Metadata
from appliance.model.qwen4exp.spec_problems import Keys, Problems

MAX_BLOCKS: Final = 1024
MAX_INT64: Final = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True)
class NgramSpec:
    """The n-gram (PLE) embedding: which layer it feeds and how ids become table rows.

    Attributes:
        layer: trunk layer, 0-based, that the embedding is added before.
        order: longest n-gram; also the dilation of the convolution.
        heads_per_order: hash heads for each n-gram length from 2 to order.
        conv_kernel: taps of the causal convolution.
        reset_token_id: predecessors from here back read as this id.
        image_token_id: what image positions hash as; the reset id when the file does not say.
        row_width: weights in one row of the table.
        multipliers: order odd 64-bit integers.
        head_rows: rows of each hash head, the modulus.
        head_offsets: first row of each hash head.
    """

    layer: int
    order: int
    heads_per_order: int
    conv_kernel: int
    reset_token_id: int
    image_token_id: int
    row_width: int
    multipliers: tuple[int, ...]
    head_rows: tuple[int, ...]
    head_offsets: tuple[int, ...]

    @property
    def heads(self) -> int:
        """Rows gathered for each token."""
        return (self.order - 1) * self.heads_per_order

    @property
    def width(self) -> int:
        """Width of the gathered embedding, input of `ple_key` and `ple_value`."""
        return self.heads * self.row_width


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """Everything the metadata say about the shapes; see ModelSpec for what is derived.

    Attributes:
        trunk_layers: blocks without the draft block.
        kv_heads: key and value heads; query head h uses KV head h // (query_heads // kv_heads).
        rope_dims: rotated dimensions of each head, from the first on.
        rope_sections: pairs for time, height, width.
        gdn_head_dim: of keys and values in the linear layers.
        streams: residual streams, hc.
        low_rank: inner width of the stream mixers.
        indexer_budget: tokens the indexer keeps.
    """

    trunk_layers: int
    context_tokens: int
    hidden: int
    vocabulary: int
    query_heads: int
    kv_heads: int
    head_dim: int
    rope_dims: int
    rope_theta: float
    rope_sections: tuple[int, int, int]
    rms_eps: float
    conv_kernel: int
    gdn_head_dim: int
    gdn_key_heads: int
    gdn_value_heads: int
    experts: int
    experts_used: int
    expert_ff: int
    shared_ff: int
    streams: int
    low_rank: int
    indexer_heads: int
    indexer_dim: int
    indexer_budget: int
    ngram: NgramSpec | None

    @property
    def wide(self) -> int:
        """Width of all streams together."""
        return self.streams * self.hidden

    @property
    def gdn_value_width(self) -> int:
        """Values of all heads of a linear layer."""
        return self.gdn_value_heads * self.gdn_head_dim

    @property
    def gdn_qkv_width(self) -> int:
        """Channels of a linear layer's convolution: queries, keys, values."""
        return 2 * self.gdn_key_heads * self.gdn_head_dim + self.gdn_value_width


def read_hyperparameters(metadata: Metadata, problems: Problems, *, has_ngram_table: bool) -> Hyperparameters:
    """Reads every key on its own; how they must agree is `spec_checks`' to say.

    Args:
        metadata: of the model's first part.
        problems: absent keys, wrong types and impossible values are added here.
        has_ngram_table: whether the file has the table, which makes the `ple.*` keys required.

    Raises:
        ModelFileError: any problem at all, because nothing more can be said before the numbers are known.
    """
    keys = Keys(metadata, problems, prefix="qwen4exp.")
    blocks = keys.count("block_count", high=MAX_BLOCKS)
    drafts = keys.count("nextn_predict_layers", low=0, high=1, default=0)
    if drafts >= blocks:
        problems.add(f"qwen4exp.block_count is {blocks}; with {drafts} draft block it must be at least {drafts + 1}")
    with_ngram = has_ngram_table or any(k.startswith("qwen4exp.ple.") for k in metadata)
    found = Hyperparameters(
        trunk_layers=blocks - drafts,
        context_tokens=keys.count("context_length", high=1 << 30),
        hidden=keys.count("embedding_length"),
        vocabulary=len(Keys(metadata, problems).strings("tokenizer.ggml.tokens")),
        query_heads=keys.same("attention.head_count"),
        kv_heads=keys.same("attention.head_count_kv"),
        head_dim=keys.count("attention.key_length"),
        rope_dims=keys.count("rope.dimension_count"),
        rope_theta=keys.number("rope.freq_base", low=1.0, high=1e12),
        rope_sections=_rope_sections(keys, problems),
        rms_eps=keys.number("attention.layer_norm_rms_epsilon", low=0.0, high=0.1),
        conv_kernel=keys.count("ssm.conv_kernel", low=2, high=64),
        gdn_head_dim=keys.count("ssm.state_size"),
        gdn_key_heads=keys.count("ssm.group_count"),
        gdn_value_heads=keys.count("ssm.time_step_rank"),
        experts=keys.count("expert_count"),
        experts_used=keys.count("expert_used_count"),
        expert_ff=keys.same("expert_feed_forward_length"),
        shared_ff=keys.same("expert_shared_feed_forward_length"),
        streams=keys.count("hyper_connection.count", low=2, high=64),
        low_rank=keys.count("hyper_connection.low_rank"),
        indexer_heads=keys.count("attention.indexer.head_count"),
        indexer_dim=keys.count("attention.indexer.key_length"),
        indexer_budget=keys.count("attention.indexer.top_k", high=1 << 30),
        ngram=_read_ngram(keys, problems) if with_ngram else None,
    )
    problems.raise_if_any()
    return found


def _rope_sections(keys: Keys, problems: Problems) -> tuple[int, int, int]:
    sections = keys.ints("rope.dimension_sections", low=0)
    if len(sections) not in (3, 4) or any(sections[3:]):
        if "qwen4exp.rope.dimension_sections" in keys.metadata:
            problems.add(
                f"qwen4exp.rope.dimension_sections is {list(sections[:8])}; it must be three numbers, "
                f"or four with a zero last"
            )
        return (0, 0, 0)
    return (sections[0], sections[1], sections[2])


def _read_ngram(keys: Keys, problems: Problems) -> NgramSpec:
    layers = keys.ints("ple.layers", low=0)
    if len(layers) != 1 and "qwen4exp.ple.layers" in keys.metadata:
        problems.add(f"qwen4exp.ple.layers is {list(layers[:8])}; it must name exactly one layer")
    reset = keys.count("ple.eos_token_id", low=0)
    order = keys.count("ple.ngram_size", low=2, high=16)
    heads = keys.count("ple.heads_per_ngram", high=256)
    return NgramSpec(
        layer=layers[0] if layers else 0,
        order=order,
        heads_per_order=heads,
        conv_kernel=keys.count("ple.conv_kernel", low=2, high=64),
        reset_token_id=reset,
        image_token_id=keys.count("ple.image_token_id", low=0, default=reset),
        row_width=keys.count("embedding_length_per_layer_input"),
        multipliers=keys.ints("ple.layer_multipliers", low=1, high=MAX_INT64, least=order)[:order],
        head_rows=keys.ints("ple.head_vocab_sizes", low=1, high=MAX_INT64, least=(order - 1) * heads)[
            : (order - 1) * heads
        ],
        head_offsets=keys.ints("ple.head_offsets", low=0, high=MAX_INT64, least=(order - 1) * heads)[
            : (order - 1) * heads
        ],
    )
