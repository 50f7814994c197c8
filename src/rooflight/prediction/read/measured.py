"""Measured tables: rows of shapes and of the seconds they took, in arrays; and the timed ops of sessions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooflight.costs.cost import Uncosted
from rooflight.devices import get
from rooflight.devices.spec import DeviceSpec
from rooflight.operators import registry
from rooflight.operators.operator import Operator
from rooflight.prediction.work.facts import Costed, bounded
from rooflight.records.dtypes import dtype_name
from rooflight.records.session import Session
from rooflight.records.signature import OpSignature
from rooflight.roofline.bound import as_it_ran, float32_rules

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredTable:
    """Rows of one operator on one device in one precision: those of a file, or some of a file that holds several.

    ``operator`` is the name of a registered operator where ``known``, otherwise the file's own; ``kernel`` is always
    the file's (``allreduce_large``). ``parameters`` are a known operator's, in its order, defaults filled in.
    ``shapes`` [rows, parameters]; ``seconds`` [rows, directions], positive; ``directions`` are the operator's, or the
    first of them; ``lines`` [rows] are the lines of ``source``, the first of which is 1. ``label`` is what a report
    calls the table, whose device it names beside it, ``unit_s`` the unit in which the source has its times.
    """

    operator: str
    kernel: str
    device: DeviceSpec
    precision: str
    parameters: tuple[str, ...]
    shapes: Integers
    seconds: Floats
    directions: tuple[str, ...]
    source: Path
    lines: Integers
    known: bool = True
    label: str = ""
    unit_s: float = 1e-6

    def __len__(self) -> int:
        return len(self.shapes)

    @property
    def dtype(self) -> str:
        """The precision by torch's name: ``float16`` for ``fp16``."""
        return dtype_name(self.precision)

    def shape(self, row: int) -> dict[str, int]:
        """The shape of a row, by parameter."""
        return dict(zip(self.parameters, map(int, self.shapes[row]), strict=True))

    def where(self, row: int) -> str:
        """File and line of a row, as an error names them."""
        return f"{self.source}, line {self.lines[row]}"

    def subset(self, rows: Mask | Integers) -> MeasuredTable:
        """Some rows: a mask of all, or their numbers."""
        return replace(self, shapes=self.shapes[rows], seconds=self.seconds[rows], lines=self.lines[rows])


def table_of(
    operator: Operator | None, columns: Mapping[str, Integers], *, kernel: str, source: Path, **rest: Any
) -> MeasuredTable:
    """A table; of a file's own kernel without an operator. Raises ValueError for parameters that the operator has not,
    for some that it needs and for directions that are not its own.
    """
    if operator is None:
        shapes = np.stack(list(columns.values()), axis=1)
        return MeasuredTable(
            operator=kernel, kernel=kernel, parameters=tuple(columns), shapes=shapes, source=source, known=False, **rest
        )
    has = ", ".join(operator.parameters)
    if unknown := [name for name in columns if name not in operator.parameters]:
        raise ValueError(f"{source}, line 1: {operator.name} has no parameter {', '.join(unknown)}: it has {has}")
    missing = [name for name in operator.parameters if name not in columns and name not in operator.defaults]
    if missing:
        raise ValueError(f"{source}, line 1: no column {', '.join(missing)}: {operator.name} has {has}")
    if rest["directions"] != operator.directions[: len(rest["directions"])]:
        raise ValueError(f"{source}, line 1: {operator.name} is timed {' and '.join(operator.directions)}")
    rows = len(rest["seconds"])
    whole = [columns.get(name, np.full(rows, operator.defaults.get(name, 0))) for name in operator.parameters]
    return MeasuredTable(
        operator=operator.name,
        kernel=kernel,
        parameters=operator.parameters,
        shapes=np.stack(whole, axis=1).astype(np.int64),
        source=source,
        **rest,
    )


def operator_called(kernel: str, *others: str) -> Operator | None:
    """The registered operator of the first of these names that is one."""
    known = registry.names()
    name = next((each for each in (kernel, *others) if each in known), None)
    return None if name is None else registry.find(name)


def precision_called(name: str, path: Path) -> str:
    """A precision that is one. Raises ValueError, naming ``path``, for an unknown one."""
    try:
        dtype_name(name)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return name


def device_called(label: str, where: Path | str) -> DeviceSpec:
    """The device of a name as files bear it, without blanks, as ``rooflight.devices.get`` finds it.

    Raises ValueError, naming ``where`` it stands, for an unknown device.
    """
    try:
        return get(label)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredOp:
    """A row: an op, the precision at which its float32 products ran, and the seconds of each of its calls."""

    op: OpSignature
    precision: str
    samples_s: Floats

    def on(self, device: DeviceSpec) -> Costed | Uncosted:
        """What it must do, and its bound on a device."""
        return bounded((self.op,), as_it_ran(device, self.precision))[0]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredOps:
    """The timed ops of a session, a row for each distinct signature. ``kernel``, ``operator``, ``known`` and ``label``
    are what reports call it beside tables.
    """

    source: Path
    device: DeviceSpec
    rows: tuple[MeasuredOp, ...]
    kernel: str = "ops"
    operator: str = "ops"
    known: bool = True

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def label(self) -> str:
        """The name of the file."""
        return self.source.name

    @property
    def seconds(self) -> Floats:
        """The median time of each row."""
        return np.array([float(np.median(row.samples_s)) for row in self.rows], dtype=np.float64)


def measured_ops(session: Session, device: DeviceSpec, source: Path) -> MeasuredOps:
    """The rows of a session that was timed on a device. Calls that took no time launched nothing, and are left out.

    Raises ValueError for a session without times of ops, and for one whose timed step is not the recorded one.
    """
    measurement = session.measurement
    if measurement is None or not len(measurement.op_samples_s) or not measurement.of_the_session:
        raise ValueError(f"{source} has no times of ops: nothing can be learned from it, or checked")
    rules = float32_rules(session.environment, device)
    with np.errstate(invalid="ignore"):
        chosen = session.counted & (measurement.op_samples_s > 0)  # [steps, records]
    numbers = np.broadcast_to(session.columns.signature, chosen.shape)[chosen]
    seconds = measurement.op_samples_s[chosen]
    if not len(numbers):
        raise ValueError(f"{source} has no op with a time: nothing can be learned from it, or checked")
    order = np.argsort(numbers, kind="stable")
    distinct, first = np.unique(numbers[order], return_index=True)
    samples = np.split(seconds[order], first[1:])
    signatures = [session.signatures[number] for number in distinct.tolist()]
    return MeasuredOps(
        source=source,
        device=device,
        rows=tuple(
            MeasuredOp(op=op, precision=rules.precision_of(op), samples_s=each)
            for op, each in zip(signatures, samples, strict=True)
        ),
    )
