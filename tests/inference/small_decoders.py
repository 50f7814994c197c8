"""Sizes of decoders of a few thousand numbers, by family of transformers."""

from __future__ import annotations

SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
LLAMA = SIZES | {"intermediate_size": 48, "num_key_value_heads": 2}
HEAD = LLAMA | {"head_dim": 8}
GPT2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1,
        "eos_token_id": 2}  # fmt: skip
