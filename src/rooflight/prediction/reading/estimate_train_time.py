"""The CSV files of estimate-train-time, and those that the sampler writes beside its JSON lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from rooflight.operators.estimate_train_time import OPERATORS, PARAMETERS
from rooflight.operators.operator import PAIR, STEP, Operator
from rooflight.prediction.measured_table import MeasuredTable
from rooflight.prediction.reading.device_names import device_called
from rooflight.prediction.reading.sheet import columns_of, sheet_of
from rooflight.prediction.reading.table_of_columns import operator_called, precision_called, table_of

_PRECISION: Final = r"(?:b?fp?|tf|b?float|int)\d\w*?"
_NAME: Final = re.compile(rf"(?P<device>[^_]+)_(?P<kernel>.+?)_(?P<precision>{_PRECISION})(?:_\d+_\d+)?")
_TIMES: Final = {("F_dur(us)", "B_dur(us)"): PAIR, ("dur(us)",): STEP, ("dur",): STEP}
_SETTINGS: Final = ("GPU", "Function")  # a file that holds models' settings, not times
_MICRO: Final = 1e-6


def recognised(path: Path, columns: Sequence[str]) -> bool:  # noqa: ARG001 - recognised by its name
    """Whether a file is named as estimate-train-time names tables."""
    return _NAME.fullmatch(bare_name(path)) is not None


def read(path: Path) -> tuple[MeasuredTable]:
    """The table of a file: parameters, then times in µs; operator, device and precision are in the name."""
    name = bare_name(path)
    named = _NAME.fullmatch(name)
    assert named is not None
    columns = columns_of(path)
    if columns[: len(_SETTINGS)] == _SETTINGS:
        raise ValueError(f"{path} holds settings of models, not samples")
    times = next((names for names in _TIMES if columns[-len(names) :] == names), None)
    if columns and times is None:
        raise ValueError(f"{path}, line 1: no times: the last columns must be F_dur(us), B_dur(us) or dur(us)")
    sheet = sheet_of(path)
    assert times is not None
    seconds = [sheet.seconds(each, _MICRO) for each in times]
    shapes = {each: sheet.sizes(each) for each in columns[: -len(times)]}
    operator = operator_of(named["kernel"])
    directions = _TIMES[times]
    if operator is not None:
        shapes = {PARAMETERS.get(each, each): sizes for each, sizes in shapes.items()}
        if directions != operator.directions:
            raise ValueError(f"{path}, line 1: {operator.name} is timed {' and '.join(operator.directions)}")
    table = table_of(
        operator,
        shapes,
        kernel=named["kernel"],
        source=path,
        device=device_called(named["device"], path),
        precision=precision_called(named["precision"], path),
        seconds=np.stack(seconds, axis=1),
        directions=directions,
        lines=sheet.lines,
        label=label_of(path),
    )
    return (table,)


def bare_name(path: Path) -> str:
    """The name of a file without the suffixes of its format."""
    return path.name.removesuffix(".gz").rpartition(".")[0]


def label_of(path: Path) -> str:
    """The name of a file of estimate-train-time or the sampler without the device that it begins with."""
    return bare_name(path).partition("_")[2]


def operator_of(kernel: str) -> Operator | None:
    """The registered operator of a kernel's name: ``allreduce_large`` is ``all_reduce``."""
    base = kernel.removesuffix("_large")
    return operator_called(kernel, base, OPERATORS.get(base, base))
