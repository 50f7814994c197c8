"""Predictor: how long work would take, from models of how much longer than their bounds such ops took elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf, prod
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from rooflight.costs.operators import registry
from rooflight.costs.operators.operator import MOST_ELEMENTS, Operator, Shape, accepted
from rooflight.hardware.devices import get
from rooflight.hardware.devices.catalog import same_name
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.prediction.answers import Answers
from rooflight.prediction.model import functions as functions_of
from rooflight.prediction.model.files import check, decode, encode, read_manifest, write_manifest
from rooflight.prediction.model.functions import Function
from rooflight.prediction.model.model import Model
from rooflight.prediction.model.monotone import Batch, scattered
from rooflight.prediction.work.facts import (
    PRODUCT_KEY,
    FactRows,
    Facts,
    Floats,
    Integers,
    WorkKind,
    facts_of,
    facts_of_shapes,
    kind_of,
    product_facts,
)
from rooflight.prediction.work.features import CHANNELS_LAST, features_of
from rooflight.prediction.work.floors import kernels_s, small_s
from rooflight.prediction.work.layouts import in_default_layout, in_its_layout
from rooflight.prediction.work.precisions import as_measured, candidates, dtype_and_device
from rooflight.records.dtypes import tensor_dtype
from rooflight.records.estimate import Estimate
from rooflight.records.files import alone, write_whole
from rooflight.records.quantity import count_of
from rooflight.records.signature import OpSignature

SUFFIX: Final = ".model.npz"
SHIPPED: Final = Path(__file__).parent / "shipped"
"""The models that come with Rooflight."""


Read = TypeVar("Read", Model, Function)
Estimates = dict[tuple[OpSignature, ...], Estimate | None]


class Predictor(Answers):
    """Models by kind of work. ``Predictor()`` has those that come with Rooflight, ``Predictor.load(folder)`` those that
    ``save`` wrote, each read when it is first needed; ``Predictor.of(models)`` has these, ``Predictor.empty()`` none.

    Predictions never beat the bound, nor on a GPU its shortest kernel for each op. Work of an unknown kind takes
    twice the bound, within a factor of four, and its source is ``typical``.
    """

    def __init__(self) -> None:
        """Raises ValueError for an installation without all the models that come with Rooflight."""
        if not SHIPPED.is_dir():
            raise ValueError("no models came with Rooflight: name a folder that rooflight fit wrote")
        self._start(files=_files_in(SHIPPED))

    def _start(
        self, *, models: Iterable[Model] = (), functions: Iterable[Function] = (), files: Iterable[Path] = ()
    ) -> None:
        paths = list(files)
        self._models: dict[str, Model] = {model.key: model for model in models}
        # of models that were not read yet
        self._files = {path.name.removesuffix(SUFFIX): path for path in paths if path.name.endswith(SUFFIX)}
        self._manifests = {folder: read_manifest(folder, whole=True) for folder in {path.parent for path in paths}}
        written = (path for path in paths if path.name.endswith(functions_of.SUFFIX))
        self.functions = (*functions, *(self._checked(path, functions_of.decode) for path in written))
        self._lesser, self._better, self._outdone_by, self._surfaces, self._smallest = {}, {}, {}, {}, {}
        self.operator_dict: dict[Any, Predictor] = {}  # what predict_operator has learned

    def __repr__(self) -> str:
        """Without reading the files of models that were not needed yet."""
        return f"Predictor({count_of(len({*self._files, *map(file_name, self._models)}), 'model')})"

    @classmethod
    def load(cls, folder: Path | str) -> Predictor:
        """The models of a folder. Raises ValueError for a folder without models, or without one that its manifest
        lists; a file that is none raises it when it is needed.
        """
        if not isinstance(folder, str | PathLike):
            raise TypeError(f"load takes the folder that rooflight fit wrote, not {type(folder).__name__}")
        predictor = cls.__new__(cls)
        predictor._start(files=_files_in(Path(folder)))
        return predictor

    @classmethod
    def of(cls, models: Iterable[Model], functions: Iterable[Function] = ()) -> Predictor:
        """These models, and these functions of users. Raises ValueError for two models of one kind of work, TypeError
        for what is no model.
        """
        given = tuple(models) if isinstance(models, Iterable) else (models,)
        if others := [model for model in given if not isinstance(model, Model)]:
            raise TypeError(f"of takes models, not {type(others[0]).__name__}: Predictor.load(folder) reads them")
        keys = [model.key for model in given]
        if twice := {key for key in keys if keys.count(key) > 1}:
            raise ValueError(f"two models of {', '.join(sorted(twice))}: give one of each kind of work")
        predictor = cls.__new__(cls)
        predictor._start(models=given, functions=functions)
        return predictor

    @classmethod
    def empty(cls) -> Predictor:
        """No models: all work takes twice its bound."""
        return cls.of(())

    @property
    def models(self) -> Mapping[str, Model]:
        """All models by key. Raises ValueError for a file that is none."""
        for name in list(self._files):
            self._read(name)
        return self._models

    def model(self, key: str) -> Model | None:
        """The model of a kind of work, None if there is none. Raises ValueError for a file that is none."""
        name = file_name(key)
        if name in self._files:
            self._read(name)
        return self._models.get(key)

    def _read(self, name: str) -> None:
        path = self._files[name]
        model = self._checked(path, decode)
        if file_name(model.key) != name:
            raise ValueError(f"{path} holds the model of another kind of work: fit it again")
        del self._files[name]
        self._models[model.key] = model

    def _checked(self, path: Path, decoded: Callable[[bytes], Read]) -> Read:
        try:
            content = path.read_bytes()
            check(self._manifests[path.parent], path, content)
            return decoded(content)
        except (OSError, ValueError) as error:
            text = getattr(error, "strerror", None) or str(error)
            raise ValueError(text if text.startswith(str(path)) else f"{path}: {text}") from None

    def save(self, folder: Path | str, learned_from: Iterable[Path] = ()) -> Path:
        """Write one file per model and function, and a manifest of what they were learned from; the folder is made if
        it is not there. Returns it.
        """
        root = Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        with alone(root):
            write_manifest(root, write_models(root, self.models.values(), self.functions), learned_from)
        return root

    def left_by_others(self, folder: Path | str) -> int:
        """How many models in a folder are of kinds of work that this predictor does not have."""
        names = set(self._files) | {file_name(key) for key in self._models}
        return sum(path.name.removesuffix(SUFFIX) not in names for path in Path(folder).glob(f"*{SUFFIX}"))

    def predict(self, ops: OpSignature | Sequence[OpSignature], device: DeviceSpec | str) -> Estimate:
        """Seconds that an op, or ops run one after the other, take on a device. Raises ValueError for an unknown
        device, and for work without a cost: nothing bounds it.
        """
        wanted = (ops,) if isinstance(ops, OpSignature) else tuple(ops)
        found = self.predict_many([wanted], device)[0]
        if found is None:
            names = ", ".join(op.name for op in wanted) or "nothing"
            raise ValueError(f"{names}: no cost is known, so no time can be predicted")
        return found

    def predict_many(self, works: Sequence[Sequence[OpSignature]], device: DeviceSpec | str) -> list[Estimate | None]:
        """``predict`` of many pieces of work, each distinct one once; None where no cost is known, or nothing to do.
        Raises ValueError for an unknown device.
        """
        given = get(device) if isinstance(device, str) else device
        spec = given.as_listed
        found = self._estimates(works, spec)
        if spec is not given:
            found = {ops: each and each.with_bound(_bound_s(ops, given)) for ops, each in found.items()}
        return [found[tuple(ops)] for ops in works]

    def _estimates(
        self, works: Sequence[Sequence[OpSignature]], spec: DeviceSpec, *, at_most: bool = False
    ) -> Estimates:
        """Those by works, each distinct one once, no longer than on GPUs that this one outdoes in everything. For one
        that does: ``at_most``, where only what tells nothing of it counts as extrapolated.
        """
        distinct = dict.fromkeys(map(tuple, works))
        devices = candidates(spec)
        by_kind: dict[tuple[str, int, float], list[tuple[tuple[OpSignature, ...], Facts]]] = {}
        found: Estimates = dict(distinct)
        for ops in distinct:
            facts = facts_of(ops, spec)
            if facts is not None:
                known = as_measured(devices, partial(facts_of, ops))
                nodes = facts.values[-1] if kind_of(facts.key) is WorkKind.NETWORK else 0.0
                by_kind.setdefault((facts.key, devices.index(known), nodes), []).append((ops, facts))
        for (key, place, _), group in by_kind.items():
            known, values = devices[place], np.array([facts.values for _, facts in group])
            model, source = self._model_for(key, values, known)
            taught_layouts = model is not None and model.saw_both(CHANNELS_LAST, known)
            if not taught_layouts:
                values = in_default_layout(key, values)
            alone = self._alone(key, values, known)
            if at_most:
                alone["extrapolated"] &= ~self._within_measured(key, values, known)
            for row, (ops, _) in enumerate(group):
                estimate = Estimate(source=source, **{name: each[row].item() for name, each in alone.items()})
                found[ops] = estimate if taught_layouts else in_its_layout(estimate, ops, spec)
            launched = self._is_launched(key, values, known)
            unlike = [ops for (ops, _), each in zip(group, alone["extrapolated"], strict=True) if each]
            for lesser in self._outdone(key, values, spec) if unlike and not at_most else ():
                for ops, there in self._estimates(unlike, lesser, at_most=True).items():
                    own = found[ops]
                    if own is not None and there is not None and not there.extrapolated:
                        found[ops] = own.no_longer_than(there.on_device.time_s, launched=launched)
        return found

    def _alone(self, key: str, values: Floats, device: DeviceSpec) -> dict[str, Any]:
        """Estimates of works of facts [works, facts], an array [works] by field: beside those of a batch, the seconds
        of a launch in each, and of its shortest kernels.
        """
        batch = self._batch(key, values, device)
        launches_s = self._launches_s(key, values, device, batch)
        return {**batch.columns, "launch_s": launches_s, "kernels_s": kernels_s(key, values, device)}

    def _launches_s(self, key: str, values: Floats, device: DeviceSpec, batch: Batch) -> Floats:
        """Seconds of a launch in each of these estimates [works]."""
        model, _ = self._model_for(key, values, device)
        if model is None or kind_of(key) is WorkKind.NETWORK or not len(values):
            return np.zeros(len(values))
        launches_s = model.launches_s(values, device, np.log(batch.time_s / batch.bound_s), key)
        # what is left for the device is no shorter than its kernels; what a launch hides of them is unknown
        hidden = batch.extrapolated | (launches_s > 0)
        least_s = np.where(hidden, small_s(key, values, device), kernels_s(key, values, device))
        return np.asarray(np.clip(batch.time_s - least_s, 0.0, launches_s))

    def predict_products(
        self, m: Floats, n: Floats, k: Floats, dtype: str, device: DeviceSpec | str, *, batch: Floats | float = 1.0
    ) -> Batch:
        """``predict`` of many products [batch, m, k] @ [batch, k, n] at once, all arguments of the same length.

        Raises ValueError for an unknown device or dtype, for sizes below 1, and for a dtype without a peak there.
        """
        name, spec = dtype_and_device(dtype, get(device) if isinstance(device, str) else device)
        facts_on, listed = partial(product_facts, m, n, k, name, batch=batch), spec.as_listed
        known = as_measured(candidates(listed), lambda each: facts_on(each).tobytes())
        found = self._batch(PRODUCT_KEY, facts_on(known), known)
        return found if listed is spec else found.with_bound(facts_on(spec)[:, 0])

    def predict_shape(
        self, function: str, shape: Mapping[str, int] | Sequence[int], precision: str, device: DeviceSpec | str
    ) -> dict[str, Estimate]:
        """Seconds by direction ("fwd" and "bwd", or "step") of a function of yours that was sampled, or of an operator
        that can be. Raises ValueError for an unknown operator or device, and for a shape that cannot be.
        """
        if any(each.name == function for each in self.functions):
            return self._sampled(function, precision, device).predict(shape)
        operator = registry.find(function)
        whole = operator.shape(shape)
        refused = operator.refusal(whole)
        if refused is not None:
            raise ValueError(f"{function}: {refused}")
        dtype, spec = dtype_and_device(precision, get(device) if isinstance(device, str) else device)
        ops = {direction: operator.ops(whole, dtype, direction) for direction in operator.directions}
        tensors = (tensor for each in ops.values() for op in each for tensor in (*op.inputs, *op.outputs))
        if any(prod(tensor.shape) > MOST_ELEMENTS for tensor in tensors):
            raise ValueError(f"{function}: a tensor of more than 2**63 - 1 elements cannot be")
        return {direction: self.predict(each, spec) for direction, each in ops.items()}

    def operator(self, name: str) -> Operator | None:
        """The parameters of a user's function that was sampled; None of another name."""
        return next((each.operator for each in self.functions if each.name == name), None)

    def _sampled(self, name: str, precision: str, device: DeviceSpec | str) -> Function:
        mine = [each for each in self.functions if each.name == name]
        where, dtype = _called(device), tensor_dtype(precision)
        found = [each for each in mine if each.dtype == dtype and same_name(each.device, where)]
        if not found:
            known = ", ".join(f"{each.dtype} on {each.device}" for each in mine)
            raise ValueError(f"{name} was sampled in {known}, not in {dtype} on {where}, and its work is unknown")
        return found[0]

    def predict_shapes(
        self, function: str, shapes: Mapping[str, ArrayLike], precision: str, device: DeviceSpec | str
    ) -> dict[str, Batch]:
        """``predict_shape`` of many shapes at once, by direction: an array of integers for each parameter, or one
        integer for all shapes. NaN and extrapolated at shapes that cannot be, and where there is nothing to do.

        Raises ValueError for an unknown operator, parameter, dtype or device, for a parameter that is missing, and for
        what are not integers.
        """
        operator = registry.find(function)
        dtype, spec = dtype_and_device(precision, get(device) if isinstance(device, str) else device)
        listed = spec.as_listed
        columns = _columns(operator, shapes)
        taken = accepted(operator, columns)
        count, columns = len(next(iter(columns.values()))), {name: each[taken] for name, each in columns.items()}
        batches = {}
        for direction in operator.directions:
            found = self._of_shapes(operator, columns, dtype, direction, listed)
            batches[direction] = scattered(count, [(taken, found)])
            if listed is not spec:
                bound_s = np.full(count, np.nan)
                for each in facts_of_shapes(operator, columns, dtype, direction, spec):
                    bound_s[taken[each.rows]] = each.values[:, 0]
                batches[direction] = batches[direction].with_bound(bound_s)
        return batches

    def _of_shapes(
        self,
        operator: Operator,
        columns: Mapping[str, Integers],
        dtype: str,
        direction: str,
        device: DeviceSpec,
        *,
        at_most: bool = False,
    ) -> Batch:
        """As ``_estimates``, of shapes that an operator takes; ``at_most`` of what devices take, without launches."""
        facts_on, parts = partial(facts_of_shapes, operator, columns, dtype, direction), []
        known = as_measured(candidates(device), partial(_compared, facts_on))
        for each in facts_on(known):
            found = self._batch(each.key, each.values, known)
            if at_most:
                alone_s = found.time_s - self._launches_s(each.key, each.values, known, found)
                told = ~found.extrapolated | self._within_measured(each.key, each.values, known)
                found = replace(found, time_s=np.maximum(found.bound_s, alone_s), extrapolated=~told)
            rows = np.flatnonzero(found.extrapolated & (not at_most))
            some, most_s = {name: values[each.rows[rows]] for name, values in columns.items()}, np.full(len(rows), inf)
            for lesser in self._outdone(each.key, each.values, device) if len(rows) else ():
                there = self._of_shapes(operator, some, dtype, direction, lesser, at_most=True)
                most_s = np.minimum(most_s, np.where(there.extrapolated, inf, there.time_s))
            rows, most_s = rows[most_s < inf], np.maximum(found.bound_s[rows], most_s)[most_s < inf]
            launches_s = self._launches_s(each.key, each.values[rows], known, found.of(rows))
            launched = self._is_launched(each.key, each.values, known)
            found = found.no_longer_than(rows, most_s, launches_s, launched=launched)
            parts.append((each.rows, found))
        return scattered(len(next(iter(columns.values()))), parts)

    def views(self, operator: Operator, shapes: Sequence[Shape], dtype: str, device: DeviceSpec) -> dict[str, Floats]:
        """What each expert answers of shapes, less what the model does, so that rows where they differ tell which is
        right: logarithms [shapes] by expert, kind of work and direction; 0 for shapes that are other work. None where
        no model knows the work, and on a device with an expert of its own. ``dtype`` is torch's name.
        """
        columns = {name: np.array([shape[name] for shape in shapes], dtype=np.int64) for name in operator.parameters}
        found: dict[str, Floats] = {}
        device = device.as_listed
        for direction in operator.directions:
            for rows in facts_of_shapes(operator, columns, dtype, direction, device):
                model, _ = self._model_for(rows.key, rows.values, device)
                if model is None or device.name in model.devices:
                    continue
                values = features_of(model.key, rows.values, device)
                apart = model.apart(values, model.unrefined(rows.values, values, device).slowdown)
                for expert, column in zip(model.devices, apart.T, strict=True):
                    name = f"{expert}, {rows.key}, {direction}"
                    found.setdefault(name, np.zeros(len(shapes)))[rows.rows] = column
        return found

    def predict_operator(
        self,
        gpu_name: str,
        function: str,
        precision: str,
        propagation: str,
        shape: Sequence[int],
        model_dict: MutableMapping[Any, Predictor] | None = None,
        config_folder: Path | str | None = None,  # noqa: ARG002 - estimate-train-time's models have settings, these need none
        data_folder: Path | str | None = None,
    ) -> float:
        """Microseconds of an operator on ``gpu_name``, as estimate-train-time's ``Predictor`` has it.

        ``propagation`` is "fwd", "bwd" or, for operators without a backward, "dur" or "step". With ``data_folder``, the
        model is learned from the operator's samples there when it is first needed, without those that lint flags, and
        kept in ``model_dict``; without it, this predictor's models answer. Raises ValueError for an unknown operator,
        device or direction, for a shape that cannot be, and for a folder with no or too few samples of the operator.
        """
        from rooflight.prediction.read import device_called

        chosen = self
        if data_folder is not None:
            learned = self.operator_dict if model_dict is None else model_dict
            wanted = (gpu_name, function, precision)
            if wanted not in learned:
                learned[wanted] = _learned(data_folder, function, gpu_name, precision)
            chosen = learned[wanted]
        device = gpu_name if chosen.operator(function) else device_called(gpu_name, Path(function))
        estimates = chosen.predict_shape(function, shape, precision, device)
        propagation = "step" if propagation == "dur" else propagation  # as samples' columns call it: dur(us)
        if propagation not in estimates:
            raise ValueError(f'{function} has no propagation "{propagation}": it has {", ".join(estimates)}')
        return estimates[propagation].time_s * 1e6


def _learned(folder: Path | str, function: str, gpu_name: str, precision: str) -> Predictor:
    from rooflight.prediction.fit.fitting import learn_all, read_for_fit
    from rooflight.prediction.fit.functions import learn_functions
    from rooflight.prediction.lint.findings import left_out
    from rooflight.prediction.read import device_called, find

    dtype, where = tensor_dtype(precision), _called(gpu_name)
    paths = [path for path in find(folder)[0] if f"_{function}_" in path.name]  # of others, too, whose names end so
    read = read_for_fit(paths)
    if not any(same_name(table.device.name, where) for file in read for table in file.tables):
        device_called(gpu_name, Path(folder))
    files = [
        file
        for file in read
        if any(function in (table.kernel, table.operator) and table.dtype == dtype for table in file.tables)
    ]
    tables = [each for file in files for each in file.tables if same_name(each.device.name, where)]
    functions, few = learn_functions(tables, left_out(finding for file in files for finding in file.findings))
    shown = [each for file in files for each in file.shown if each.device.name == where]
    if not (shown or functions or few):
        raise ValueError(f"{folder} has no samples of {function} in {precision} on {gpu_name}: run rooflight sample")
    models = learn_all(shown).models
    if not (models or functions):
        raise ValueError(f"{folder} has too few samples of {function} in {precision} on {gpu_name}: sample more")
    return Predictor.of(models, functions)


def _called(device: DeviceSpec | str) -> str:
    """A device's name; as it is given, of one that is unknown, as a CPU without a calibration is."""
    if isinstance(device, DeviceSpec):
        return device.name
    try:
        return get(device).name
    except ValueError:
        return device


def write_models(folder: Path, models: Iterable[Model], functions: Iterable[Function]) -> dict[str, str]:
    """Write a file of each model and function into a folder. Returns what each file is of, by its name."""
    written = [(model.key, SUFFIX, encode(model)) for model in models]
    written += [(each.place, functions_of.SUFFIX, functions_of.encode(each)) for each in functions]
    for key, suffix, content in written:
        write_whole(folder / f"{file_name(key)}{suffix}", content)
    return {f"{file_name(key)}{suffix}": key for key, suffix, _ in written}


def files_in(folder: Path) -> list[Path]:
    """The files of a folder's models and functions, in order of their names."""
    return sorted(path for suffix in (SUFFIX, functions_of.SUFFIX) for path in folder.glob(f"*{suffix}"))


def _files_in(folder: Path) -> list[Path]:
    files = files_in(folder)
    if not files:
        raise ValueError(f"{folder} holds no models: make some with rooflight fit DATA --out {folder}")
    return files


def _bound_s(ops: Sequence[OpSignature], device: DeviceSpec) -> float:
    facts = facts_of(ops, device)
    return facts.bound_s if facts else 0.0


def _columns(operator: Operator, shapes: Mapping[str, ArrayLike]) -> dict[str, Integers]:
    given = {name: np.atleast_1d(np.asarray(values)) for name, values in shapes.items()}
    if odd := [name for name, values in given.items() if values.dtype.kind not in "iu" and values.size]:
        raise ValueError(f"{operator.name}: {', '.join(odd)} must be integers")
    lengths = {name: values.shape for name, values in given.items() if values.shape != (1,)}
    if len(set(lengths.values())) > 1 or any(len(shape) > 1 for shape in lengths.values()):
        found = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in lengths.items())
        raise ValueError(
            f"{operator.name}: shape mismatch: {found}: give each parameter a list with a value for each shape"
        )
    whole = {
        name: given.get(name, np.array([value])) for name, value in operator.shape(dict.fromkeys(given, 1)).items()
    }
    return {
        name: np.asarray(values, dtype=np.int64)
        for name, values in zip(whole, np.broadcast_arrays(*whole.values()), strict=True)
    }


def _compared(facts_on: Callable[[DeviceSpec], Sequence[FactRows]], device: DeviceSpec) -> list[tuple[str, bytes]]:
    return [(each.key, each.values.tobytes()) for each in facts_on(device)]


def file_name(key: str) -> str:
    """A name for a file, from a key made of op names."""
    from hashlib import sha256

    plain = "".join(letter if letter.isalnum() or letter in "_-" else "-" for letter in key.replace("aten::", ""))
    return f"{plain[:60]}-{sha256(key.encode()).hexdigest()[:8]}"
