"""The ops whose bytes are compared with the GPU's own counters: name, and what makes the call.

Nearly every case moves over 256 MiB: far more than an L2 holds, so that what the counters see is the op's traffic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Run = Callable[[], object]

SIDE = 16384


def _matrix(rows: int = SIDE, columns: int = SIDE) -> Any:
    import torch

    return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)


def add() -> Run:
    import torch

    a, b = _matrix(), _matrix()
    return lambda: torch.add(a, b)


def copy() -> Run:
    a = _matrix()
    return a.clone


def gelu() -> Run:
    from torch.nn.functional import gelu as op

    a = _matrix()
    return lambda: op(a)


def softmax() -> Run:
    import torch

    a = _matrix()
    return lambda: torch.softmax(a, -1)


def layer_norm() -> Run:
    from torch.nn.functional import layer_norm as op

    a, weight, bias = _matrix(32768, 8192), _matrix(1, 8192)[0], _matrix(1, 8192)[0]
    return lambda: op(a, (8192,), weight, bias)


def sum_all() -> Run:
    a = _matrix()
    return a.sum


def cat() -> Run:
    import torch

    parts = [_matrix(SIDE // 4) for _ in range(4)]
    return lambda: torch.cat(parts)


def embedding() -> Run:
    """Every row of the table once, in random order: no row is read twice."""
    import torch
    from torch.nn.functional import embedding as op

    table = _matrix(65536, 4096)
    rows = torch.randperm(65536, device="cuda")
    return lambda: op(rows, table)


def transposed_copy() -> Run:
    a = _matrix()
    return lambda: a.t().contiguous()


def matrix_product() -> Run:
    import torch

    a, b = _matrix(8192, 8192), _matrix(8192, 8192)
    return lambda: torch.mm(a, b)


def skinny_product() -> Run:
    """One decode step of 16 sequences: the weights are nearly all the traffic."""
    import torch

    rows, weights = _matrix(16, 8192), _matrix(8192, 65536)
    return lambda: torch.mm(rows, weights)


def causal_attention() -> Run:
    import torch
    from torch.nn.functional import scaled_dot_product_attention as op

    q, k, v = (torch.randn(8, 32, 4096, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    return lambda: op(q, k, v, is_causal=True)


def adamw_fused() -> Run:
    import torch

    weights = [torch.randn(4096, 4096, device="cuda", requires_grad=True) for _ in range(4)]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True)
    optimizer.step()
    return optimizer.step


CASES: dict[str, Callable[[], Run]] = {
    "add": add,
    "copy": copy,
    "gelu": gelu,
    "softmax": softmax,
    "layer_norm": layer_norm,
    "sum": sum_all,
    "cat": cat,
    "embedding": embedding,
    "transposed copy": transposed_copy,
    "mm 8192^3": matrix_product,
    "mm 16x8192x65536": skinny_product,
    "sdpa causal": causal_attention,
    "adamw fused": adamw_fused,
}
