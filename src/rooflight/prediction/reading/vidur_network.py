"""Vidur's tables of collectives: sizes in bytes of float16, medians of NCCL's kernels in ms to 1 µs.

The kind of node is the name of a folder that the file lies in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from rooflight.operators import registry
from rooflight.prediction.measured_table import Integers, MeasuredTable
from rooflight.prediction.reading.device_names import device_of_folder
from rooflight.prediction.reading.sheet import Sheet, columns_of, sheet_of
from rooflight.prediction.reading.table_of_columns import table_of

DEVICES: Final[Mapping[str, str]] = {
    "a100_dgx": "A100-SXM4-80GB",
    "h100_dgx": "H100-SXM5-80GB",
    "a100_pairwise_nvlink": "A100-PCIE-80GB",
    "h100_pairwise_nvlink": "H100-NVL-94GB",
    "a40_pairwise_nvlink": "A40",
}
"""What each kind of node is made of: where NVLink joins pairs, the parts that have it as a bridge between two."""
_OPERATORS: Final[Mapping[str, str]] = {
    "all_reduce": "all_reduce",
    "send_recv": "p2p",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
}
_MILLI: Final = 1e-3
_PRECISION: Final = "fp16"
_ITEM_BYTES: Final = 2
_COLLECTIVE, _SIZE, _WORKERS, _HERE = "collective", "size", "num_workers", "devices_per_node"


def recognised(path: Path, columns: Sequence[str]) -> bool:  # noqa: ARG001 - recognised by its columns
    """Whether a file has the columns of Vidur's collectives."""
    return _COLLECTIVE in columns and any(name.startswith("time_stats.") for name in columns)


def read(path: Path) -> tuple[MeasuredTable, ...]:
    """A table for each collective of a file."""
    timed = [name for name in columns_of(path) if name.startswith("time_stats.") and name.endswith(".median")]
    sheet = sheet_of(path, (_COLLECTIVE, _SIZE, _WORKERS, _HERE, *timed))
    size, workers, here = (sheet.sizes(name) for name in (_SIZE, _WORKERS, _HERE))
    for name, wrong in ((_SIZE, size % _ITEM_BYTES != 0), (_HERE, (here == 0) | (workers % np.maximum(here, 1) != 0))):
        if (rows := np.flatnonzero(wrong)).size:
            raise ValueError(
                f"{path}, line {sheet.lines[rows[0]]}: {name} is {sheet.cells[name][rows[0]]}, which is no whole part"
            )
    device = device_of_folder(path, DEVICES, "node")
    tables = []
    for collective in dict.fromkeys(sheet.cells[_COLLECTIVE]):
        rows = np.flatnonzero(np.array(sheet.cells[_COLLECTIVE]) == collective)
        operator = registry.find(_OPERATORS[_known(sheet, collective, rows)])
        if f"time_stats.{collective}.median" not in timed:
            raise ValueError(f"{path}, line 1: no column time_stats.{collective}.median")
        tables.append(
            table_of(
                operator,
                {
                    "elements": size[rows] // _ITEM_BYTES,
                    "nodes": workers[rows] // here[rows],
                    "gpus_per_node": here[rows],
                },
                kernel=collective,
                source=path,
                device=device,
                precision=_PRECISION,
                seconds=sheet.seconds(f"time_stats.{collective}.median", _MILLI)[rows, None],
                directions=operator.directions,
                unit_s=_MILLI,
                lines=sheet.lines[rows],
                label=f"{path.parent.name} {collective}",
            )
        )
    return tuple(tables)


def _known(sheet: Sheet, collective: str, rows: Integers) -> str:
    if collective not in _OPERATORS:
        raise ValueError(
            f'{sheet.path}, line {sheet.lines[rows[0]]}: {_COLLECTIVE} is "{collective[:40]}": '
            f"it can be {', '.join(_OPERATORS)}"
        )
    return collective
