"""The sampler's own files: rows that are ok, each with estimate-train-time's statistic of its samples."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rooflight.devices import calibrations, find_by_torch_name
from rooflight.devices.spec import DeviceSpec, MemoryLevel, Roofs
from rooflight.prediction.measured_table import MeasuredTable
from rooflight.prediction.reading.device_names import device_called
from rooflight.prediction.reading.estimate_train_time import label_of, operator_of
from rooflight.prediction.reading.sheet import sizes, times
from rooflight.prediction.reading.table_of_columns import precision_called, table_of
from rooflight.records.samples import SUFFIX, Header, Status, undisturbed_s
from rooflight.records.samples import read as read_store

_OK = re.compile(rb'"status"\s*:\s*"ok"')


def recognised(path: Path, columns: Sequence[str]) -> bool:  # noqa: ARG001 - it has no columns
    """Whether a file has the sampler's ending."""
    return path.suffix == SUFFIX


def nothing_measured(path: Path) -> bool:
    """Whether a file of the sampler has no row that is ok. False for a broken one: reading it raises the reason."""
    try:
        if _OK.search(path.read_bytes()):
            return False  # without parsing: most files have such a row
        _, rows = read_store(path)
    except (OSError, ValueError):
        return False
    return all(row.status is not Status.OK for row in rows.values())


def read(path: Path) -> tuple[MeasuredTable]:
    """The table of a file, with the roofs of the device it was measured on. A time is what the run took undisturbed."""
    header, rows = read_store(path)
    kept = [(line, key, row) for line, (key, row) in enumerate(rows.items(), start=2) if row.status is Status.OK]
    if not kept:
        raise ValueError(f"{path} has no row that was measured")
    lines = np.array([line for line, _, _ in kept], dtype=np.int64)
    seconds = np.full((len(kept), len(header.directions)), np.nan)
    for place, (line, _, row) in enumerate(kept):
        for column, direction in enumerate(header.directions):
            if not row.samples_s.get(direction):
                raise ValueError(f"{path}, line {line}: no samples of {direction}")
            seconds[place, column] = undisturbed_s(row.samples_s[direction])
    for column, direction in enumerate(header.directions):
        times(path, lines, direction, seconds[:, column])
    keys = np.array([key for _, key, _ in kept], dtype=np.float64)
    operator = operator_of(header.operator)
    if operator is not None and header.directions != operator.directions:
        raise ValueError(f"{path}, line 1: {operator.name} is timed {' and '.join(operator.directions)}")
    table = table_of(
        operator,
        {name: sizes(path, lines, name, keys[:, place]) for place, name in enumerate(header.parameters)},
        kernel=header.kernel,
        source=path,
        device=_device(header, path),
        precision=precision_called(header.precision, path),
        seconds=seconds,
        directions=header.directions,
        unit_s=1.0,
        lines=lines,
        label=label_of(path),
    )
    return (table,)


def _device(header: Header, path: Path) -> DeviceSpec:
    """The device of a sampler's file, with the roofs that were measured there if this machine does not keep them.

    Raises ValueError for a device of which nothing is known, such as a CPU that was not calibrated.
    """
    facts = header.calibration
    fingerprint = facts.get("fingerprint") or header.environment.get("fingerprint")
    try:
        kept = calibrations.load(fingerprint) if fingerprint else None
    except ValueError:  # a broken calibration is not the table's matter
        kept = None
    if kept is not None:
        return calibrations.device_of(kept)
    roofs = _roofs(facts, path) if facts else None
    if roofs is None:
        if header.environment.get("device_kind") == "cpu":
            raise ValueError(
                f"{path}: nothing is known of this CPU's speed: run rooflight calibrate on the machine that was "
                "sampled, then rooflight fit there"
            )
        return device_called(header.device, path)
    known = find_by_torch_name(header.device)
    if known is not None:
        return known.with_calibration(roofs)
    kind = "cuda" if header.environment.get("device_kind") == "cuda" else "cpu"
    return DeviceSpec(
        name=header.device, vendor="", architecture="", kind=kind, match=(header.device,), calibrated=roofs
    )


def _roofs(facts: Any, path: Path) -> Roofs:
    peaks: dict[str, dict[str, float]] = {"matrix": {}, "vector": {}}
    memory, launch_s, threads = [], None, None
    try:
        for name, figure in facts.items():
            unit, _, rest = name.partition(" ")
            if unit in peaks:
                peaks[unit][rest.removesuffix(" FLOP/s")] = float(figure)
            elif unit == "memory":
                memory.append(MemoryLevel(name=rest.removesuffix(" B/s"), bytes_per_s=float(figure)))
            elif unit == "launch":
                launch_s = float(figure)
            elif unit == "threads":
                threads = int(figure)
        return Roofs(
            source=f"calibration in {path.name}",
            matrix_flops_per_s=peaks["matrix"],
            vector_flops_per_s=peaks["vector"],
            memory=tuple(memory),
            launch_latency_s=launch_s,
            threads=threads,
        )
    except ValueError as error:
        raise ValueError(f"{path}, line 1: calibration: {error}") from None
