"""Results of two programs compared: what differs, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from rooflight.records.quantity import count_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_CHUNK: Final = 1 << 22  # elements compared at once, in float64

TOLERANCES: Final = {"float64": 1e-7, "tfloat32": 1e-2, "float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-2}
"""Largest error of a right result, by the precision of the reference: KernelBench's, which are torchbench's; TF32 has
as many bits as float16."""
_OTHERS: Final = 0.25  # float8 has two to three bits after the leading one

_LADDER: Final = ((3e-5, "float32"), (7e-4, "TF32 or float16"), (8e-3, "bfloat16"), (math.inf, "8 bits or fewer"))
"""Up to which root-mean-square error a result is as good as if its factors were rounded to a precision. Rounding to p
bits errs by about 0.4 · 2⁻ᵖ, in a product of two rounded factors by √2 times that: 2 to 3e-4 with the 11 bits of TF32
and float16, 2e-3 with the 8 of bfloat16, 4e-2 with the 4 of float8 (e4m3). The borders lie between those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How a result differs from the reference's. ``why``: what makes it no right one, whatever its numbers; empty where
    numbers decide.

    ``error``: the largest of |difference| / (scale + |reference|) over elements, with scale the mean of |reference|
    over its tensor, at most 1; None without floating numbers. ``rms``: the root mean square of the difference over that
    of the reference. ``tolerance``: the largest error that is right. ``outside``: how many of ``elements`` exceed it.
    """

    why: str = ""
    error: float | None = None
    rms: float | None = None
    tolerance: float | None = None
    outside: int = 0
    elements: int = 0

    @property
    def agrees(self) -> bool:
        """Whether the result is right."""
        return not self.why and not self.outside

    @property
    def message(self) -> str:
        """What is wrong, in a line; empty for a right result."""
        if self.why or self.agrees:
            return self.why
        return (
            f"the result differs: {self.outside:,} of {self.elements:,} elements by more than {self.tolerance:g}, "
            f"the worst by {self.error:.2g}"
        )

    @property
    def precision(self) -> str | None:
        """The precision that such an error is typical of."""
        if self.rms is None:
            return None
        return next(name for limit, name in _LADDER if self.rms < limit or limit == math.inf)

    def worse(self, other: Difference) -> Difference:
        """Of two differences the one that is wrong, or has the larger error."""
        if self.agrees != other.agrees:
            return other if self.agrees else self
        if self.error is None or other.error is None:
            return self if other.error is None else other
        return other if other.error > self.error else self


def tolerance_of(dtype: torch.dtype) -> float:
    """The largest error of a right result of a dtype."""
    return TOLERANCES.get(str(dtype).removeprefix("torch."), _OTHERS)


def compare(reference: Any, solution: Any, *, tolerance: float | None = None, tf32: bool = False) -> Difference:
    """How ``solution`` differs from ``reference``: tensors and numbers, also nested in lists, tuples and dicts.

    ``tolerance`` replaces those by dtype; ``tf32``: the reference computes float32 products in TF32. Integers and
    booleans must be equal. Raises TypeError for a reference that holds anything else.
    """
    ours, theirs = list(_leaves(reference, "result")), list(_leaves(solution, "result"))
    if [name for name, _ in ours] != [name for name, _ in theirs]:
        return Difference(why=f"returns {_form(theirs)}, the reference returns {_form(ours)}")
    found = Difference()
    for (name, expected), (_, given) in zip(ours, theirs, strict=True):
        found = found.worse(_compared(name, expected, given, tolerance, tf32))
    return found


def same_tensors(first: Any, second: Any) -> bool:
    """Whether all tensors in two values are equal, bit by bit but for the kind of NaN."""
    import torch

    ones, others = ([leaf for _, leaf in _leaves(value, "")] for value in (first, second))
    return len(ones) == len(others) and all(
        torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)) and torch.equal(one != one, other != other)  # noqa: PLR0124
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.shape == other.shape
        else one is other
        or (not isinstance(one, torch.Tensor) and not isinstance(other, torch.Tensor) and one == other)
        for one, other in zip(ones, others, strict=True)
    )


def copied(value: Any) -> Any:
    """The value with tensors of its own, with the same strides, nested as they are."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, (list, tuple)):
        return [copied(each) for each in value]
    return {key: copied(each) for key, each in value.items()} if isinstance(value, dict) else value


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            yield from _leaves(each, f"{name}[{number}]")
    elif isinstance(value, dict):
        for key in value:
            yield from _leaves(value[key], f"{name}[{key!r}]")
    elif value is not None:
        yield name, value


def _form(leaves: list[tuple[str, Any]]) -> str:
    if len(leaves) == 1 and leaves[0][0] == "result":
        return f"one {type(leaves[0][1]).__name__}"
    names = [name.removeprefix("result") for name, _ in leaves[:4]] + ["…"] * (len(leaves) > 4)
    return f"{count_of(len(leaves), 'value')} ({', '.join(names)})" if leaves else "nothing"


def _compared(name: str, expected: Any, given: Any, tolerance: float | None, tf32: bool) -> Difference:
    import torch

    if not isinstance(expected, torch.Tensor):
        if not isinstance(expected, (bool, int, float, complex)):
            raise TypeError(f"the reference returns a {type(expected).__name__} as {name}: tensors and numbers compare")
        if type(given) is not type(expected):
            return Difference(why=f"{name} is a {type(given).__name__}, the reference's a {type(expected).__name__}")
        return _of_tensors(name, torch.as_tensor(expected), torch.as_tensor(given), tolerance, tf32)
    if not isinstance(given, torch.Tensor):
        return Difference(why=f"{name} is a {type(given).__name__}, the reference's a tensor")
    for what in ("shape", "dtype", "device", "layout"):
        ours, theirs = (_text(getattr(tensor, what)) for tensor in (expected, given))
        if ours != theirs:
            return Difference(why=f"{name} has {what} {theirs}, the reference's {ours}")
    return _of_tensors(name, expected, given, tolerance, tf32)


def _text(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value).removeprefix("torch.")


def _of_tensors(name: str, expected: Tensor, given: Tensor, tolerance: float | None, tf32: bool) -> Difference:
    import torch

    if expected.layout != torch.strided:
        expected, given = expected.to_dense(), given.to_dense()
    expected, given = expected.detach().reshape(-1), given.detach().reshape(-1)
    if not (expected.is_floating_point() or expected.is_complex()):
        outside = int((expected != given).sum())
        why = f"{name} differs in {outside:,} of {len(given):,} elements" if outside else ""
        return Difference(why=why, elements=len(given))
    if expected.is_complex():
        expected, given = (torch.view_as_real(tensor.resolve_conj()).reshape(-1) for tensor in (expected, given))
    dtype = str(expected.dtype).removeprefix("torch.")
    if tolerance is None:
        tolerance = TOLERANCES["tfloat32"] if tf32 and dtype == "float32" else tolerance_of(expected.dtype)
    return _of_floats(name, expected, given, tolerance)


def _of_floats(name: str, expected: Tensor, given: Tensor, tolerance: float) -> Difference:
    """Chunk by chunk, as a copy of everything in float64 may not fit."""
    import torch

    pieces = [slice(start, end) for start, end in pairwise([*range(0, len(expected), _CHUNK), len(expected)])]
    total, count = 0.0, 0
    for piece in pieces:
        one, other = expected[piece].double(), given[piece].double()
        strange = one.isfinite().logical_not() | other.isfinite().logical_not()
        if strange.any():
            wrong = strange & ~((one == other) | (one.isnan() & other.isnan()))
            if wrong.any():
                return Difference(why=_not_finite(name, expected, given), elements=len(expected), tolerance=tolerance)
        total += float(one[~strange].abs().sum())
        count += int((~strange).sum())
    scale = min(1.0, total / count) if total else 1.0
    worst, outside, squares, differences = 0.0, 0, 0.0, 0.0
    for piece in pieces:
        one, other = expected[piece].double(), given[piece].double()
        known = one.isfinite()
        one, other = one[known], other[known]
        gap = (one - other).abs()
        errors = gap / (one.abs() + scale)
        worst = max(worst, float(errors.max()) if len(errors) else 0.0)
        outside += int((errors > tolerance).sum())
        squares += float(torch.dot(one, one))
        differences += float(torch.dot(gap, gap))
    rms = math.sqrt(differences / squares) if squares else (0.0 if not differences else math.inf)
    return Difference(error=worst, rms=rms, tolerance=tolerance, outside=outside, elements=len(expected))


def _not_finite(name: str, expected: Tensor, given: Tensor) -> str:
    for what, is_it in (("NaN", "isnan"), ("infinity", "isinf")):
        ours, theirs = (int(getattr(tensor, is_it)().sum()) for tensor in (expected, given))
        if ours != theirs:
            return f"{name} has {what} in {theirs:,} of {len(given):,} elements, the reference's in {ours:,}"
    return f"{name} has NaN or infinity in other places than the reference's"
