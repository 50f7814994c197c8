"""Model: how much longer than its bound a kind of work takes: what each device taught, kept as arrays."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rooflight.devices.spec import DeviceSpec
from rooflight.prediction.facts import (
    Floats,
)
from rooflight.prediction.features import features_of, names_of, size_features, steady_features
from rooflight.prediction.floors import without_launch
from rooflight.prediction.packing import MOST_LOG, Learner, arrays_of, learner_from, trees_from
from rooflight.prediction.refinement import (
    AboutRefinement,
    Refinement,
    about_refinement,
    arrays_of_refinement,
    refinement_from,
)
from rooflight.prediction.trees import Trees
from rooflight.prediction.unseen_device import DEVICE_TRAITS, blended, device_traits, familiarity
from rooflight.records.quantity import count_of

SCHEMA: Final = "rooflight.model/4"
_SLACK: Final = 0.02  # of a feature's range: what lies no further outside counts as inside
_FAMILIAR: Final = 0.8
"""Of less familiar work an expert's own answer is not trusted alone: a size 11 % below the least that it was shown."""
_MOST_BYTES: Final = 1 << 28
_MOST_FIGURE: Final = 1e9  # in what is said of an expert
_MOST_SPREAD: Final = 3.0  # as a logarithm, of the size of a spread
Interval = tuple[float, float]
Mask = NDArray[np.bool_]


class _About(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What is kept of an expert beside its trees."""

    device: str
    traits: dict[str, float]
    rows: int
    low: list[float]
    high: list[float]
    inside: Interval
    outside: Interval
    error: float
    steady: bool  # whether there is a learner for larger work
    launch_s: float
    spread: Interval | None  # the ends of its spread


class _Version(msgspec.Struct):
    schema: str


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    schema: str
    key: str
    features: list[str]  # names, in the order of the experts' ranges
    unseen: Interval
    power: float
    experts: list[_About]
    refinements: list[AboutRefinement] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How far off an expert is, by features: ``size`` predicts the logarithm of what is missed, and ``ends`` are the
    5 % and 95 % quantiles of log(true / predicted) over that.
    """

    size: Trees
    ends: Interval

    def around(self, values: Floats) -> tuple[Floats, Floats]:
        """The ends of the 90 % interval around the prediction of rows of features [rows, features]."""
        size = np.exp(np.minimum(self.size.predict(values), _MOST_SPREAD))
        return self.ends[0] * size, self.ends[1] * size


@dataclass(frozen=True, slots=True, kw_only=True)
class Expert:
    """What the measurements of one device taught.

    ``low`` and ``high`` [features] are the ranges of the rows that it learned from. ``inside`` and ``outside`` are the
    5 % and 95 % quantiles of log(true / predicted) of held-out work like those rows, and of larger work. ``error`` is
    the mean absolute percentage error, held out, as a fraction. ``beyond`` is for larger work and sees
    ``steady_features`` only; None where ``main`` does better at that too. ``launch_s`` seconds of every time that it
    learned from are a launch (``launch_inside``). ``spread`` narrows and widens ``inside`` by features; None where the
    rows were too few to see by which.
    """

    device: str
    traits: Mapping[str, float]
    rows: int
    low: Floats
    high: Floats
    inside: Interval
    outside: Interval
    error: float
    main: Learner
    beyond: Learner | None
    launch_s: float = 0.0
    spread: Spread | None = None

    def around(self, known: Mask, values: Floats) -> tuple[Floats, Floats]:
        """The ends of the 90 % interval around its answers to rows of features [rows, features], of which some are like
        those that it learned from: by ``spread`` there, otherwise the same for all rows.
        """
        low, high = (np.full(len(values), end) for end in self.inside)
        if self.spread is not None:
            low, high = self.spread.around(values)
        further = np.minimum(low, self.outside[0]), np.maximum(high, self.outside[1])
        return np.where(known, low, further[0]), np.where(known, high, further[1])

    def predict(self, key: str, values: Floats) -> Floats:
        """log(time / bound) of rows of features [rows, features], never below 0."""
        larger = values[:, 0] > self.high[0] + self._slack[0]
        if self.beyond is None or not larger.any():
            return np.maximum(0.0, self.main.predict(values))
        answer = np.zeros(len(values))
        if not larger.all():
            answer[~larger] = self.main.predict(values[~larger])
        answer[larger] = self.beyond.predict(values[larger][:, list(steady_features(key))])
        return np.maximum(0.0, answer)

    def knows(self, key: str, values: Floats) -> Mask:
        """Which rows of features are like those that it learned from, by their sizes."""
        return within(key, self.low, self.high, values)

    @property
    def _slack(self) -> Floats:
        return _slack(self.low, self.high)


def _slack(low: Floats, high: Floats) -> Floats:
    return np.asarray(1e-9 + _SLACK * (high - low))


def within(key: str, low: Floats, high: Floats, values: Floats) -> Mask:
    """Which rows of features [rows, features] are within ranges [features], by their sizes."""
    sizes, slack = list(size_features(key)), _slack(low, high)
    some = values[:, sizes]
    return np.asarray(((some >= (low - slack)[sizes]) & (some <= (high + slack)[sizes])).all(axis=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """log(time / bound) of rows of work, with the ends of the 90 % interval, none below 0; ``known`` [rows]: whether
    such work, on this device, was among what was learned from.
    """

    slowdown: Floats
    low: Floats
    high: Floats
    known: Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Experts for one kind of work. ``unseen``: 5 % and 95 % quantiles of log(true / predicted) where a device had to
    be predicted from the others. ``power``: by which power of its watts a FLOP/s a device's arithmetic is slower than
    another's; 0 where power does not matter. ``refinements``: what rows of single devices taught on top of all that.
    Raises ValueError without experts, and for two experts of one device, or two refinements of one kind of its work.
    """

    key: str
    experts: tuple[Expert, ...]
    unseen: Interval
    power: float = 0.0
    refinements: tuple[Refinement, ...] = ()

    def __post_init__(self) -> None:
        refined = [(each.device, each.kind) for each in self.refinements]
        if not self.experts or len(set(self.devices)) < len(self.experts) or len(set(refined)) < len(refined):
            raise ValueError(f"the model of {self.key} has no expert, or two of one device: fit it again")

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that it learned from."""
        return tuple(expert.device for expert in self.experts)

    @property
    def rows(self) -> int:
        """How many times it was learned from."""
        return sum(expert.rows for expert in self.experts)

    @property
    def error(self) -> float:
        """The experts' mean error, by their rows."""
        return sum(expert.error * expert.rows for expert in self.experts) / self.rows

    def answer(self, facts: Floats, device: DeviceSpec, kind: str = "") -> Answer:
        """What to expect of rows of facts [rows, facts] on a device. ``kind``: of which kind of work, where the model
        answers for several.

        On a device without an expert, all experts are averaged in the logarithm; those of similar devices weigh
        more, and those that learned from such sizes. So they are for work that is strange to the device's own expert.
        What rows of the device taught on top of that is added.
        """
        values = features_of(self.key, facts, device)
        found = self.from_experts(values, device)
        refinement = self.refinement(device, kind)
        if refinement is None:
            return replace(found, low=np.maximum(0.0, found.low))
        apart = self.apart(values, found.slowdown) if refinement.compares else np.empty((len(values), 0))
        return self.refined(refinement, values, found, apart)

    def refinement(self, device: DeviceSpec, kind: str = "") -> Refinement | None:
        """What rows of this device taught on top of the experts: those of this kind of work, if there were any, or else
        those of all. None where there were none.
        """
        found = {each.kind: each for each in self.refinements if each.device == device.name}
        return found.get(kind) or found.get("")

    def apart(self, values: Floats, slowdown: Floats) -> Floats:
        """Each expert's answer less the model's, ``slowdown`` [rows], for rows of features [rows, features]:
        [rows, experts].
        """
        return np.stack([expert.predict(self.key, values) for expert in self.experts], axis=1) - slowdown[:, None]

    def refined(self, refinement: Refinement, values: Floats, base: Answer, apart: Floats) -> Answer:
        """The answer to rows of features [rows, features] with what was learned on top of ``base``, that of the experts
        alone. ``apart`` as the method of this name has it; not read unless the refinement ``compares``.
        """
        slowdown = np.maximum(0.0, base.slowdown + refinement.added(self.key, values, apart, base.slowdown))
        known = within(self.key, refinement.low, refinement.high, values)
        low, high = (
            np.where(known, near, far) for near, far in zip(refinement.inside, refinement.outside, strict=True)
        )
        return Answer(
            slowdown=slowdown, low=np.maximum(0.0, slowdown + low), high=slowdown + high, known=known | base.known
        )

    def from_experts(self, values: Floats, device: DeviceSpec) -> Answer:
        """What the experts alone answer of rows of features [rows, features]; ``low`` may be below 0."""
        expert = next((each for each in self.experts if each.device == device.name), None)
        if expert is None:
            slowdown = self.blend(values, device_traits(device))
            known = np.zeros(len(values), dtype=bool)
            low, high = (np.full(len(values), end) for end in self.unseen)
        else:
            slowdown, known = expert.predict(self.key, values), expert.knows(self.key, values)
            low, high = expert.around(known, values)
            strange = familiarity(self.key, expert, values) < _FAMILIAR
            if strange.any():
                if len(self.experts) > 1:
                    slowdown[strange] = self.blend(values[strange], expert.traits)
                low[strange], high[strange] = (
                    min(expert.outside[0], self.unseen[0]),
                    max(expert.outside[1], self.unseen[1]),
                )
        return Answer(slowdown=slowdown, low=slowdown + low, high=slowdown + high, known=known)

    def launches_s(self, facts: Floats, device: DeviceSpec, slowdown: Floats, kind: str = "") -> Floats:
        """Seconds of a launch in what is answered, ``slowdown`` [rows], for rows of facts [rows, facts] on a device,
        ``kind`` as ``answer`` has it. Where that is an average of experts, each answers without its launch, and the
        rest is the launch.
        """
        bound_s = facts[:, 0]
        time_s = bound_s * np.exp(slowdown)
        if (refinement := self.refinement(device, kind)) is not None:
            return np.asarray(time_s - without_launch(time_s, refinement.launch_s))
        if not any(expert.launch_s for expert in self.experts):
            return np.zeros(len(facts))
        values = features_of(self.key, facts, device)
        expert = next((each for each in self.experts if each.device == device.name), None)
        if expert is not None:
            return np.asarray(time_s - without_launch(time_s, expert.launch_s))
        answers = []
        for each in self.experts:
            taken_s = without_launch(bound_s * np.exp(each.predict(self.key, values)), each.launch_s)
            answers.append(np.log(np.maximum(1.0, taken_s / bound_s)))
        alone = blended(self.key, self.experts, answers, values, device_traits(device), self.power)
        return np.asarray(np.maximum(0.0, time_s - bound_s * np.exp(alone)))

    def blend(self, values: Floats, traits: Mapping[str, float]) -> Floats:
        """log(time / bound) of rows of features [rows, features] on a device with these traits, from all experts."""
        answers = [expert.predict(self.key, values) for expert in self.experts]
        return blended(self.key, self.experts, answers, values, traits, self.power)

    def encode(self) -> bytes:
        """The model as a numpy archive (.npz): JSON, and the arrays of its trees."""
        arrays: dict[str, NDArray[Any]] = {}
        abouts = []
        for number, expert in enumerate(self.experts):
            abouts.append(
                _About(
                    device=expert.device,
                    traits=dict(expert.traits),
                    rows=expert.rows,
                    low=expert.low.tolist(),
                    high=expert.high.tolist(),
                    inside=expert.inside,
                    outside=expert.outside,
                    error=expert.error,
                    steady=expert.beyond is not None,
                    launch_s=expert.launch_s,
                    spread=expert.spread.ends if expert.spread else None,
                )
            )
            spread = expert.spread.size if expert.spread else None
            for name, learner in (("main", expert.main), ("beyond", expert.beyond), ("spread", spread)):
                fields = arrays_of(learner) if learner else {}
                arrays |= {f"{number}.{name}.{field}": array for field, array in fields.items()}
        for number, refinement in enumerate(self.refinements):
            fields = arrays_of_refinement(refinement)
            arrays |= {f"refinement {number}.{field}": array for field, array in fields.items()}
        file = _File(
            schema=SCHEMA,
            key=self.key,
            features=list(names_of(self.key)),
            unseen=self.unseen,
            power=self.power,
            experts=abouts,
            refinements=[about_refinement(each) for each in self.refinements],
        )
        text = np.frombuffer(msgspec.json.encode(file), dtype=np.uint8)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, about=text, **arrays)  # type: ignore[arg-type]
        return buffer.getvalue()


def decode(content: bytes) -> Model:
    """A model from ``Model.encode``. Raises ValueError for anything else: arrays are checked, nothing is executed."""
    try:
        arrays = arrays_in(content)
        text = arrays["about"].tobytes()
        schema = msgspec.json.decode(text, type=_Version).schema
        file = msgspec.json.decode(text, type=_File) if schema == SCHEMA else None
    except Exception as error:  # whatever bytes that make no sense get out of zipfile, numpy and msgspec
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"not a model of rooflight fit ({why}): fit it again") from None
    if file is None:
        raise ValueError(f"a model of another version ({schema[:40]!r}): fit it again")
    if not file.key.isprintable():
        raise ValueError(f"a model of {file.key[:40]!r}, which is no kind of work: fit it again")
    _refuse_other_features(file)
    _refuse_backward(file.key, file.unseen)
    if not 0 <= file.power <= 1:
        raise ValueError(f"the model of {file.key} holds impossible numbers: fit it again")
    experts = tuple(_expert(file.key, number, each, arrays) for number, each in enumerate(file.experts))
    refinements = tuple(
        refinement_from(each, f"refinement {number}", len(names_of(file.key)), len(experts), arrays)
        for number, each in enumerate(file.refinements)
    )
    return Model(key=file.key, experts=experts, unseen=file.unseen, power=file.power, refinements=refinements)


def arrays_in(content: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name, unpacked no further than their headers allow and than a model can be."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > _MOST_BYTES:
            raise ValueError("it is larger than any model")
        # others unpack whatever they hold before anyone can stop them
        if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
            raise ValueError("its compression is unknown")
        return {member.filename.removesuffix(".npy"): _row_of_numbers(archive.read(member)) for member in members}


def _row_of_numbers(data: bytes) -> NDArray[Any]:
    file = io.BytesIO(data)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an array of another format")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.kind not in "iuf" or len(shape) != 1 or shape[0] * dtype.itemsize != len(data) - file.tell():
        raise ValueError("an array whose header does not fit its data")
    return np.frombuffer(data, dtype, offset=file.tell())


def _expert(key: str, number: int, about: _About, arrays: Mapping[str, NDArray[Any]]) -> Expert:
    count, steady = len(names_of(key)), len(steady_features(key))
    if len(about.low) != count or len(about.high) != count:
        raise ValueError(
            f"a model of {key} with {count_of(len(about.low), 'feature')} instead of {count}: fit it again"
        )
    figures = [*about.low, *about.high, about.rows, about.error, about.launch_s, *about.traits.values()]
    backward = any(low > high for low, high in zip(about.low, about.high, strict=True))
    _refuse_backward(key, about.inside, about.outside, *([about.spread] if about.spread else []))
    if (
        backward
        or about.rows < 1
        or about.launch_s < 0
        or not set(about.traits) <= set(DEVICE_TRAITS)
        or not all(map(_plausible, figures))
    ):
        raise ValueError(f"the model of {key} holds impossible numbers: fit it again")
    return Expert(
        device=about.device,
        traits=about.traits,
        rows=about.rows,
        low=np.array(about.low),
        high=np.array(about.high),
        inside=about.inside,
        outside=about.outside,
        error=about.error,
        main=learner_from(f"{number}.main", count, arrays),
        beyond=learner_from(f"{number}.beyond", steady, arrays) if about.steady else None,
        launch_s=about.launch_s,
        spread=Spread(size=trees_from(f"{number}.spread", count, arrays), ends=about.spread) if about.spread else None,
    )


def _refuse_other_features(file: _File) -> None:
    wanted = names_of(file.key)
    if tuple(file.features) != wanted:
        other = sorted(set(file.features) ^ set(wanted))
        named = f" ({', '.join(map(ascii, other[:3]))})" if other else ", or in another order"
        raise ValueError(f"a model of {file.key} by other features{named[:200]}: fit it again")


def _plausible(figure: float) -> bool:
    return abs(figure) < _MOST_FIGURE  # nor NaN


def _refuse_backward(key: str, *intervals: Interval) -> None:
    if not all(-MOST_LOG < low <= 0 <= high < MOST_LOG for low, high in intervals):
        raise ValueError(f"the model of {key} holds impossible numbers: fit it again")
