"""The numbers of a qwen4exp model as its metadata states them, each checked on its own."""

from __future__ import annotations

from dataclasses import dataclass


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
        block_tokens: r, tokens of one indexer block.
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
    block_tokens: int
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
