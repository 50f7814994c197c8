"""Model: how much longer than its bound a kind of work takes: what each device taught, kept as arrays."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from rooflight.devices.spec import DeviceSpec
from rooflight.prediction.archives import arrays_in
from rooflight.prediction.beaten import least_slowdown
from rooflight.prediction.blocks import small_kernel_s, usual_slowdown
from rooflight.prediction.correction import AboutCorrection, Correction, about_correction, correction_from
from rooflight.prediction.facts import Floats
from rooflight.prediction.features import features_of, names_of, over_bound, size_features, steady_features
from rooflight.prediction.floors import with_launch, without_launch
from rooflight.prediction.packing import MOST_LOG, Learner, arrays_of, learner_from, trees_from
from rooflight.prediction.refinement import (
    AboutRefinement,
    Refinement,
    about_refinement,
    arrays_of_refinement,
    refinement_from,
)
from rooflight.prediction.trees import Trees
from rooflight.prediction.unseen_device import (
    DEVICE_TRAITS,
    averaged,
    blended,
    bound_elsewhere,
    device_traits,
    familiarity,
    likeness,
)
from rooflight.records.quantity import count_of

SCHEMA: Final = "rooflight.model/5"
_SLACK: Final = 0.02  # of a feature's range: what lies no further outside counts as inside
_FAMILIAR: Final = 0.8
"""Of less familiar work an expert's own answer is not trusted alone: a size 11 % below the least that it was shown."""
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
    floor_s: float
    spread: Interval | None  # the ends of its spread
    usual: bool


class _Version(msgspec.Struct):
    schema: str


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    schema: str
    key: str
    features: list[str]  # names, in the order of the experts' ranges
    unseen: Interval
    power: float
    experts: list[_About]
    corrections: list[AboutCorrection]
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
    learned from are a launch (``launch_inside``). ``floor_s``: each op takes so much beyond its bound however small it
    is; the learners answer log(time / (bound + ops x floor)), which varies little among small ops. ``spread`` narrows
    and widens ``inside`` by features; None where the rows were too few to see by which. ``usual``: its answers are to
    be added to ``usual_slowdown``.
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
    floor_s: float = 0.0
    spread: Spread | None = None
    usual: bool = False

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
        """log(time / bound) of rows of features [rows, features], below 0 where a cache is taken to hold the data; or
        what to add to the usual.
        """
        floors = over_bound(key, values, self.floor_s)
        larger = values[:, 0] > self.high[0] + self._slack[0]
        if self.beyond is None or not larger.any():
            return floors + self.main.predict(values)
        answer = np.zeros(len(values))
        if not larger.all():
            answer[~larger] = self.main.predict(values[~larger])
        answer[larger] = self.beyond.predict(values[larger][:, list(steady_features(key))])
        return floors + answer

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
    """log(time / bound) of rows of work, never below 0, with the ends of the 90 % interval; ``known`` [rows]: whether
    such work, on this device, was among what was learned from. ``low`` is below 0 where measured times may be faster
    than the bound (``beaten``).
    """

    slowdown: Floats
    low: Floats
    high: Floats
    known: Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Experts for one kind of work. ``unseen``: 5 % and 95 % quantiles of log(true / predicted) where a device had to
    be predicted from the others. ``power``: by which power of its watts a FLOP/s a device's arithmetic is slower than
    another's; 0 where power does not matter. ``corrections``: what few rows of single devices taught beside the
    experts; ``refinements``: what rows taught later, on top of all that. Raises ValueError without experts, and for two
    experts or corrections of one device, or two refinements of one kind of its work.
    """

    key: str
    experts: tuple[Expert, ...]
    unseen: Interval
    power: float = 0.0
    refinements: tuple[Refinement, ...] = ()
    corrections: tuple[Correction, ...] = ()

    def __post_init__(self) -> None:
        refined = [(each.device, each.kind) for each in self.refinements]
        named = (self.devices, refined, [each.device for each in self.corrections])
        if not self.experts or any(len(set(each)) < len(each) for each in named):
            raise ValueError(f"the model of {self.key} has no expert, or two of one device: fit it again")

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that it learned from."""
        return tuple(expert.device for expert in self.experts)

    @property
    def measured_devices(self) -> tuple[str, ...]:
        """The devices of which rows taught it anything."""
        return (*self.devices, *(each.device for each in self.corrections), *(each.device for each in self.refinements))

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
        found = self.unrefined(facts, values, device)
        if (refinement := self.refinement(device, kind)) is not None:
            apart = self.apart(values, found.slowdown) if refinement.compares else np.empty((len(values), 0))
            found = self.refined(refinement, values, found, apart)
        time, least = np.maximum(0.0, found.slowdown), least_slowdown(self.key, facts, device)
        return Answer(
            slowdown=time,
            low=np.minimum(time, np.maximum(least, found.low)),
            high=np.maximum(time, found.high),
            known=found.known,
        )

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
        alone, no further limited than that. ``apart`` as the method of this name has it; not read unless the refinement
        ``compares``.
        """
        slowdown = base.slowdown + refinement.added(self.key, values, apart, base.slowdown)
        known = within(self.key, refinement.low, refinement.high, values)
        low, high = (
            np.where(known, near, far) for near, far in zip(refinement.inside, refinement.outside, strict=True)
        )
        return Answer(slowdown=slowdown, low=slowdown + low, high=slowdown + high, known=known | base.known)

    def unrefined(self, facts: Floats, values: Floats, device: DeviceSpec) -> Answer:
        """What experts and corrections answer of rows of facts [rows, facts]; times may be below the bound. What the
        device's own expert knows is not corrected.
        """
        answer = self._of_experts(facts, values, device)
        correction = self.correction(device)
        if correction is None:
            return answer
        slowdown = answer.slowdown - self._launch_shares(facts, values, answer.slowdown, device)
        slowdown = slowdown + np.where(answer.known, 0.0, correction.predict(values))
        low, high = slowdown + answer.low - answer.slowdown, slowdown + answer.high - answer.slowdown
        near = correction.knows(values, size_features(self.key)) & ~answer.known
        low[near], high[near] = slowdown[near] + correction.inside[0], slowdown[near] + correction.inside[1]
        return Answer(slowdown=slowdown, low=low, high=high, known=answer.known | near)

    def correction(self, device: DeviceSpec) -> Correction | None:
        """What few rows of a device add, if anything."""
        return next((each for each in self.corrections if each.device == device.name), None)

    def expert(self, device: DeviceSpec) -> Expert | None:
        """That of a device, if there is one."""
        return next((each for each in self.experts if each.device == device.name), None)

    def uncorrected(self, facts: Floats, device: DeviceSpec) -> Floats:
        """log(time / bound) that is corrected on a device: on one without an expert, no launch is in it."""
        values = features_of(self.key, facts, device)
        slowdown = self._of_experts(facts, values, device).slowdown
        return slowdown - self._launch_shares(facts, values, slowdown, device)

    def _launch_shares(self, facts: Floats, values: Floats, slowdown: Floats, device: DeviceSpec) -> Floats:
        """By how much, as a logarithm, other devices' experts answer too much: launches, less a small kernel's time."""
        if self.expert(device) is not None:
            return np.zeros(len(slowdown))
        time_s = facts[:, 0] * np.exp(slowdown)
        launches_s = self._launches_of_others_s(facts, values, time_s, device)
        alone_s = np.maximum(time_s - launches_s, small_kernel_s(self.key, device))
        return slowdown - np.log(np.maximum(1.0, alone_s / facts[:, 0]))

    @property
    def usual(self) -> bool:
        """Whether its experts' answers are to be added to ``usual_slowdown``."""
        return all(expert.usual for expert in self.experts)

    def _of_experts(self, facts: Floats, values: Floats, device: DeviceSpec) -> Answer:
        expert = self.expert(device)
        launch_s = expert.launch_s if expert else 0.0
        usual = usual_slowdown(self.key, facts, device, launch_s) if self.usual else np.zeros(len(facts))
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
                    blend = self.blend(values[strange], expert.traits)
                    slowdown[strange] = self._with_launch_of(expert, facts[strange], values[strange], blend, device)
                low[strange], high[strange] = (
                    min(expert.outside[0], self.unseen[0]),
                    max(expert.outside[1], self.unseen[1]),
                )
        slowdown = usual + slowdown
        return Answer(slowdown=slowdown, low=slowdown + low, high=slowdown + high, known=known)

    def _with_launch_of(
        self, expert: Expert, facts: Floats, values: Floats, slowdown: Floats, device: DeviceSpec
    ) -> Floats:
        """What all experts answer, with this one's launch inside instead of theirs."""
        if self.usual:
            return slowdown
        bound_s = facts[:, 0]
        time_s = bound_s * np.exp(slowdown)
        alone_s = np.maximum(bound_s, time_s - self._launches_of_others_s(facts, values, time_s, device))
        return np.asarray(np.log(with_launch(alone_s, expert.launch_s) / bound_s))

    def launches_s(self, facts: Floats, device: DeviceSpec, slowdown: Floats, kind: str = "") -> Floats:
        """Seconds of a launch in what is answered, ``slowdown`` [rows], for rows of facts [rows, facts] on a device,
        ``kind`` as ``answer`` has it. Where that is an average of experts, each answers without its launch, and the
        rest is the launch.
        """
        time_s = facts[:, 0] * np.exp(slowdown)
        if (refinement := self.refinement(device, kind)) is not None:
            return np.asarray(time_s - without_launch(time_s, refinement.launch_s))
        expert = self.expert(device)
        if expert is not None:
            return np.asarray(time_s - without_launch(time_s, expert.launch_s))
        if self.correction(device) is not None:
            return np.zeros(len(facts))
        return self._launches_of_others_s(facts, features_of(self.key, facts, device), time_s, device)

    def _launches_of_others_s(self, facts: Floats, values: Floats, time_s: Floats, device: DeviceSpec) -> Floats:
        """Seconds of a launch in what experts of other devices answer, ``time_s`` [rows]."""
        if self.usual or not any(expert.launch_s for expert in self.experts):
            return np.zeros(len(facts))
        bound_s, answers = facts[:, 0], []
        for each in self.experts:
            there_s = bound_s * bound_elsewhere(self.key, values, device_traits(device), each.traits)
            taken_s = without_launch(there_s * np.exp(each.predict(self.key, values)), each.launch_s)
            answers.append(np.log(np.maximum(1.0, taken_s / there_s)))
        alone = blended(self.key, self.experts, answers, values, device_traits(device), self.power)
        return np.asarray(np.maximum(0.0, time_s - bound_s * np.exp(alone)))

    def likeness(self, facts: Floats, device: DeviceSpec) -> Floats:
        """How much the expert weighs that is most like a device and rows of facts [rows, facts], 1 at most."""
        values, traits = features_of(self.key, facts, device), device_traits(device)
        weights = [
            likeness(traits, each.traits, self.key) * familiarity(self.key, each, values) for each in self.experts
        ]
        return np.asarray(np.max(weights, axis=0))

    def blend(self, values: Floats, traits: Mapping[str, float]) -> Floats:
        """log(time / bound) of rows of features [rows, features] on a device with these traits, from all experts."""
        answers = [expert.predict(self.key, values) for expert in self.experts]
        if self.usual:
            return averaged(self.key, self.experts, answers, values, traits)
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
                    floor_s=expert.floor_s,
                    spread=expert.spread.ends if expert.spread else None,
                    usual=expert.usual,
                )
            )
            spread = expert.spread.size if expert.spread else None
            for name, learner in (("main", expert.main), ("beyond", expert.beyond), ("spread", spread)):
                fields = arrays_of(learner) if learner else {}
                arrays |= {f"{number}.{name}.{field}": array for field, array in fields.items()}
        for number, correction in enumerate(self.corrections):
            arrays |= {f"{number}.correction.{name}": array for name, array in arrays_of(correction.near).items()}
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
            corrections=[about_correction(each) for each in self.corrections],
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
    return Model(
        key=file.key,
        experts=experts,
        unseen=file.unseen,
        power=file.power,
        refinements=refinements,
        corrections=tuple(
            correction_from(each, f"{number}.correction", len(names_of(file.key)), arrays)
            for number, each in enumerate(file.corrections)
        ),
    )


def _expert(key: str, number: int, about: _About, arrays: Mapping[str, NDArray[Any]]) -> Expert:
    count, steady = len(names_of(key)), len(steady_features(key))
    if len(about.low) != count or len(about.high) != count:
        raise ValueError(
            f"a model of {key} with {count_of(len(about.low), 'feature')} instead of {count}: fit it again"
        )
    figures = [*about.low, *about.high, about.rows, about.error, about.launch_s, about.floor_s, *about.traits.values()]
    backward = any(low > high for low, high in zip(about.low, about.high, strict=True))
    _refuse_backward(key, about.inside, about.outside, *([about.spread] if about.spread else []))
    if (
        backward
        or about.rows < 1
        or min(about.launch_s, about.floor_s) < 0
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
        floor_s=about.floor_s,
        spread=Spread(size=trees_from(f"{number}.spread", count, arrays), ends=about.spread) if about.spread else None,
        usual=about.usual,
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
