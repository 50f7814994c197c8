"""estimate-train-time's YAML files: read, written, and the user's function that they may name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from rooflight.costs.operators import registry
from rooflight.costs.operators.estimate_train_time import OPERATORS, PARAMETERS, TIMES, short_precision
from rooflight.costs.operators.operator import Operator, Prepared, Shape, Work
from rooflight.costs.operators.sizes import Progression, Size
from rooflight.records.files import write_whole
from rooflight.records.package import load_function, load_module
from rooflight.records.quantity import count_of
from rooflight.sampling.event_times import Target
from rooflight.sampling.sweeps import Grid, small_shapes

ENCODER: Final = ("mp", "b", "h", "l", "dim")
"""Columns of a sweep over encoders, which a shape transform turns into what the function takes."""
_TRANSFORMS: Final = "encoder_config_to_layer_input.py"
_FEATURES: Final = "layer_input_to_predictor_input.py"
_MOST_TRIED: Final = 64
_SAME: Final = 1e-4
_SUFFIX: Final = ".py"


def module_file(name: str, folder: Path) -> Path | None:
    """The user's file that ``module_name`` means: a path, or a module beside the YAML; None where there is none.

    Raises ValueError for a path that leads to no file.
    """
    if name.endswith(_SUFFIX):
        path = folder / name
        if not path.is_file():
            raise ValueError(f"module_name {name}: there is no {path}")
        return path
    parts = name.split(".")
    path = folder.joinpath(*parts).with_suffix(_SUFFIX) if all(part.isidentifier() for part in parts) else folder
    return path if path.is_file() else None


def function_operator(path: Path, name: str, parameters: Sequence[str], directions: tuple[str, ...]) -> Operator:
    """An operator that calls a user's function with the values of its parameters, the short precision and the device.

    Its work is unknown, so nothing bounds it: it is predicted by its parameters alone. ``device_num`` is the GPU's
    number, ``"cpu"`` on a CPU: torch's ``device=device_num`` takes either. A sweep over an encoder's columns goes
    through the function of the same name in ``encoder_config_to_layer_input.py``, where that lies beside the file.

    Raises ValueError for a file that cannot be run or has no such function.
    """
    function = load_function(path, name)
    transform = _layer_input(path, name, parameters)

    def prepare(torch: Any, shape: Shape, dtype: str, device: str) -> Prepared:  # noqa: ARG001 - the function's matter
        values = transform(list(shape.values()))
        _, _, number = device.partition(":")
        device_num = device if device == "cpu" else int(number or 0)
        return Prepared(forward=lambda: _call(function, values, short_precision(dtype), device_num))

    summary = (function.__doc__ or "").strip().partition("\n")[0]
    return Operator(
        name=name,
        summary=summary or f"{name} of {path.name}",
        sizes=dict.fromkeys(parameters, Size()),
        work=lambda shape, dtype: Work(forward=()),  # noqa: ARG005 - the work is unknown
        prepare=prepare,
        directions=directions,
    )


def _beside(path: Path, name: str, function: str) -> Callable[[list[int]], Sequence[float]] | None:
    beside = path.with_name(name)
    return getattr(load_module(beside), function, None) if beside.is_file() else None


def _layer_input(path: Path, name: str, parameters: Sequence[str]) -> Callable[[list[int]], list[int]]:
    transform = _beside(path, _TRANSFORMS, name) if tuple(parameters) == ENCODER else None
    return lambda values: values if transform is None else [int(value) for value in transform(values)]


def declared_features(path: Path, name: str, points: Grid) -> list[list[float]] | None:
    """The features that ``layer_input_to_predictor_input.py`` beside a user's file declares for a function, as powers
    of its parameters [features, parameters]: of ``[b * l, dim // mp]`` of mp, b, l and dim (0, 1, 1, 0) and
    (-1, 0, 0, 1). None where it declares none, or one that is no such product at the shapes of a sweep.
    """
    found = _beside(path, _FEATURES, name)
    if found is None or not points.size:
        return None
    layer_input = _layer_input(path, name, list(points[0]))

    shapes = [list(points[place].values()) for place in range(0, points.size, max(1, points.size // _MOST_TRIED))]
    try:
        features = np.array([found(layer_input(shape)) for shape in shapes], dtype=np.float64)
    except Exception as error:  # whatever a user's function raises
        raise ValueError(f"{path.with_name(_FEATURES)}: {name}: {type(error).__name__}: {error}") from error
    if features.ndim != 2 or not (features > 0).all():  # [shapes, features]
        return None
    sizes = np.column_stack([np.log(np.maximum(shapes, 0.5)), np.ones(len(shapes))])
    powers: Any = np.round(np.linalg.lstsq(sizes, np.log(features), rcond=None)[0], 6) + 0.0  # no -0
    return powers[:-1].T.tolist() if np.abs(sizes @ powers - np.log(features)).max() < _SAME else None


def _call(function: Callable[..., object], *arguments: object) -> None:
    """Call it. Raises what it raises, but RuntimeError for ``sys.exit``, which would end the sweep in silence."""
    try:
        function(*arguments)
    except SystemExit as stop:
        raise RuntimeError(f"it called sys.exit({'' if stop.code is None else repr(stop.code)})") from None


RUNS = ("get_all", "get_one", "get_profiler", "run_function")
KEYS = (
    *("module_name", "kernel_name", "function_name", "columns_name", "targets", "first_n_column"),
    *("starts", "steps", "ends", "operators", "warmup_shapes", "wait", "warmup", "active", "shapes", "run"),
)

_NEEDED = ("function_name", "columns_name", "starts", "steps", "ends", "operators")
_LEAST_ACTIVE = 6
_WAIT, _WARMUP, _ACTIVE = 2, 2, 10
_Count = Annotated[int, msgspec.Meta(ge=0)]
_WRONG_TARGETS = "targets must be a list of lists of names, one for each time"
_MOST_BYTES = 1 << 20
_KERNEL_NAME = re.compile(r"(?!\.)[\w.-]{1,100}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A sweep as a file of estimate-train-time describes it.

    ``kernel`` names the data files; ``columns`` the file's name of each parameter, in its order; ``shapes`` are what
    ``get_one``, ``get_profiler`` and ``run_function`` run, ``warmup_shape`` what runs before anything is timed,
    ``wait`` and ``warmup`` how often. ``targets`` are the profiler's events that each direction of a user's function
    consists of; the directions of our operators are timed apart, so theirs are only read. ``is_function``:
    ``operator`` calls the user's function, ``features`` are what ``declared_features`` finds of it.
    """

    operator: Operator
    is_function: bool
    features: list[list[float]] | None
    targets: tuple[Target, ...]
    kernel: str
    columns: tuple[tuple[str, str], ...]
    grid: Grid
    wait: int
    warmup: int
    active: int
    warmup_shape: Mapping[str, int] | None
    shapes: tuple[Mapping[str, int], ...]
    run: str


def load(path: Path) -> Config:
    """Read such a file. Raises ValueError, one line, for what it cannot mean."""
    import yaml

    try:
        text = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    if len(text) > _MOST_BYTES:
        raise ValueError(f"{path}: too large for a sweep")
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} has no keys: a sweep is a mapping")
    try:
        return parse(content, path.parent)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse(content: Mapping[str, Any], folder: Path) -> Config:
    """A sweep from the mapping of a file in ``folder``. A module of the user's there, if it is named, is run.

    Raises ValueError for unknown keys and for values that do not fit together.
    """
    if unknown := [str(key) for key in content if key not in KEYS]:
        raise ValueError(f"unknown key {', '.join(unknown)}: the keys are {', '.join(KEYS)}")
    if missing := [key for key in _NEEDED if key not in content]:
        raise ValueError(f"no {', '.join(missing)}")
    module = _value(content.get("module_name"), str | None, "module_name must be a name")
    file = module_file(module or "", folder)
    operator = _known(content, folder) if file is None else _user_function(content, file)
    columns = _columns(content, operator, PARAMETERS if file is None else {})
    run = str(content.get("run", "get_all"))
    if run not in RUNS:
        raise ValueError(f'run "{run}": use {", ".join(RUNS)}')
    swept = [name for _, name in columns if name in operator.sizes]
    count = _integer(content, "first_n_column", len(swept))
    if not 1 <= count <= len(swept):
        raise ValueError(f"first_n_column is {count}, but the number of columns to sweep is {len(swept)}")
    grid = _grid(content, operator, swept, count)
    active = _integer(content, "active", _ACTIVE)
    if active < _LEAST_ACTIVE:
        raise ValueError(f"active is {active}: at least {_LEAST_ACTIVE}, or no middle of the samples is left")
    return Config(
        operator=operator,
        is_function=file is not None,
        features=None if file is None else declared_features(file, operator.name, grid),
        targets=_value(content.get("targets") or (), tuple[Target, ...], _WRONG_TARGETS),
        kernel=_kernel(content, operator),
        columns=columns,
        grid=grid,
        wait=_integer(content, "wait", _WAIT),
        warmup=_integer(content, "warmup", _WARMUP),
        active=active,
        warmup_shape=next(iter(_shapes(content, "warmup_shapes", grid, swept, count)), None),
        shapes=_shapes(content, "shapes", grid, swept, count),
        run=run,
    )


def _known(content: Mapping[str, Any], folder: Path) -> Operator:
    function = _function_name(content)
    try:
        return registry.find(OPERATORS.get(function, function))
    except ValueError as error:
        module = content.get("module_name")
        raise ValueError(f"{error}; nor is there a {module}.py in {folder}" if module else str(error)) from None


def _function_name(content: Mapping[str, Any]) -> str:
    return str(_value(content["function_name"], str, "function_name must be a name"))


def _user_function(content: Mapping[str, Any], file: Path) -> Operator:
    names = _names(content)
    for directions, times in TIMES.items():
        if tuple(names[-len(times) :]) == times:
            return function_operator(file, _function_name(content), names[: -len(times)], directions)
    raise ValueError(f"columns_name must end in {' or '.join(', '.join(times) for times in TIMES.values())}")


def _names(content: Mapping[str, Any]) -> list[str]:
    names: list[str] = _value(content["columns_name"], list[str], "columns_name must be a list of names")
    if len(set(names)) < len(names):
        raise ValueError("columns_name has a name twice")
    return names


def _columns(content: Mapping[str, Any], operator: Operator, renamed: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    names = _names(content)
    wanted = TIMES[operator.directions]
    if tuple(names[-len(wanted) :]) != wanted:
        raise ValueError(f"columns_name must end in {', '.join(wanted)}, which {operator.name} has")
    columns = tuple((str(name), str(renamed.get(name, name))) for name in names[: -len(wanted)])
    if unknown := [name for name, parameter in columns if parameter not in operator.parameters]:
        raise ValueError(f"{operator.name} has no parameter {', '.join(unknown)}: {', '.join(operator.parameters)}")
    return columns


def _grid(content: Mapping[str, Any], operator: Operator, names: Sequence[str], count: int) -> Grid:
    lists = {key: _integers(content[key], key) for key in ("starts", "steps", "ends")}
    operators: Any = content["operators"]
    for key, values in [*lists.items(), ("operators", operators)]:
        if not isinstance(values, list) or not count <= len(values) <= len(names):
            found = len(values) if isinstance(values, list) else 0
            raise ValueError(f"{key} has {count_of(found, 'value')} for {count_of(count, 'column')}")
    axes = []
    for place, name in enumerate(names[:count]):
        try:
            start, step, end = (lists[key][place] for key in ("starts", "steps", "ends"))
            axes.append((name, Progression(start, step, end, operators[place])))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    # a file may have more columns than it sweeps: the rest stand still at their start
    fixed = tuple(zip(names[count:], lists["starts"][count:], strict=False))
    return Grid(operator=operator, axes=tuple(axes), fixed=fixed)


def _shapes(
    content: Mapping[str, Any], key: str, grid: Grid, names: Sequence[str], count: int
) -> tuple[Mapping[str, int], ...]:
    given = content.get(key)
    if given is None:
        return ()
    rows = given if isinstance(given, list) and given and isinstance(given[0], list) else [given]
    shapes = []
    for row in rows:
        values = _integers(row, key)
        if len(values) not in (count, len(names)):
            raise ValueError(
                f"{key} has {count_of(len(values), 'value')}: give {count}, one per column ({', '.join(names)})"
            )
        shapes.append({**dict(grid.fixed), **dict(zip(names, values, strict=False))})
    return tuple(shapes)


def _kernel(content: Mapping[str, Any], operator: Operator) -> str:
    """The part of the data files' names that names what was sampled: it must not lead out of their folder."""
    name = content.get("kernel_name", operator.name)
    if not isinstance(name, str) or not _KERNEL_NAME.fullmatch(name):
        raise ValueError(f"kernel_name {name!r} must be letters, digits, '.', '_' and '-', at most 100: it names files")
    return name


def _value(given: Any, kind: Any, wrong: str) -> Any:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError:
        raise ValueError(wrong) from None


def _integer(content: Mapping[str, Any], key: str, default: int) -> int:
    value = content.get(key, default)
    found: int = _value(value, _Count, f"{key} must be a whole number, not {value!r}")
    return found


def _integers(given: Any, key: str) -> list[int]:
    found: list[int] = _value(given, list[int], f"{key} must be a list of whole numbers")
    return found


FOLDERS: Final[Mapping[str, str]] = {"collect": "get_all", "test": "get_one", "profilers": "get_profiler"}
"""The folder of each kind of file, and its run mode."""


def write(operators: Sequence[Operator], out: Path) -> tuple[Path, ...]:
    """Write ``collect/``, ``test/`` and ``profilers/`` files of operators under ``out``. Returns their paths.

    Raises ValueError, and writes nothing, where a file with other content is there already.
    """
    texts = {
        out / folder / f"{operator.name}.yml": text(operator, folder) for folder in FOLDERS for operator in operators
    }
    for path, content in texts.items():
        if path.exists() and path.read_bytes() != content.encode():
            raise ValueError(f"{path} is there and differs: move it away or choose another --out")
    for path, content in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    return tuple(texts)


def text(operator: Operator, folder: str) -> str:
    """The content of an operator's file in one of ``FOLDERS``.

    ``collect`` sweeps the operator's full grid, ``test`` samples its small shapes, ``profilers`` traces the first of
    them.
    """
    sizes = tuple(operator.sizes)
    columns = [_their_name(name, PARAMETERS if operator.ranks else {}) for name in operator.parameters]
    axes = [size.collect for size in operator.sizes.values()]
    shapes = small_shapes(operator).values
    small = [[shape[name] for name in sizes] for shape in shapes if isinstance(shape, Mapping)]
    values: dict[str, object] = {
        "module_name": "rooflight.operators",
        "kernel_name": operator.name,
        "function_name": _their_name(operator.name, OPERATORS),
        "columns_name": [*columns, *TIMES[operator.directions]],
        "first_n_column": len(sizes),
        "starts": [axis.start for axis in axes],
        "steps": [axis.step for axis in axes],
        "ends": [axis.end for axis in axes],
        "operators": [axis.operator for axis in axes],
        "warmup_shapes": small[0],
        "wait": _WAIT,
        "warmup": _WARMUP,
        "active": _ACTIVE,
        "shapes": small if folder == "test" else small[0],
        "run": FOLDERS[folder],
    }
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in values.items()]
    lines.insert(list(values).index("starts"), f"  # {', '.join(sizes)}")
    example = f"# rooflight sample --config {folder}/{operator.name}.yml --precision bf16"
    return "\n".join((f"# {operator.summary}", example, "{", *lines, "}", ""))


def _their_name(name: str, renamed: Mapping[str, str]) -> str:
    return next((theirs for theirs, ours in renamed.items() if ours == name), name)
