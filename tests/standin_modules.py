"""Modules with the class names and parameters of Transformer Engine, Apex, flash-attn and Megatron, whose kernels
bypass torch's dispatcher as theirs do: numpy computes, through pointers, into ``torch.empty``.
"""

from __future__ import annotations

from typing import Any

import torch
from outside_kernels import read, write
from torch import nn


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return write(torch.empty(*x.shape[:-1], weight.shape[0]), read(x) @ read(weight).T + read(bias))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        dy, rows = read(grads[0]), read(x)
        dx = write(torch.empty_like(x), dy @ read(weight)) if ctx.needs_input_grad[0] else None
        dw = dy.reshape(-1, dy.shape[-1]).T @ rows.reshape(-1, rows.shape[-1])
        return dx, write(torch.empty_like(weight), dw), write(torch.empty(len(weight)), dy.sum((0, 1)))


class _Unknown(torch.autograd.Function):
    """Any kernel: the shapes are right, the values are not."""

    @staticmethod
    def forward(ctx: Any, shape: tuple[int, ...], *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        return write(torch.empty(shape), 1.0)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return None, *(write(torch.empty_like(tensor), 1.0) for tensor in ctx.saved_tensors)


def unknown(shape: tuple[int, ...], *tensors: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = _Unknown.apply(shape, *tensors)  # type: ignore[no-untyped-call]
    return result


class TELinear(nn.Module):
    """Returns its bias beside the output, as Megatron's do."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x: torch.Tensor, is_first_microbatch: bool | None = None) -> tuple[torch.Tensor, None]:
        return _Product.apply(x, self.weight, self.bias), None  # type: ignore[no-untyped-call]


class TEColumnParallelLinear(TELinear):
    """As Megatron derives it."""


class TERowParallelLinear(TELinear):
    """As Megatron derives it."""


class LayerNormLinear(nn.Module):
    def __init__(self, inputs: int, outputs: int, normalization: str = "LayerNorm") -> None:
        super().__init__()
        self.normalization = normalization
        self.layer_norm_weight = nn.Parameter(torch.ones(inputs))
        if normalization == "LayerNorm":
            self.layer_norm_bias = nn.Parameter(torch.zeros(inputs))
        self.weight = nn.Parameter(torch.randn(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, inp: torch.Tensor) -> torch.Tensor:
        return unknown((*inp.shape[:-1], len(self.weight)), inp, *self.parameters())


class TELayerNormColumnParallelLinear(LayerNormLinear):
    """As Megatron derives it."""


class LayerNormMLP(nn.Module):
    def __init__(self, width: int, hidden: int, activation: str = "gelu") -> None:
        super().__init__()
        self.activation, self.normalization = activation, "RMSNorm"
        self.layer_norm_weight = nn.Parameter(torch.ones(width))
        self.fc1_weight = nn.Parameter(torch.randn(hidden * (2 if "glu" in activation else 1), width))
        self.fc2_weight = nn.Parameter(torch.randn(width, hidden))

    def forward(self, inp: torch.Tensor) -> torch.Tensor:
        return unknown(tuple(inp.shape), inp, *self.parameters())


class GroupedLinear(nn.Module):
    def __init__(self, experts: int, inputs: int, outputs: int) -> None:
        super().__init__()
        for expert in range(experts):
            self.register_parameter(f"weight{expert}", nn.Parameter(torch.randn(outputs, inputs)))

    def forward(self, inp: torch.Tensor, m_splits: list[int]) -> torch.Tensor:
        return unknown((len(inp), len(self.weight0)), inp, *self.parameters())


class SingleGroupedLinear(nn.Module):
    """Transformer Engine's with ``single_grouped_weight``: the weights of all experts in one parameter."""

    def __init__(self, experts: int, *shape: int) -> None:
        super().__init__()
        self.num_gemms = experts
        self.weight = nn.Parameter(torch.randn(*shape))

    def forward(self, inp: torch.Tensor, m_splits: list[int]) -> torch.Tensor:
        outputs = self.weight.numel() // self.num_gemms // inp.shape[-1]
        return unknown((len(inp), outputs), inp, *self.parameters())


SingleGroupedLinear.__name__ = "GroupedLinear"


class FusedLayerNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return unknown(tuple(x.shape), x, *self.parameters())


class MixedFusedLayerNorm(FusedLayerNorm):
    """As Apex derives it."""


class FusedRMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return unknown(tuple(x.shape), x, self.weight)


class RMSNorm(FusedRMSNorm):
    """Transformer Engine's."""


class FlashSelfAttention(nn.Module):
    def __init__(self, causal: bool = False, window_size: tuple[int, int] = (-1, -1)) -> None:
        super().__init__()
        self.causal, self.window_size = causal, window_size

    def forward(self, qkv: torch.Tensor, causal: bool | None = None, cu_seqlens: Any = None, max_seqlen: Any = None):  # type: ignore[no-untyped-def]
        *rows, _, heads, size = qkv.shape
        return unknown((*rows, heads, size), qkv)


class FlashCrossAttention(nn.Module):
    causal = False

    def forward(self, q: torch.Tensor, kv: torch.Tensor, causal: bool | None = None) -> torch.Tensor:
        return unknown(tuple(q.shape), q, kv)


class DotProductAttention(nn.Module):
    """Transformer Engine's: sequence first, heads merged in the output."""

    def __init__(self, attn_mask_type: str = "causal") -> None:
        super().__init__()
        self.attn_mask_type, self.qkv_format = attn_mask_type, "sbhd"

    def forward(
        self,
        query_layer: torch.Tensor,
        key_layer: torch.Tensor,
        value_layer: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        qkv_format: str | None = None,
        attn_mask_type: str | None = None,
    ) -> torch.Tensor:
        *rows, heads, size = query_layer.shape
        return unknown((*rows, heads * size), query_layer, key_layer, value_layer)


class TEDotProductAttention(DotProductAttention):
    """As Megatron derives it."""


class FlashAttention(nn.Module):
    """Transformer Engine's kernel module: it is told the layout of all three tensors."""

    def forward(
        self,
        query_layer: torch.Tensor,
        key_layer: torch.Tensor,
        value_layer: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        qkv_layout: str = "sbh3d",
        cu_seqlens_q: torch.Tensor | None = None,
        attn_mask_type: str = "causal",
    ) -> torch.Tensor:
        *rows, heads, size = query_layer.shape
        return unknown((*rows, heads * size), query_layer, key_layer, value_layer)


class FusedAttention(FlashAttention):
    """The same of another backend."""


class PackedDotProductAttention(DotProductAttention):
    """Transformer Engine's takes queries, keys and values side by side, too."""

    def forward(  # type: ignore[override]
        self,
        query_layer: torch.Tensor | None = None,
        qkv_layer: torch.Tensor | None = None,
        kv_layer: torch.Tensor | None = None,
        qkv_interleave_dim: int = -3,
    ) -> torch.Tensor:
        like = query_layer if qkv_layer is None else qkv_layer.select(qkv_interleave_dim, 0)
        assert like is not None
        *rows, heads, size = like.shape
        return unknown((*rows, heads * size), *(x for x in (query_layer, qkv_layer, kv_layer) if x is not None))


class MegatronDotProductAttention(TEDotProductAttention):
    """As Megatron calls it: packed sequences come in an object."""

    def forward(self, query, key, value, attention_mask, attn_mask_type=None, packed_seq_params=None):  # type: ignore[no-untyped-def, override]
        return super().forward(query, key, value)


class TEFusedMLP(nn.Module):
    """Megatron's: its linear layers hold the parameters and are not called."""

    def __init__(self, first: LayerNormLinear | TELinear, second: TELinear) -> None:
        super().__init__()
        self.linear_fc1, self.linear_fc2 = first, second

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, None]:
        return unknown(tuple(hidden_states.shape), hidden_states, *self.parameters()), None
