"""Lanes: one number for each of many shapes, so that formulas written for one shape run over many at once.

A formula sees ``Lanes`` where it would see an int: sums, products and comparisons work lane by lane. Where it branches
on a comparison that holds in some lanes only, the run stops and is done again for each part (``over_lanes``), so that
formulas stay written once, and in scalars. Results are those of Python's ints and floats, bit for bit: integers that
int64 cannot hold are kept as Python's.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Result = TypeVar("Result")
Rows = NDArray[np.int64]

_INT64: Final = 1 << 63
_PLAIN: Final = (int, float)
_EXACT: Final = 1 << 53
"""Integers up to here are floats too."""
FEWEST_LANES: Final = 8
"""Fewer shapes than this are sooner run one by one."""
_MOST_VALUES: Final = 256
"""Values of one size, such as a number of tensors, for each of which a run is worth while."""
_MOST_SPLITS: Final = 48
"""How often the shapes of one run may be parted before the rest are run one by one."""


class Disagreement(BaseException):
    """Not all lanes go the same way; ``parts`` numbers, lane by lane, the ways there are.

    No Exception: a formula that fails counts as one that could not read its op, and this is no failure.
    """

    def __init__(self, parts: NDArray[Any]) -> None:
        super().__init__("lanes disagree")
        self.parts = parts


class OneByOneError(BaseException):
    """Something was asked of lanes that only a plain number can do: these shapes must be run one by one."""


class Lanes:
    """A number for each of many shapes: ``values`` are int64, Python's ints (object), float64 or bool.

    ``limit`` is no less than any integer among them, in absolute value.
    """

    __slots__ = ("limit", "values")

    def __init__(self, values: NDArray[Any], limit: int | None = None) -> None:
        if limit is None and values.dtype != np.float64:
            limit = int(np.abs(values).max(initial=0)) if values.dtype != np.bool_ else 1
        self.values = values
        self.limit = limit or 0

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """That of the numbers: a formula that asks whether a setting is an int must not take it for another one."""
        return {"f": float, "b": bool}.get(self.values.dtype.kind, int)

    # what only a plain number can do

    def __bool__(self) -> bool:
        truth = self.values != 0
        count = int(np.count_nonzero(truth))
        if 0 < count < len(truth):
            raise Disagreement(truth.astype(np.int64))
        return count > 0

    def _the_same(self) -> Any:
        """The number that all lanes have. Runs that need it are parted by it."""
        first = self.values[0]
        if (self.values == first).all():
            return first if self.values.dtype == object else first.item()
        distinct, parts = np.unique(self.values, return_inverse=True)
        if len(distinct) > _MOST_VALUES:
            raise OneByOneError(f"{len(distinct)} values in place of one")
        raise Disagreement(parts.reshape(-1))

    def __format__(self, specification: str) -> str:
        return format(self._the_same(), specification)

    def __repr__(self) -> str:
        return f"Lanes({self.values!r})"

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise OneByOneError("numpy's functions take no lanes")

    __array_ufunc__ = __array__

    def __getattr__(self, name: str) -> NoReturn:
        if hasattr(int, name) or hasattr(float, name):
            raise OneByOneError(f"lanes have no {name}")
        raise AttributeError(name)

    # arithmetic and comparisons follow below the rules that they go by: see ``_OPERATORS``

    def __mul__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, Sequence) else _product(self, other)  # repeated: see __index__

    def __rmul__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, Sequence) else _product(other, self)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return _divided(operator.floordiv, self, other), _divided(operator.mod, self, other)

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return _divided(operator.floordiv, other, self), _divided(operator.mod, other, self)

    def __neg__(self) -> Lanes:
        return _linear(operator.sub, 0, self) if self.values.dtype != np.float64 else Lanes(-self.values)

    def __pos__(self) -> Lanes:
        return self

    def __invert__(self) -> Lanes:
        return _linear(operator.sub, -1, self)

    def __abs__(self) -> Lanes:
        return Lanes(np.abs(_numbers(self).values), self.limit)


Operation = Callable[[Any, Any], Any]


def larger(one: Any, other: Any) -> Any:
    """The larger of two numbers; lane by lane of lanes or arrays, which ``max`` would part."""
    if type(one) in _PLAIN and type(other) in _PLAIN:
        return other if other > one else one
    return _chosen(np.maximum, one, other)


def smaller(one: Any, other: Any) -> Any:
    """The smaller of two numbers; lane by lane of lanes or arrays, which ``min`` would part."""
    if type(one) in _PLAIN and type(other) in _PLAIN:
        return other if other < one else one
    return _chosen(np.minimum, one, other)


def is_lanes(number: object) -> bool:
    """Whether a number is one for each of many shapes."""
    return type(number) is Lanes


def array_of(number: Any, count: int) -> NDArray[np.float64]:
    """A number for each of ``count`` shapes as floats: lanes as they are, a plain number for all of them."""
    if type(number) is Lanes:
        return np.asarray(number.values, dtype=np.float64)
    return np.full(count, float(number))


def real(number: Any) -> Any:
    """A number as a float; lanes as they are."""
    return number if type(number) is Lanes else float(number)


def over_lanes(
    run: Callable[[Mapping[str, int]], Result], columns: Mapping[str, NDArray[np.int64]]
) -> Iterator[tuple[Rows, Result]]:
    """``run`` for each of many shapes, whose sizes ``columns`` hold by name: which shapes, and what it gave for them.

    What it gives holds lanes where shapes differ, in their order. It must have no effects: it may be run again.
    """
    count = len(next(iter(columns.values()))) if columns else 1
    waiting = [(np.arange(count), 0)]
    while waiting:
        rows, splits = waiting.pop()
        if len(rows) >= FEWEST_LANES and splits < _MOST_SPLITS:
            try:
                with np.errstate(all="ignore"):  # as Python, which overflows to infinity in silence
                    result = run({name: _lanes(values[rows]) for name, values in columns.items()})
                yield rows, result
                continue
            except Disagreement as found:
                order = np.argsort(found.parts, kind="stable")
                ends = np.flatnonzero(np.diff(found.parts[order])) + 1
                waiting += [(np.sort(rows[part]), splits + 1) for part in np.split(order, ends)]
                continue
            except (OneByOneError, Exception):
                pass
        for row in rows:
            yield row.reshape(1), run({name: int(values[row]) for name, values in columns.items()})


def _lanes(values: NDArray[np.int64]) -> int:
    first = int(values[0])
    return first if (values == first).all() else cast(int, Lanes(values))


def _wrapped(number: Any, like: Lanes) -> Lanes:
    if type(number) is Lanes:
        return number
    if isinstance(number, bool):
        return Lanes(np.array([number]))
    if isinstance(number, int):
        limit = abs(int(number))
        return Lanes(np.array([number], dtype=np.int64 if limit < _INT64 else object), limit)
    if isinstance(number, float):
        return Lanes(np.array([number], dtype=np.float64))
    raise OneByOneError(f"{type(number).__name__} beside {len(like.values)} lanes")


def _numbers(lanes: Lanes) -> Lanes:
    """Truth as 0 and 1."""
    return Lanes(lanes.values.astype(np.int64), 1) if lanes.values.dtype == np.bool_ else lanes


def _pair(one: Any, other: Any) -> tuple[Lanes, Lanes]:
    like = one if type(one) is Lanes else other
    return _numbers(_wrapped(one, like)), _numbers(_wrapped(other, like))


def _is_float(*lanes: Lanes) -> bool:
    return any(each.values.dtype == np.float64 for each in lanes)


def _floats(lanes: Lanes) -> NDArray[np.float64]:
    return np.asarray(lanes.values, dtype=np.float64)


def _whole(values: NDArray[Any]) -> Lanes:
    """Python's ints as int64 again where it can hold them."""
    limit = max(map(abs, values), default=0)
    return Lanes(values.astype(np.int64) if limit < _INT64 else values, limit)


def _made(numbers: list[Any]) -> Lanes:
    if any(isinstance(number, float) for number in numbers):
        return Lanes(np.array(numbers, dtype=np.float64))
    if all(isinstance(number, int) for number in numbers):
        return _whole(np.array(numbers, dtype=object))
    raise OneByOneError("neither ints nor floats")


def _linear(operation: Operation, one: Any, other: Any) -> Lanes:
    left, right = _pair(one, other)
    if _is_float(left, right):
        return Lanes(operation(_floats(left), _floats(right)))
    limit = left.limit + right.limit
    if limit < _INT64:
        return Lanes(operation(left.values, right.values), limit)
    return _whole(operation(left.values.astype(object), right.values.astype(object)))


def _product(one: Any, other: Any) -> Lanes:
    left, right = _pair(one, other)
    if _is_float(left, right):
        return Lanes(_floats(left) * _floats(right))
    limit = left.limit * right.limit
    if limit >= _INT64:  # the largest of one need not meet the largest of the other
        largest = float(np.abs(_floats(left) * _floats(right)).max())
        if largest >= _INT64 / 2 or object in (left.values.dtype, right.values.dtype):
            return _whole(left.values.astype(object) * right.values.astype(object))
        limit = int(largest * (1 + 1e-9)) + 1
    return Lanes(left.values * right.values, limit)


def _divided(operation: Operation, one: Any, other: Any) -> Lanes:
    left, right = _pair(one, other)
    _refuse_zero(right)
    if _is_float(left, right):
        return _each(operation, left, right)
    limit = left.limit if operation is operator.floordiv else right.limit
    return Lanes(operation(left.values, right.values), limit)


def _quotient(_: Operation, one: Any, other: Any) -> Lanes:
    left, right = _pair(one, other)
    _refuse_zero(right)
    if not _is_float(left, right) and max(left.limit, right.limit) > _EXACT:
        return _each(operator.truediv, left, right)  # Python rounds the quotient of two ints once
    return Lanes(_floats(left) / _floats(right))


def _refuse_zero(divisor: Lanes) -> None:
    if not (divisor.values != 0).all():
        if divisor:  # parts the lanes where only some are 0
            return
        raise ZeroDivisionError("division by zero")


def _each(operation: Operation, one: Any, other: Any) -> Lanes:
    """An operation done by Python, lane by lane; of truths, and bit by bit of integers, by numpy."""
    like = one if type(one) is Lanes else other
    left, right = _wrapped(one, like), _wrapped(other, like)
    if left.values.dtype == right.values.dtype == np.bool_:
        return Lanes(operation(left.values, right.values), 1)
    if operation in _BITWISE and left.values.dtype == right.values.dtype == np.int64:
        return Lanes(operation(left.values, right.values), 2 * max(left.limit, right.limit) + 1)
    pairs = np.broadcast_arrays(left.values, right.values)
    return _made([operation(a, b) for a, b in zip(pairs[0].tolist(), pairs[1].tolist(), strict=True)])


def _compared(operation: Operation, one: Any, other: Any) -> Any:
    if not isinstance(other, int | float):
        return NotImplemented
    left, right = _pair(one, other)
    if _is_float(left, right) and max(left.limit, right.limit) > _EXACT:
        left, right = (Lanes(each.values.astype(object), each.limit) for each in (left, right))
    return Lanes(np.asarray(operation(left.values, right.values), dtype=bool), 1)


def _chosen(over: Any, one: Any, other: Any) -> Any:
    if type(one) is not Lanes and type(other) is not Lanes:
        return over(one, other)
    left, right = _pair(one, other)
    if _is_float(left, right):
        return Lanes(over(_floats(left), _floats(right)))
    return Lanes(over(left.values, right.values), max(left.limit, right.limit))


_BITWISE: Final = (operator.and_, operator.or_, operator.xor)
_OPERATORS: Final = {
    _linear: (operator.add, operator.sub),
    _divided: (operator.floordiv, operator.mod),
    _quotient: (operator.truediv,),
    _each: (operator.pow, operator.lshift, operator.rshift, *_BITWISE),
    _compared: (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
}
"""Which rule lanes go by in which of Python's operations."""


_OF_ONE_NUMBER: Final = (operator.index, int, float, hash, str)
"""What all lanes have to agree on."""
_ROUNDINGS: Final = (round, math.trunc, math.floor, math.ceil)


def _give_of_one(ask: Callable[[Any], Any]) -> None:
    setattr(Lanes, f"__{ask.__name__}__", lambda self: ask(self._the_same()))


def _give_rounding(rounded: Callable[..., Any]) -> None:
    name = f"__{rounded.__name__}__"
    setattr(Lanes, name, lambda self, *digits: _made([rounded(value, *digits) for value in self.values.tolist()]))


def _give(rule: Any, operation: Operation) -> None:
    name = operation.__name__.strip("_")
    setattr(Lanes, f"__{name}__", lambda self, other: rule(operation, self, other))
    if rule is not _compared:
        setattr(Lanes, f"__r{name}__", lambda self, other: rule(operation, other, self))


for _ask in _OF_ONE_NUMBER:
    _give_of_one(_ask)
for _rounded in _ROUNDINGS:
    _give_rounding(_rounded)
for _rule, _operations in _OPERATORS.items():
    for _operation in _operations:
        _give(_rule, _operation)
