"""Predictor: how long work would take, from models of how much longer than their bounds such ops took elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence, Set
from math import exp, log
from pathlib import Path
from typing import Any, Final

import numpy as np

from rooflight.devices import get
from rooflight.devices.spec import DeviceSpec
from rooflight.prediction.features import Features, features_of
from rooflight.prediction.lint import Finding, lint
from rooflight.prediction.model import LEAST_ROWS, Model, decode, learn
from rooflight.prediction.tables import Table, device_called, find, read_table
from rooflight.records.estimate import Estimate, Source
from rooflight.records.signature import OpSignature
from rooflight.sampling import registry
from rooflight.sampling.operator import PAIR

SUFFIX: Final = ".model.json"
TYPICAL_SLOWDOWN: Final = log(2.0)
"""log(time / bound) of work that no model knows: half the speed of light, as roofline studies commonly find."""
TYPICAL_SPREAD: Final = log(4.0)
_WIDER: Final = 2.0  # than what was missed on the largest fifth, for what lies outside of all that was shown
UNSEEN_DEVICE_SPREAD: Final = log(1.5)
"""What an interval widens by on a device that no row was measured on."""


class Predictor:
    """Models by key. ``Predictor.load(folder)`` has those that ``save`` wrote, each read when it is first needed.

    Predictions never beat the bound. Work of an unknown kind takes the bound at half the speed of light, within a
    factor of four, and says so.
    """

    def __init__(self, models: Iterable[Model] = ()) -> None:
        self._models: dict[str, Model] = {model.key: model for model in models}
        self._files: dict[str, Path] = {}  # of models not read yet, by file name without suffix
        self.operator_dict: dict[Any, Predictor] = {}  # what predict_operator has learned

    @classmethod
    def load(cls, folder: Path | str) -> Predictor:
        """Raises ValueError for a folder without models; a file that is none raises it when it is needed."""
        root = Path(folder)
        files = sorted(root.glob(f"*{SUFFIX}")) if root.is_dir() else []
        if not files:
            raise ValueError(f"{root} holds no models: make some with rooflight fit DATA --out {root}")
        predictor = cls()
        predictor._files = {path.name.removesuffix(SUFFIX): path for path in files}
        return predictor

    @property
    def models(self) -> Mapping[str, Model]:
        """All models by key. Raises ValueError for a file that is none."""
        for name in list(self._files):
            self._read(name)
        return self._models

    def model(self, key: str) -> Model | None:
        """The model of a kind of work, None if there is none. Raises ValueError for a file that is none."""
        name = _file_name(key)
        if name in self._files:
            self._read(name)
        return self._models.get(key)

    def _read(self, name: str) -> None:
        path = self._files[name]
        try:
            model = decode(path.read_bytes())
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        if _file_name(model.key) != name:
            raise ValueError(f"{path} holds the model of another kind of work: fit it again")
        del self._files[name]
        self._models[model.key] = model

    def save(self, folder: Path | str) -> Path:
        """Write one file a model; the folder is made if it is not there. Returns it."""
        root = Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        for model in self.models.values():
            path = root / f"{_file_name(model.key)}{SUFFIX}"
            temporary = path.with_suffix(".part")
            temporary.write_bytes(model.encode())
            temporary.replace(path)
        return root

    def predict(self, ops: OpSignature | Sequence[OpSignature], device: DeviceSpec | str) -> Estimate:
        """Seconds that an op, or ops run one after the other, take on a device. Raises ValueError for an unknown
        device, and for work without a cost: nothing bounds it.
        """
        wanted = (ops,) if isinstance(ops, OpSignature) else tuple(ops)
        spec = get(device) if isinstance(device, str) else device
        features = features_of(wanted, spec)
        if features is None:
            names = ", ".join(op.name for op in wanted) or "nothing"
            raise ValueError(f"{names}: no cost is known, so no time can be predicted")
        return self._estimate(features, spec.name)

    def predict_shape(
        self, function: str, shape: Mapping[str, int] | Sequence[int], precision: str, device: DeviceSpec | str
    ) -> dict[str, Estimate]:
        """Seconds by direction ("fwd" and "bwd", or "step") of an operator that can be sampled. Raises ValueError for
        an unknown operator or device, and for a shape that cannot be.
        """
        from rooflight.records.dtypes import dtype_name

        operator = registry.find(function)
        whole = operator.shape(shape)
        refused = operator.refusal(whole)
        if refused is not None:
            raise ValueError(f"{function}: {refused}")
        work = operator.work(whole, dtype_name(precision))
        halves = (work.forward, work.backward) if operator.directions == PAIR else (work.forward,)
        return {
            direction: self.predict(half, device) for direction, half in zip(operator.directions, halves, strict=True)
        }

    def predict_operator(
        self,
        *,
        gpu_name: str,
        function: str,
        precision: str,
        propagation: str,
        shape: Sequence[int],
        model_dict: MutableMapping[Any, Predictor] | None = None,
        config_folder: Path | str | None = None,  # noqa: ARG002 - the page's models had settings, ours need none
        data_folder: Path | str | None = None,
    ) -> float:
        """Microseconds of an operator on ``gpu_name``, as estimate-train-time's ``Predictor`` has it.

        ``propagation`` is "fwd", "bwd" or, for what goes one way, "step". With ``data_folder``, the model is learned
        from the operator's samples there when it is first needed, without those that lint flags, and kept in
        ``model_dict``; without, this predictor's models serve. Raises ValueError for an unknown operator, device or
        direction, for a shape that cannot be, and for a folder without samples of the operator.
        """
        chosen = self
        if data_folder is not None:
            kept = self.operator_dict if model_dict is None else model_dict
            wanted = (gpu_name, function, precision)
            if wanted not in kept:
                kept[wanted] = _learned(data_folder, function, gpu_name, precision)
            chosen = kept[wanted]
        estimates = chosen.predict_shape(function, shape, precision, device_called(gpu_name, Path(function)))
        if propagation not in estimates:
            raise ValueError(f'{function} has no propagation "{propagation}": it has {", ".join(estimates)}')
        return estimates[propagation].time_s * 1e6

    def _estimate(self, features: Features, device: str) -> Estimate:
        model = self.model(features.key)
        if model is None:
            slowdown, known, source = TYPICAL_SLOWDOWN, False, Source.TYPICAL
            low, high = -TYPICAL_SPREAD, TYPICAL_SPREAD
        else:
            slowdown = float(model.predict(np.array([features.values]))[0])
            known, source = model.knows(features.values, device), Source.REGRESSED
            low, high = model.inside if known else (_WIDER * model.outside[0], _WIDER * model.outside[1])
            if device not in model.devices:
                low, high = low - UNSEEN_DEVICE_SPREAD, high + UNSEEN_DEVICE_SPREAD
        bound_s = features.bound_s
        return Estimate(
            time_s=bound_s * exp(slowdown),
            low_s=bound_s * exp(max(0.0, slowdown + low)),
            high_s=bound_s * exp(slowdown + high),
            bound_s=bound_s,
            source=source,
            extrapolated=not known,
        )


def fit(
    tables: Iterable[Table], findings: Iterable[Finding] = (), progress: Callable[[str], None] = lambda _: None
) -> tuple[Predictor, dict[str, int]]:
    """Models from measured tables, one for each kind of work of which there are enough rows, without the times that
    ``findings`` flag. Also returns the kinds with too few rows, and how many those have. Collectives, and operators
    that are not registered, are passed over.
    """
    flagged = {(finding.source, finding.line, finding.direction) for finding in findings}
    values: dict[str, list[tuple[float, ...]]] = {}
    slowdowns: dict[str, list[float]] = {}
    devices: dict[str, list[str]] = {}
    for table in tables:
        progress(f"costing {table.source.name}")
        for features, seconds in _halves(table, flagged):
            values.setdefault(features.key, []).append(features.values)
            slowdowns.setdefault(features.key, []).append(max(0.0, log(seconds / features.bound_s)))
            devices.setdefault(features.key, []).append(table.device.name)
    models = []
    for key in sorted(key for key, rows in values.items() if len(rows) >= LEAST_ROWS):
        progress(f"learning {key} from {len(values[key])} times")
        models.append(learn(key, np.array(values[key]), np.array(slowdowns[key]), devices[key]))
    return Predictor(models), {key: len(rows) for key, rows in values.items() if len(rows) < LEAST_ROWS}


def _learned(folder: Path | str, function: str, gpu_name: str, precision: str) -> Predictor:
    """What the samples of one operator teach."""
    device = device_called(gpu_name, Path(folder))
    paths = [path for path in find(folder)[0] if f"_{function}_{precision}" in path.name]
    tables = [table for table in map(read_table, paths) if table.device.name == device.name]
    if not tables:
        raise ValueError(f"{folder} has no samples of {function} in {precision} on {gpu_name}: rooflight sample them")
    return fit(tables, lint(tables))[0]


def _halves(table: Table, flagged: Set[tuple[Path, int | None, str]]) -> Iterable[tuple[Features, float]]:
    """Each direction of each row of a table that is not flagged, with the seconds it took."""
    if not table.known:
        return
    operator = registry.find(table.operator)
    if operator.ranks:
        return
    for row in range(len(table)):
        shape = table.shape(row)
        if operator.refusal(shape) is not None:
            continue
        work = operator.work(shape, table.dtype)
        halves = zip(table.directions, (work.forward, work.backward), table.seconds[row].tolist(), strict=False)
        for direction, half, seconds in halves:
            if not half or not np.isfinite(seconds) or (table.source, int(table.lines[row]), direction) in flagged:
                continue
            features = features_of(half, table.device)
            if features is not None:
                yield features, seconds


def _file_name(key: str) -> str:
    """A name for a file, from a key made of op names."""
    from hashlib import sha256

    plain = "".join(letter if letter.isalnum() or letter in "_-" else "-" for letter in key.replace("aten::", ""))
    return f"{plain[:60]}-{sha256(key.encode()).hexdigest()[:8]}"
