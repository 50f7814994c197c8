"""Sizes of decoders of a few thousand numbers, by family of transformers; and one in the manner of gpt-fast."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
LLAMA = SIZES | {"intermediate_size": 48, "num_key_value_heads": 2}
HEAD = LLAMA | {"head_dim": 8}
GPT2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1,
        "eos_token_id": 2}  # fmt: skip


class _Adapted(nn.Module):
    """A layer with LoRA that is gated, in names that nobody knows."""

    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.main, self.a, self.b = nn.Linear(given, made), nn.Linear(given, 4), nn.Linear(4, made)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.main(x) + torch.sigmoid(x[..., :1]) * self.b(self.a(x))


class GptFast(nn.Module):
    """A decoder with one product for queries, keys and values of half as many heads, and one for the two of its MLP."""

    def __init__(self, names: str = "wqkv wo w13 w2", layer: Callable[[int, int], nn.Module] = _Adapted) -> None:
        super().__init__()
        self.tok_embeddings, self.output = nn.Embedding(96, 32), nn.Linear(32, 96, bias=False)
        self.layers = nn.ModuleList(_Block(names.split(), layer) for _ in range(2))
        self.norm = nn.RMSNorm(32)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tok_embeddings(ids)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


class _Block(nn.Module):
    def __init__(self, names: list[str], layer: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.attention, self.feed_forward = _Attention(), _FeedForward()
        for owner, given, made, name in zip(
            (self.attention, self.attention, self.feed_forward, self.feed_forward),
            (32, 32, 32, 48), (64, 32, 96, 32), names, strict=True,
        ):  # fmt: skip
            owner.add_module(name, layer(given, made))
        self.attention_norm, self.ffn_norm = nn.RMSNorm(32), nn.RMSNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class _Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, last = self.children()
        q, k, v = (each.unflatten(-1, (-1, 8)).transpose(1, 2) for each in first(x).split([32, 16, 16], -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return last(y.transpose(1, 2).flatten(2))


class _FeedForward(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, last = self.children()
        gate, up = first(x).chunk(2, -1)
        return last(nn.functional.silu(gate) * up)
