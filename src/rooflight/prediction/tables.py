"""Measured tables: the page's CSV files and the sampler's own, read into arrays in SI units."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rooflight.devices import calibrations, find_by_torch_name, get
from rooflight.devices.spec import DeviceSpec, MemoryLevel, Roofs
from rooflight.records.dtypes import dtype_name
from rooflight.sampling import registry
from rooflight.sampling.operator import PAIR, STEP, Operator
from rooflight.sampling.rows import Header, Status, middle_s
from rooflight.sampling.store import SUFFIX
from rooflight.sampling.store import read as read_store

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

_PRECISION: Final = r"(?:b?fp?|tf|b?float|int)\d\w*?"
_NAME: Final = re.compile(rf"(?P<device>[^_]+)_(?P<kernel>.+?)_(?P<precision>{_PRECISION})(?:_\d+_\d+)?")
_TIMES: Final = {("F_dur(us)", "B_dur(us)"): PAIR, ("dur(us)",): STEP, ("dur",): STEP}
_PARAMETERS: Final = {"shape": "elements", "GPUsPerNode": "gpus_per_node"}
_OPERATORS: Final = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}
_SETTINGS: Final = ("GPU", "Function")  # a file of the page that holds models' settings, not times
_MICRO: Final = 1e-6
_LARGEST: Final = 2.0**53  # beyond it a float no longer tells integers apart


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """The rows of one file.

    ``operator`` is the name of a registered operator where ``known``, otherwise the file's own; ``kernel`` is always
    the file's (``allreduce_large``). ``parameters`` are a known operator's, in its order, defaults filled in.
    ``shapes`` [rows, parameters]; ``seconds`` [rows, directions], positive; ``lines`` [rows] are the lines of
    ``source``, the first of which is 1.
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

    def kept(self, rows: Mask | Integers) -> Table:
        """Some rows: a mask of all, or their numbers."""
        return replace(self, shapes=self.shapes[rows], seconds=self.seconds[rows], lines=self.lines[rows])


def read(path: Path | str) -> tuple[Table, ...]:
    """The tables of a file, or of a folder and those inside it, in alphabetical order.

    Raises ValueError, one line with file and line, for what cannot be read, for unknown devices, for missing columns,
    ragged rows, shapes that are no integers and times that are not positive numbers; and for a folder without tables.
    """
    found, _ = find(path)
    return tuple(map(read_table, found))


def find(path: Path | str) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """The files under ``path`` that hold tables, and the CSV and JSON-lines files that do not.

    The CSV that the sampler writes beside its own file is not counted, as it holds the same rows. Raises ValueError
    where there is no table.
    """
    root = Path(path)
    if root.is_file():
        return (root,), ()
    if not root.is_dir():
        raise ValueError(f"there is no {root}: name a CSV file of samples, a {SUFFIX} file, or a folder of them")
    files = sorted(each for each in root.rglob("*") if each.suffix in (".csv", SUFFIX) and each.is_file())
    stores = {each.with_suffix("") for each in files if each.suffix == SUFFIX}
    files = [each for each in files if each.suffix == SUFFIX or each.with_suffix("") not in stores]
    tables = [each for each in files if each.suffix == SUFFIX or _NAME.fullmatch(each.stem)]
    if not tables:
        raise ValueError(f"{root} holds no samples: files are named GPU_operator_precision.csv")
    return tuple(tables), tuple(each for each in files if each not in tables)


def read_table(path: Path) -> Table:
    """The table of one file. Raises ValueError as ``read`` does."""
    return _stored(path) if path.suffix == SUFFIX else _written(path)


def one_device(tables: Iterable[Table]) -> DeviceSpec:
    """The device that all tables are of. Raises ValueError where there are several, or no table."""
    first: Table | None = None
    for table in tables:
        first = first or table
        if table.device.name != first.device.name:
            raise ValueError(
                f"{table.source} was measured on {table.device.name}, {first.source} on {first.device.name}: "
                "name files of one device"
            )
    if first is None:
        raise ValueError("no samples: name at least one table")
    return first.device


def device_called(label: str, path: Path) -> DeviceSpec:
    """The device of a name as files bear it, without blanks: from the catalog, or a calibrated one of this machine.

    Raises ValueError, naming ``path``, for one that nobody knows.
    """
    known = find_by_torch_name(label)
    if known is not None:
        return known
    for calibration in calibrations.saved():
        if _squeezed(calibration.device_name) == _squeezed(label):
            return calibrations.device_of(calibration)
    try:
        return get(label)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _written(path: Path) -> Table:
    """A CSV of the page."""
    named = _NAME.fullmatch(path.stem)
    if named is None:
        raise ValueError(f"{path.name} does not tell what it holds: name it GPU_operator_precision.csv")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            content = [(reader.line_num, values) for values in reader if any(value.strip() for value in values)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if not content:
        raise ValueError(f"{path}, line 1: no columns")
    columns = [name.strip() for name in content[0][1]]
    if tuple(columns[: len(_SETTINGS)]) == _SETTINGS:
        raise ValueError(f"{path} holds settings of models, not samples")
    times = next((names for names in _TIMES if tuple(columns[-len(names) :]) == names), None)
    if times is None:
        raise ValueError(f"{path}, line 1: no times: the last columns must be F_dur(us), B_dur(us) or dur(us)")
    if len(set(columns)) < len(columns):
        raise ValueError(f"{path}, line 1: a column stands there twice: {', '.join(columns)}")
    if len(content) == 1:
        raise ValueError(f"{path} has columns but no rows")
    lines = np.array([line for line, _ in content[1:]], dtype=np.int64)
    numbers = _numbers(path, columns, content[1:])
    count = len(columns) - len(times)
    operator = _operator(named["kernel"])
    parameters = tuple(_PARAMETERS.get(name, name) if operator else name for name in columns[:count])
    _refuse_times(path, lines, times, numbers[:, count:])
    return _table(
        operator,
        parameters=parameters,
        kernel=named["kernel"],
        device=device_called(named["device"], path),
        precision=_precision(named["precision"], path),
        shapes=_integers(path, lines, columns, numbers[:, :count]),
        seconds=numbers[:, count:] * _MICRO,
        directions=_TIMES[times],
        source=path,
        lines=lines,
    )


def _stored(path: Path) -> Table:
    """A file of the sampler: its rows that are ok, each with the page's statistic of its samples."""
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
            seconds[place, column] = middle_s(row.samples_s[direction])
    _refuse_times(path, lines, header.directions, seconds)
    return _table(
        _operator(header.operator),
        parameters=header.parameters,
        kernel=header.kernel,
        device=_stored_device(header, path),
        precision=_precision(header.precision, path),
        shapes=_integers(path, lines, header.parameters, np.array([key for _, key, _ in kept], dtype=np.float64)),
        seconds=seconds,
        directions=header.directions,
        source=path,
        lines=lines,
    )


def _table(operator: Operator | None, *, parameters: tuple[str, ...], shapes: Integers, **rest: Any) -> Table:
    """A table, its columns in the order of the operator's parameters. Raises ValueError for columns that it lacks."""
    if operator is None:
        return Table(operator=rest["kernel"], parameters=parameters, shapes=shapes, known=False, **rest)
    path, has = rest["source"], ", ".join(operator.parameters)
    if unknown := [name for name in parameters if name not in operator.parameters]:
        raise ValueError(f"{path}, line 1: {operator.name} has no parameter {', '.join(unknown)}: it has {has}")
    missing = [name for name in operator.parameters if name not in parameters]
    if needed := [name for name in missing if name not in operator.defaults]:
        raise ValueError(f"{path}, line 1: no column {', '.join(needed)}: {operator.name} has {has}")
    if rest["directions"] != operator.directions:
        raise ValueError(f"{path}, line 1: {operator.name} is timed {' and '.join(operator.directions)}")
    columns = [
        np.full(len(shapes), operator.defaults[name]) if name in missing else shapes[:, parameters.index(name)]
        for name in operator.parameters
    ]
    whole = np.stack(columns, axis=1).astype(np.int64)
    return Table(operator=operator.name, parameters=operator.parameters, shapes=whole, **rest)


def _numbers(path: Path, columns: Sequence[str], content: Sequence[tuple[int, list[str]]]) -> Floats:
    if ragged := next(((line, values) for line, values in content if len(values) != len(columns)), None):
        raise ValueError(f"{path}, line {ragged[0]}: {len(ragged[1])} values for {len(columns)} columns")
    try:
        return np.array([[float(value) for value in values] for _, values in content])
    except ValueError:
        pass
    for line, values in content:
        for name, value in zip(columns, values, strict=True):
            try:
                float(value)
            except ValueError:
                raise ValueError(f'{path}, line {line}: {name} is "{value[:40]}", which is no number') from None
    raise AssertionError


def _refuse_times(path: Path, lines: Integers, names: Sequence[str], times: Floats) -> None:
    row, column = _first(~(np.isfinite(times) & (times > 0)))
    if row is not None:
        raise ValueError(f"{path}, line {lines[row]}: {names[column]} is {times[row, column]:g}, which is no time")


def _integers(path: Path, lines: Integers, names: Sequence[str], values: Floats) -> Integers:
    row, column = _first(~(np.isfinite(values) & (values >= 0) & (values < _LARGEST) & (values == np.floor(values))))
    if row is not None:
        raise ValueError(f"{path}, line {lines[row]}: {names[column]} is {values[row, column]:g}, which is no size")
    return values.astype(np.int64)


def _first(bad: Mask) -> tuple[int | None, int]:
    found = np.argwhere(bad)
    return (int(found[0][0]), int(found[0][1])) if len(found) else (None, 0)


def _operator(kernel: str) -> Operator | None:
    """The registered operator of a kernel's name: ``allreduce_large`` is ``all_reduce``."""
    known = registry.names()
    base = kernel.removesuffix("_large")
    name = next((each for each in (kernel, base, _OPERATORS.get(base, base)) if each in known), None)
    return None if name is None else registry.find(name)


def _precision(name: str, path: Path) -> str:
    try:
        dtype_name(name)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return name


def _stored_device(header: Header, path: Path) -> DeviceSpec:
    """The device of a sampler's file, with the roofs that were measured there if this machine does not keep them."""
    facts = header.calibration
    try:
        kept = calibrations.load(facts["fingerprint"]) if "fingerprint" in facts else None
    except ValueError:  # a broken calibration is not the table's matter
        kept = None
    if kept is not None:
        return calibrations.device_of(kept)
    roofs = _roofs(facts, path) if facts else None
    if roofs is None:
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
    memory, launch_s = [], None
    try:
        for name, figure in facts.items():
            unit, _, rest = name.partition(" ")
            if unit in peaks:
                peaks[unit][rest.removesuffix(" FLOP/s")] = float(figure)
            elif unit == "memory":
                memory.append(MemoryLevel(name=rest.removesuffix(" B/s"), bytes_per_s=float(figure)))
            elif unit == "launch":
                launch_s = float(figure)
        return Roofs(
            source=f"calibration in {path.name}",
            matrix_flops_per_s=peaks["matrix"],
            vector_flops_per_s=peaks["vector"],
            memory=tuple(memory),
            launch_latency_s=launch_s,
        )
    except ValueError as error:
        raise ValueError(f"{path}, line 1: calibration: {error}") from None


def _squeezed(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", name.lower())
