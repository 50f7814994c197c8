"""What is likely of values that only the device has: whether something holds, which share of a mask is true, how large
an index is. Chosen places are taken as balanced: a router sends each expert as many tokens as any other.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from rooflight.sources.capture.op_call import OpCall

_HINT: Final = "likely"


class Likely(NamedTuple):
    """``truth`` of each element; the ``share`` of elements that are true; values are even, from 0 to ``below``, or are
    counts that add up to ``total``.
    """

    truth: bool | None = None
    share: float | None = None
    below: float | None = None
    total: float | None = None


_UNKNOWN: Final = Likely()


def likely_of(tensor: Any) -> Likely:
    """What is likely of a fake tensor's values."""
    found: Likely = tensor.__dict__.get(_HINT, _UNKNOWN) if isinstance(tensor, FakeTensor) else _UNKNOWN
    return found


def guess(name: str, call: OpCall, out: Any, *, view: bool) -> None:
    """Note what is likely of what a call of an op made, which may be a ``view`` of its first tensor."""
    args, tensors = call.args, call.tensors
    if name in _EXCHANGED:
        whole, part = (
            next((each for each in tree_leaves(args[n]) if isinstance(each, FakeTensor)), None) for n in (1, 0)
        )
        _set(part, _part_of(likely_of(whole), whole, part))
        return
    if name[-1] == "_" and name[0] != "_" and tensors:
        before = likely_of(tensors[0])
        tensors[0].__dict__.pop(_HINT, None)
        name = name[:-1]
    else:
        before = likely_of(tensors[0]) if tensors else _UNKNOWN
    results = out if isinstance(out, tuple | list) else (out,)
    if name in _PLACES and tensors:
        _set(results[-1], Likely(below=_choices(name, call)))
        results = results[:-1]
    found = _UNKNOWN
    if view or name in _KEPT:
        found = _part_of(before, args[0], results[0])
    elif name in _RULES:
        found = _RULES[name](call, before, out)
    elif isinstance(out, FakeTensor) and out.dtype is torch.bool:
        found = _of_truth(name, args, [before, *map(likely_of, tensors[1:])], out)
    if found != _UNKNOWN:
        for each in results:
            _set(each, found)


def _set(tensor: Any, found: Likely) -> None:
    if isinstance(tensor, FakeTensor):
        tensor.__dict__[_HINT] = found


def expect_share(tensor: Any, share: float) -> None:
    """Note which share of a mask is true."""
    _set(tensor, _with_share(share))


def _choices(name: str, call: OpCall) -> int:
    place, default = _PLACES[name]
    dim, tensor = call.option("dim", len(call.args) if place is None else place, default), call.args[0]
    return int(tensor.numel() if dim is None else tensor.shape[dim] if tensor.dim() else 1)


def _of_truth(name: str, args: Sequence[Any], prior: Sequence[Likely], out: torch.Tensor) -> Likely:
    first = next((each for each in prior if each != _UNKNOWN), _UNKNOWN)
    truth: bool | None = first.truth
    share: float | None = None
    if name in ("any", "all"):
        times = args[0].numel() / max(1, out.numel())
        if first.share is not None:
            share = times * first.share if name == "any" else first.share**times
        elif truth is None:
            truth = name == "all"  # any asks for what is wrong
    elif name in ("logical_not", "bitwise_not"):
        share = None if first.share is None else 1 - first.share
        truth = None if truth is None else not truth
    elif name in _BOTH:
        shares = [each.share for each in prior if each.share is not None]
        share = math.prod(shares) if shares else None
    elif name in _EITHER:
        shares = [each.share for each in prior if each.share is not None]
        share = sum(shares) if len(shares) == len(prior) else None
    elif name in _ORDERS:
        share = _compared(name, args[1], first)
        truth = name != "eq" if name == "eq" or not out.dim() else None
        if truth and type(args[1]) in (int, float):  # as of the number that stands for an unknown one
            truth = bool(_ORDERS[name](1, args[1]))
    else:
        truth = name not in _UNLIKELY
    return Likely(truth) if share is None else _with_share(min(1.0, max(0.0, share)))


def _part_of(counts: Likely, whole: Any, part: Any) -> Likely:
    if counts.total is None:
        return counts
    same = isinstance(whole, torch.Tensor)
    return Likely(total=counts.total * part.numel() / max(1, whole.numel())) if same and counts.total else _UNKNOWN


def _with_share(share: float) -> Likely:
    return Likely(share >= 0.5, share)


def _compared(name: str, value: Any, first: Likely) -> float | None:
    """The share of elements for which a comparison is true."""
    if first.share is not None and name in ("eq", "ne", "gt") and not isinstance(value, torch.Tensor):
        return first.share if bool(value) == (name == "eq") else 1 - first.share
    if first.below is None:
        return None
    if name in ("eq", "ne"):
        return 1 / first.below if name == "eq" else 1 - 1 / first.below
    if isinstance(value, torch.Tensor):
        return None
    under = (value + (first.below > 1 and name in ("le", "gt"))) / first.below
    return float(under if name in ("lt", "le") else 1 - under)


def _scattered(call: OpCall, first: Likely, out: Any) -> Likely:
    value = call.option("value", 3)
    single = isinstance(value, int | float) and value == 1
    return Likely(share=min(1.0, call.args[2].numel() / max(1, out.numel()))) if single else first


def _counted(call: OpCall, first: Likely, _out: Any) -> Likely:
    return Likely(total=call.args[0].numel()) if first.below is not None else _UNKNOWN


def _added(call: OpCall, first: Likely, _out: Any) -> Likely:
    return Likely(total=first.total if first.share is None else first.share * call.args[0].numel())


def _drawn(call: OpCall, _first: Likely, _out: Any) -> Likely:
    numbers = [each for each in call.args[:2] if isinstance(each, int)]
    return Likely(below=numbers[-1]) if numbers and numbers[0] in (0, numbers[-1]) else _UNKNOWN


def balanced(total: float, shape: Iterable[int], dtype: torch.dtype) -> torch.Tensor:
    """Counts that add up to ``total``, as equal as can be."""
    size = math.prod(shape)
    whole, rest = divmod(round(total), max(1, size))
    return (torch.full((size,), whole) + (torch.arange(size) < rest)).to(dtype).view(*shape)


_PLACES: Final[Mapping[str, tuple[int | None, int | None]]] = {
    "topk": (2, -1), "sort": (1, -1), "argsort": (1, -1), "argmax": (1, None), "argmin": (1, None),
    "multinomial": (None, -1),
}  # fmt: skip
"""Ops whose last result are places along a dimension: which argument says it, and which it is else."""
_KEPT: Final = frozenset({"clone", "_to_copy", "index", "index_select", "gather", "flip", "roll", "repeat", "cat",
                          "stack", "sort", "_unsafe_view", "all_to_all_single", "all_gather_into_tensor",
                          "wait_tensor"})  # fmt: skip
_EXCHANGED: Final = frozenset({"alltoall_base_", "alltoall_", "_allgather_base_", "allgather_"})
"""What arrives is as likely as what is sent: all ranks have the like."""
_BOTH: Final = frozenset({"logical_and", "bitwise_and", "__and__"})
_EITHER: Final = frozenset({"logical_or", "bitwise_or", "__or__"})
_ORDERS: Final = {name: vars(operator)[name] for name in ("eq", "ne", "lt", "le", "gt", "ge")}
_UNLIKELY: Final = frozenset({"isnan", "isinf", "isneginf", "isposinf"})
_RULES: Final[Mapping[str, Callable[[OpCall, Likely, Any], Likely]]] = {
    "scatter": _scattered, "bincount": _counted, "histc": _counted, "sum": _added, "randint": _drawn,
    "rand": lambda *_: Likely(below=1.0), "rand_like": lambda *_: Likely(below=1.0),
}  # fmt: skip
