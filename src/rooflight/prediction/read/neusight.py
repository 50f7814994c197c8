"""NeuSight's tables: one kind of work a file, several GPUs, forward only.

Times are in ms, of float32 with TF32 off, from the host's call to the end of the kernel, the same tensors time after
time: with the launch, and with what fits a cache found there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from rooflight.operators import registry
from rooflight.prediction.read.sheet import Sheet, columns_of, sheet_of
from rooflight.prediction.read.table import Integers, MeasuredTable, device_called, table_of

Columns = Mapping[str, Integers]

_OP, _DEVICE, _LATENCY = "OPName", "Device", "Latency"
_MILLI: Final = 1e-3
_PRECISION: Final = "fp32"


@dataclass(frozen=True, slots=True)
class _Work:
    """What stands for one of NeuSight's operators: ours, the columns it has, and our parameters made of them."""

    operator: str
    columns: tuple[str, ...]
    parameters: Callable[[Columns], dict[str, Integers]]


def _linear(sizes: Columns) -> dict[str, Integers]:
    """[B, M, N] through a layer of N inputs and K outputs, with bias: the rows of B and M are one product's."""
    return {"rows": sizes["B"] * sizes["M"], "inputs": sizes["N"], "outputs": sizes["K"]}


def _bmm(sizes: Columns) -> dict[str, Integers]:
    """[B, M, N] @ [B, N, K]."""
    return {"b": sizes["B"], "m": sizes["M"], "n": sizes["K"], "k": sizes["N"]}


def _conv(sizes: Columns) -> dict[str, Integers]:
    """Images as high as wide, no bias."""
    side = sizes["Input_Size"]
    return {
        "b": sizes["B"],
        "c_in": sizes["Input_Channel"],
        "height": side,
        "width": side,
        "c_out": sizes["Output_Channel"],
        "kernel": sizes["Kernel_Szie"],
        "stride": sizes["Stride"],
        "padding": sizes["Padding"],
    }


def _rows(sizes: Columns) -> dict[str, Integers]:
    return {"rows": sizes["B"], "width": sizes["H"]}


def _with_scalar(sizes: Columns) -> dict[str, Integers]:
    return {**_rows(sizes), "scalar": np.ones_like(sizes["B"])}


_VECTOR: Final = ("B", "H")
_CONV: Final = ("B", "Input_Channel", "Output_Channel", "Kernel_Szie", "Input_Size", "Stride", "Padding")
_WORKS: Final[Mapping[str, _Work]] = {
    "linear": _Work("linear", ("B", "M", "N", "K"), _linear),
    "bmm": _Work("batched_mm", ("B", "M", "N", "K"), _bmm),
    "conv": _Work("conv2d", _CONV, _conv),
    "ln": _Work("layernorm_rows", _VECTOR, _rows),
    "softmax": _Work("softmax_rows", _VECTOR, _rows),
    "gelu": _Work("gelu_rows", _VECTOR, _rows),
    **{name: _Work(name, _VECTOR, _rows) for name in ("add", "mul", "div", "pow", "relu", "tanh")},
    **{f"{name}u": _Work(name, _VECTOR, _with_scalar) for name in ("add", "mul", "div", "pow")},
}


def recognised(path: Path, columns: Sequence[str]) -> bool:  # noqa: ARG001 - recognised by its columns
    """Whether a file has NeuSight's columns."""
    return _OP in columns and (_LATENCY in columns or _DEVICE in columns)


def read(path: Path) -> tuple[MeasuredTable, ...]:
    """A table for each operator and device of a file."""
    known = {name for work in _WORKS.values() for name in work.columns}
    present = [name for name in columns_of(path) if name in known]
    sheet = sheet_of(path, (_OP, _DEVICE, _LATENCY, *present))
    seconds = sheet.seconds(_LATENCY, _MILLI)
    sizes = {name: sheet.sizes(name) for name in present}
    tables = []
    for (op, device), rows in _groups(sheet).items():
        work = _work(sheet, op, rows, present)
        operator = registry.find(work.operator)
        tables.append(
            table_of(
                operator,
                work.parameters({name: sizes[name][rows] for name in work.columns}),
                kernel=op,
                source=path,
                device=device_called(device, _where(sheet, rows)),
                precision=_PRECISION,
                seconds=seconds[rows, None],
                directions=operator.directions[:1],
                unit_s=_MILLI,
                lines=sheet.lines[rows],
                label=f"{path.parent.name} {op}",
            )
        )
    return tuple(tables)


def _groups(sheet: Sheet) -> dict[tuple[str, str], Integers]:
    """Numbers of rows by operator and device, as they come first."""
    places: dict[tuple[str, str], list[int]] = {}
    for row, key in enumerate(zip(sheet.cells[_OP], sheet.cells[_DEVICE], strict=True)):
        places.setdefault(key, []).append(row)
    return {key: np.array(rows, dtype=np.int64) for key, rows in places.items()}


def _work(sheet: Sheet, op: str, rows: Integers, present: Iterable[str]) -> _Work:
    if op not in _WORKS:
        raise ValueError(f'{_where(sheet, rows)}: {_OP} is "{op[:40]}": it can be {", ".join(_WORKS)}')
    if missing := [name for name in _WORKS[op].columns if name not in present]:
        raise ValueError(f"{sheet.path}, line 1: no column {', '.join(missing)}, which {op} needs")
    return _WORKS[op]


def _where(sheet: Sheet, rows: Integers) -> str:
    return f"{sheet.path}, line {sheet.lines[rows[0]]}"
