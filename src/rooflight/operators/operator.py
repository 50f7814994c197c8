"""Operator: something whose time is worth knowing at many shapes. Names no library: torch is handed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rooflight.records.signature import OpSignature

Shape = Mapping[str, int]
"""A value for each parameter of an operator."""

PAIR = ("fwd", "bwd")
STEP = ("step",)


class RefusedError(ValueError):
    """A shape or dtype that an operator cannot have here: a row with a status, not a mistake of the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one run does, as a recording would note it, so that ``costs.registry.cost_of`` gives its cost."""

    forward: tuple[OpSignature, ...]
    backward: tuple[OpSignature, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Tensors made, ready to run.

    ``backward`` takes what ``forward`` returned and may run any number of times on it; None where there is none.
    """

    forward: Callable[[], Any]
    backward: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator that can be sampled.

    ``parameters`` name the integers of a shape, in the order of a table's columns; those in ``defaults`` may be left
    out, those in ``flags`` are 0 or 1. ``family`` groups operators whose times are learned together. ``work(shape,
    dtype)`` describes a run without making it, ``prepare(torch, shape, dtype, device)`` makes its tensors,
    ``check(shape)`` says why a shape cannot be, None if it can. dtypes are torch's names (``"float16"``).
    ``directions`` are ``("fwd", "bwd")`` or, one way, ``("step",)``. ``ranks`` is true of collectives: they run under
    torchrun, on every rank at once.
    """

    name: str
    summary: str
    parameters: tuple[str, ...]
    family: str
    work: Callable[[Shape, str], Work]
    prepare: Callable[[Any, Shape, str, str], Prepared]
    check: Callable[[Shape], str | None]
    directions: tuple[str, ...] = PAIR
    defaults: Shape = field(default_factory=lambda: MappingProxyType({}))
    flags: tuple[str, ...] = ()
    ranks: bool = False

    def shape(self, values: Shape | Sequence[int]) -> dict[str, int]:
        """``values``, by name or in order, as a whole shape: defaults filled in, in the order of the parameters.

        Raises ValueError for a value that is missing, unknown, too many or no integer.
        """
        if isinstance(values, Mapping):
            given = dict(values)
        else:
            if len(values) > len(self.parameters):
                raise ValueError(f"{self.name} has {self._takes()}, not {len(values)} values")
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
            if name in self.flags and value > 1:
                return f"{name}={value}: 0 or 1"
        return self.check(shape)

    def _takes(self) -> str:
        return f"{len(self.parameters)} parameters ({', '.join(self.parameters)})"
