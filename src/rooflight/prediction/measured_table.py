"""Measured tables: rows of shapes and of the seconds they took, in arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rooflight.devices.spec import DeviceSpec
from rooflight.records.dtypes import dtype_name

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

    def kept(self, rows: Mask | Integers) -> MeasuredTable:
        """Some rows: a mask of all, or their numbers."""
        return replace(self, shapes=self.shapes[rows], seconds=self.seconds[rows], lines=self.lines[rows])
