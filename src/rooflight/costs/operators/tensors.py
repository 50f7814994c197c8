"""Tensors to run operators on, and runs with a backward pass. torch is handed in, nothing here imports it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from rooflight.costs.operators.operator import Prepared
from rooflight.records.tensor import TensorSpec

_TILE = 65_521  # a prime: repeats do not line up with rows
_MANY = 1 << 20


def random(torch: Any, dtype: str, device: str, *shape: int, grad: bool = False) -> Any:
    """Normal random numbers; of a large tensor a repeated tile, since drawing it takes longer than running on it."""
    kind = getattr(torch, dtype)
    count = prod(shape)
    if device == "meta":
        out = torch.empty(shape, dtype=kind, device=device)
    elif count <= _MANY:
        out = torch.randn(shape, device=device).to(kind)
    else:
        out = torch.empty(shape, dtype=kind, device=device)
        tile = torch.randn(_TILE, device=device).to(kind)
        flat, whole = out.view(-1), count // _TILE * _TILE
        flat[:whole].view(-1, _TILE).copy_(tile)
        flat[whole:] = tile[: count - whole]
    return out.requires_grad_(grad)


def integers(torch: Any, device: str, top: int, *shape: int) -> Any:
    """Random int64 numbers in [0, top)."""
    if device == "meta":
        return torch.empty(shape, dtype=torch.int64, device=device)
    return torch.randint(0, top, shape, device=device)


def of_spec(torch: Any, spec: TensorSpec, device: str, *, below: int = 0, grad: bool = False) -> Any:
    """A tensor that lies in memory as ``spec`` says: normal random numbers, or integers in [0, ``below``)."""
    if spec.dtype == "int64":
        return integers(torch, device, below, *spec.shape)
    if spec.dtype.startswith("float8"):
        return of_spec(torch, replace(spec, dtype="bfloat16"), device).to(getattr(torch, spec.dtype))
    strides = spec.strides or tuple(prod(spec.shape[place + 1 :]) for place in range(len(spec.shape)))
    order = sorted(range(len(strides)), key=lambda place: -strides[place])
    stored = random(torch, spec.dtype, device, *(spec.shape[place] if strides[place] else 1 for place in order))
    view = stored.permute([order.index(place) for place in range(len(order))]).expand(spec.shape)
    return view.requires_grad_(grad)


def differentiable(torch: Any, run: Callable[[], Any], inputs: Sequence[Any], *, grad: Any = None) -> Prepared:
    """``run`` with the gradients of ``inputs``.

    ``grad`` is that of the result, or of each result where ``run`` returns several; by default a dense one of the
    result's looks, made on a first run.
    """
    results = run()
    many = isinstance(results, tuple)
    if grad is None:
        each = results if many else (results,)
        grad = tuple(random(torch, str(out.dtype).removeprefix("torch."), str(out.device), *out.shape) for out in each)
    elif not many:
        grad = (grad,)

    def backward(results: Any) -> Any:
        outputs = results if many else (results,)
        return torch.autograd.grad(outputs, inputs, grad, retain_graph=True)

    return Prepared(forward=run, backward=backward)
