"""A table from columns: those of a registered operator in its order, or as they come where none is known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rooflight.operators import registry
from rooflight.operators.operator import Operator
from rooflight.prediction.measured_table import Integers, MeasuredTable
from rooflight.records.dtypes import dtype_name


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
