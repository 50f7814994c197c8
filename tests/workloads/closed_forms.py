"""Matrix FLOPs of decoder-only models from their config alone, as the papers count them: 1 multiply-add = 2 FLOPs.

Every weight matrix meets every token once: 2 FLOPs a weight and token. Attention meets every visible pair of positions:
N(N+1)/2 of them in a causal square. Backward is twice the forward of a weight (one product for the data, one for the
weight; the first layer's data gradient is needed too, because embeddings are trained) and 2.5 times the forward of
attention, whose scores are computed again. Embeddings, rotary angles and norms multiply no matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Weights that a token meets in one layer, and its attention heads."""

    weights: int
    heads: int
    head_dim_qk: int
    head_dim_v: int


def forward_matrix_flops(config: Any, batch: int, seq: int) -> int:
    """All positions at once, logits for each."""
    return linear_flops(config, batch * seq) + attention_flops(config, batch, seq * (seq + 1) // 2)


def train_matrix_flops(config: Any, batch: int, seq: int) -> int:
    """Forward and backward; the optimizer multiplies no matrices."""
    attention = attention_flops(config, batch, seq * (seq + 1) // 2)
    # 1 + 2.5 = 7/2; every term of attention is a multiple of 4
    return 3 * linear_flops(config, batch * seq) + attention * 7 // 2


def prefill_matrix_flops(config: Any, batch: int, seq: int) -> int:
    """All positions at once, logits for the last."""
    skipped = 2 * batch * (seq - 1) * config.hidden_size * config.vocab_size
    return forward_matrix_flops(config, batch, seq) - skipped


def decode_matrix_flops(config: Any, batch: int, seq: int) -> int:
    """One token that sees ``seq`` cached ones and itself."""
    return linear_flops(config, batch) + attention_flops(config, batch, seq + 1)


def linear_flops(config: Any, tokens: int) -> int:
    """Every matrix but attention's, head included."""
    weights = sum(layer.weights for layer in layers(config)) + config.hidden_size * config.vocab_size
    return 2 * tokens * weights


def attention_flops(config: Any, batch: int, pairs: int) -> int:
    """Scores and weighted values of one forward pass: 4·B·H·P·D where both head sizes are D."""
    return sum(2 * batch * layer.heads * pairs * (layer.head_dim_qk + layer.head_dim_v) for layer in layers(config))


def layers(config: Any) -> list[Layer]:
    """The layers of a config. KeyError for an architecture without a closed form here."""
    layer = {
        "gpt2": _gpt2,
        "gpt_neox": _gpt_neox,
        "llama": _llama,
        "qwen3": _llama,
        "mixtral": _mixtral,
        "qwen3_moe": _qwen3_moe,
    }[config.model_type]
    return [layer(config)] * config.num_hidden_layers


def _gpt2(config: Any) -> Layer:
    d = config.n_embd
    inner = config.n_inner or 4 * d
    # queries, keys and values in one matrix; output; up; down
    weights = d * 3 * d + d * d + d * inner + inner * d
    return Layer(weights=weights, heads=config.n_head, head_dim_qk=d // config.n_head, head_dim_v=d // config.n_head)


def _gpt_neox(config: Any) -> Layer:
    d, inner, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    weights = d * 3 * d + d * d + d * inner + inner * d
    return Layer(weights=weights, heads=heads, head_dim_qk=d // heads, head_dim_v=d // heads)


def _grouped_query(config: Any, feed_forward: int) -> Layer:
    d, heads, groups = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or d // heads
    weights = d * heads * head_dim + 2 * d * groups * head_dim + heads * head_dim * d + feed_forward
    return Layer(weights=weights, heads=heads, head_dim_qk=head_dim, head_dim_v=head_dim)


def _llama(config: Any) -> Layer:
    return _grouped_query(config, 3 * config.hidden_size * config.intermediate_size)  # gate, up, down


def _mixtral(config: Any) -> Layer:
    router = config.hidden_size * config.num_local_experts
    expert = 3 * config.hidden_size * config.intermediate_size
    return _grouped_query(config, router + config.num_experts_per_tok * expert)


def _qwen3_moe(config: Any) -> Layer:
    router = config.hidden_size * config.num_experts
    expert = 3 * config.hidden_size * config.moe_intermediate_size
    return _grouped_query(config, router + config.num_experts_per_tok * expert)
