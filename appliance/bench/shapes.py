"""Shapes of models that a bench makes up; torch-free."""

from __future__ import annotations

from typing import Final

from appliance.model.qwen4exp.hyperparameters import Hyperparameters, NgramSpec

SHAPES: Final[dict[str, Hyperparameters]] = {
    "real": Hyperparameters(
        trunk_layers=48,
        context_tokens=262144,
        hidden=2560,
        vocabulary=248320,
        query_heads=24,
        kv_heads=2,
        head_dim=256,
        rope_dims=64,
        rope_theta=1e7,
        rope_sections=(11, 11, 10),
        rms_eps=1e-6,
        conv_kernel=4,
        gdn_head_dim=128,
        gdn_key_heads=16,
        gdn_value_heads=48,
        experts=512,
        experts_used=10,
        expert_ff=640,
        shared_ff=640,
        streams=4,
        low_rank=320,
        indexer_heads=4,
        indexer_dim=128,
        indexer_budget=2048,
        ngram=NgramSpec(
            layer=1,
            order=3,
            heads_per_order=8,
            conv_kernel=4,
            reset_token_id=248044,
            image_token_id=248056,
            row_width=160,
            multipliers=(23703573157769, 20109073645365, 8052911324071),
            head_rows=(65521,) * 16,
            head_offsets=tuple(65521 * head for head in range(16)),
        ),
    ),
}
