"""Operator: something whose time is worth knowing at many shapes. Names no library: torch is handed in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from rooflight.costs.lanes import Rows, over_lanes
from rooflight.costs.operators.sizes import Size
from rooflight.records.quantity import count_of
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

Shape = Mapping[str, int]
"""A value for each parameter of an operator."""

PAIR = ("fwd", "bwd")
STEP = ("step",)
MOST_ELEMENTS: Final = 2**63 - 1
"""Sizes and numbers of elements are signed 64-bit integers in torch: no tensor is larger."""


class RefusedError(ValueError):
    """A shape or dtype that an operator cannot have here: a row with a status, not a mistake of the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one run does, as a recording would note it, so that ``costs.registry.cost_of`` gives its cost.

    ``inputs`` are the tensors that a run starts from, by default those of the first op of ``forward``; ``constants``
    follow them, and have no gradients.
    """

    forward: tuple[OpSignature, ...]
    backward: tuple[OpSignature, ...] = ()
    inputs: tuple[TensorSpec, ...] = ()
    constants: tuple[TensorSpec, ...] = ()

    @property
    def first_inputs(self) -> tuple[TensorSpec, ...]:
        """The tensors that a run starts from, but for the constants."""
        return self.inputs or self.forward[0].inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Tensors made, ready to run.

    ``backward`` takes what ``forward`` returned and may run any number of times on it; None where there is none.
    """

    forward: Callable[[], Any]
    backward: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator that can be sampled and predicted.

    ``sizes`` declares the integers of a shape, in the order of a table's columns, and which values each sweep gives
    them. ``launch_parameters`` follow them: integers that the launch decides (nodes, ranks a node), so no sweep has
    them; an operator with any is a collective, which runs under torchrun on every rank at once.

    ``work(shape, dtype)`` describes a run without making it, ``prepare(torch, shape, dtype, device)`` makes its
    tensors, ``check(shape)`` says why a shape cannot be, None if it can. dtypes are torch's names (``"float16"``).
    ``directions`` are ``("fwd", "bwd")`` or, one way, ``("step",)``.

    ``tie`` sets the sizes that follow from others in a shape that the smart sweep chose. ``smart_share`` is the
    operator's share of the budget of a smart sweep that names no operator; with 0 it has no part in one.
    """

    name: str
    summary: str
    sizes: Mapping[str, Size]
    work: Callable[[Shape, str], Work]
    prepare: Callable[[Any, Shape, str, str], Prepared]
    check: Callable[[Shape], str | None] | None = None
    directions: tuple[str, ...] = PAIR
    launch_parameters: tuple[str, ...] = ()
    tie: Callable[[dict[str, int]], dict[str, int]] | None = None
    smart_share: int = 0
    parameters: tuple[str, ...] = field(init=False)
    """Names of all integers of a shape."""
    defaults: Shape = field(init=False)
    """Values of the parameters that a shape may leave out."""
    flags: frozenset[str] = field(init=False)
    """Parameters that are 0 or 1."""

    def __post_init__(self) -> None:
        derived = {
            "parameters": (*self.sizes, *self.launch_parameters),
            "defaults": {name: size.default for name, size in self.sizes.items() if size.default is not None},
            "flags": frozenset(name for name, size in self.sizes.items() if size.flag),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)  # frozen for everybody else

    @property
    def ranks(self) -> bool:
        """Whether it runs on every rank at once."""
        return bool(self.launch_parameters)

    def shape(self, values: Shape | Sequence[int]) -> dict[str, int]:
        """``values``, by name or in order, as a whole shape: defaults filled in, in the order of the parameters.

        Raises ValueError for a value that is missing, unknown, too many or no integer.
        """
        if isinstance(values, Mapping):
            given = dict(values)
        else:
            if len(values) > len(self.parameters):
                raise ValueError(f"{self.name} has {self._takes()}, not {count_of(len(values), 'value')}")
            given = dict(zip(self.parameters, values, strict=False))
        if unknown := [name for name in given if name not in self.parameters]:
            raise ValueError(f"{self.name} has no parameter {', '.join(unknown)}: it has {self._takes()}")
        if missing := [name for name in self.parameters if name not in given and name not in self.defaults]:
            raise ValueError(f"{self.name} needs {', '.join(missing)}: it has {self._takes()}")
        whole = {name: given.get(name, self.defaults.get(name, 0)) for name in self.parameters}
        if odd := [f"{name}={value!r}" for name, value in whole.items() if type(value) is not int]:
            raise ValueError(f"{self.name}: {', '.join(odd)} must be integers")
        return whole

    def refusal(self, shape: Shape) -> str | None:
        """Why a whole shape cannot be, None if it can. A parameter is positive, or 0 where its default or a flag is."""
        for name, value in shape.items():
            if value < (0 if name in self.flags or self.defaults.get(name) == 0 else 1):
                return f"{name}={value} is too small"
            if value > MOST_ELEMENTS:
                return f"{name}={value} is too large: torch counts to 2**63 - 1"
            if name in self.flags and value > 1:
                return f"{name}={value} must be 0 or 1"
        return self.check(shape) if self.check else None

    def ops(self, shape: Shape, dtype: str, direction: str) -> tuple[OpSignature, ...]:
        """The ops of one of the ``directions``, at a whole shape."""
        work = self.work(shape, dtype)
        return work.backward if direction == PAIR[1] else work.forward

    def _takes(self) -> str:
        return f"{count_of(len(self.parameters), 'parameter')} ({', '.join(self.parameters)})"


Result = TypeVar("Result")
Columns = Mapping[str, NDArray[np.int64]]
"""The values [shapes] of each parameter."""


def accepted(operator: Operator, shapes: Columns) -> Rows:
    """Numbers of the whole shapes that an operator takes, in order."""
    taken = [rows for rows, refusal in over_lanes(operator.refusal, shapes) if refusal is None]
    return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *taken]))


def over_shapes(
    operator: Operator,
    shapes: Columns,
    dtype: str,
    direction: str,
    run: Callable[[Shape, Sequence[OpSignature]], Result],
) -> Iterator[tuple[Rows, Result]]:
    """What ``run`` finds out about a shape and its ops in one direction, for whole shapes that the operator takes: the
    numbers of shapes, and the result for all of these (``costs.lanes``).
    """
    yield from over_lanes(lambda shape: run(shape, operator.ops(shape, dtype, direction)), shapes)
