"""The sampler's own files, rows that are ok, and CSV files named and laid out as estimate-train-time's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from rooflight.costs.operators.estimate_train_time import OPERATORS, PARAMETERS
from rooflight.costs.operators.operator import PAIR, STEP, Operator
from rooflight.hardware.devices import calibrations, find_by_torch_name
from rooflight.hardware.devices.spec import DeviceSpec, MemoryLevel, Roofs
from rooflight.prediction.read.measured import (
    Floats,
    MeasuredTable,
    columns_of,
    device_called,
    operator_called,
    precision_called,
    sheet_of,
    sizes,
    table_of,
    times,
)
from rooflight.records.samples import SUFFIX, Header, Status, undisturbed_s
from rooflight.records.samples import read as read_store

_PRECISION: Final = r"(?:b?fp?|tf|b?float|int)\d\w*?"
_NAME: Final = re.compile(rf"(?P<device>[^_]+)_(?P<kernel>.+?)_(?P<precision>{_PRECISION})(?:_\d+_\d+)?")
_TIMES: Final = {("F_dur(us)", "B_dur(us)"): PAIR, ("dur(us)",): STEP, ("dur",): STEP}
_SETTINGS: Final = ("GPU", "Function")  # a file that holds models' settings, not times
_MICRO: Final = 1e-6


def is_named_table(path: Path, _: Sequence[str]) -> bool:
    """Whether a file is named as estimate-train-time names tables."""
    return _NAME.fullmatch(bare_name(path)) is not None


def read_named_table(path: Path) -> tuple[MeasuredTable]:
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


_OK = re.compile(rb'"status"\s*:\s*"ok"')


def is_sampled(path: Path) -> bool:
    """Whether a file is the sampler's, or one of estimate-train-time's names."""
    return path.suffix == SUFFIX or is_named_table(path, ())


def is_samples(path: Path, _: Sequence[str]) -> bool:
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


def read_samples(path: Path) -> tuple[MeasuredTable]:
    """The table of a file, with the roofs of the device it was measured on. A time is what the run took undisturbed."""
    header, rows = read_store(path)
    measured = [(line, key, row) for line, (key, row) in enumerate(rows.items(), start=2) if row.status is Status.OK]
    if not measured:
        raise ValueError(f"{path} has no row that was measured")
    lines = np.array([line for line, _, _ in measured], dtype=np.int64)
    seconds = np.full((len(measured), len(header.directions)), np.nan)
    for place, (line, _, row) in enumerate(measured):
        for column, direction in enumerate(header.directions):
            if not row.samples_s.get(direction):
                raise ValueError(f"{path}, line {line}: no samples of {direction}")
            seconds[place, column] = undisturbed_s(row.samples_s[direction])
    for column, direction in enumerate(header.directions):
        times(path, lines, direction, seconds[:, column])
    keys = np.array([key for _, key, _ in measured], dtype=np.float64)
    # a user's function does its own work, whatever its name: events of a profiler were its times
    operator = None if "targets" in header.timing else operator_of(header.operator)
    if operator is not None and header.directions != operator.directions:
        raise ValueError(f"{path}, line 1: {operator.name} is timed {' and '.join(operator.directions)}")
    table = table_of(
        operator,
        {name: sizes(path, lines, name, keys[:, place]) for place, name in enumerate(header.parameters)},
        kernel=header.kernel,
        source=path,
        device=_device(header, path, bounded=operator is not None),
        precision=precision_called(header.precision, path),
        seconds=seconds,
        directions=header.directions,
        unit_s=1.0,
        lines=lines,
        label=label_of(path),
        features=_features(header, path),
    )
    return (table,)


def _features(header: Header, path: Path) -> Floats | None:
    if (text := header.timing.get("features")) is None:
        return None
    try:
        powers = np.array(msgspec.json.decode(text, type=list[list[float]]), dtype=np.float64)
    except ValueError as error:
        raise ValueError(f"{path}, line 1: features: {error}") from None
    if powers.ndim != 2 or powers.shape[1] != len(header.columns) or not powers.size:
        raise ValueError(f"{path}, line 1: features that are not those of {', '.join(header.parameters)}")
    return powers


def _device(header: Header, path: Path, *, bounded: bool) -> DeviceSpec:
    # with the roofs that were measured there, if this machine does not keep them
    facts = header.calibration
    try:
        calibration = calibrations.load_for(header.environment)
    except ValueError:  # a broken calibration is not the table's matter
        calibration = None
    if calibration is not None:
        return calibrations.device_of(calibration).as_listed
    roofs = _roofs(facts, path) if facts else None
    if roofs is None:
        if header.environment.get("device_kind") == "cpu":
            if not bounded:  # nothing is bounded by roofs
                return DeviceSpec(name=header.device, vendor="", architecture="", kind="cpu", match=(header.device,))
            raise ValueError(
                f"{path}: nothing is known of this CPU's speed: run rooflight calibrate on the machine that was "
                "sampled, then rooflight fit there"
            )
        return device_called(header.device, path)
    known = find_by_torch_name(header.device)
    if known is not None:
        return known.with_calibration(roofs).as_listed
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
