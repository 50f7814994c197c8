"""Model: how much longer than its bound a kind of work takes: what each device taught, kept as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np

from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.prediction.model.corrections import (
    ENOUGH_FOR_PLACES,
    Correction,
    ExpertFigures,
    Interval,
    Mask,
    Refinement,
)
from rooflight.prediction.model.devices import averaged, blended, bound_elsewhere, device_traits, familiarity, likeness
from rooflight.prediction.model.packing import Learner
from rooflight.prediction.model.smooth import Smooth
from rooflight.prediction.model.trees import Trees
from rooflight.prediction.work.facts import PRODUCT_KEY, Floats, product_facts
from rooflight.prediction.work.features import features_of, names_of, over_bound, size_features, steady_features
from rooflight.prediction.work.floors import least_slowdown, small_kernel_s, usual_slowdown, with_launch, without_launch

FAMILIAR: Final = 0.8
"""Of less familiar work an expert's own answer is not trusted alone: a size 11 % below the least that it was shown."""
TWINS: Final = 0.3
"""The likeness from which devices are nearly the same."""
_SMALL_PRODUCTS: Final[tuple[Floats, Floats, Floats]] = tuple(
    each.reshape(-1) for each in np.meshgrid(*[np.floor(2 ** np.arange(0.0, 11, 0.7))] * 3)
)
"""Sizes of products, aligned and not."""
_SMALLEST: Final = 0.1
"""The share of them that are small, and of these the share that may take less than small ones do."""
_MOST_SPREAD: Final = 3.0  # as a logarithm, of the size of a spread


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Expert(ExpertFigures):
    """What the measurements of one device taught. ``beyond`` is for larger work and sees ``steady_features`` only; None
    where ``main`` does better at that too. ``spread`` narrows and widens ``inside`` by features; None where the rows
    were too few to see by which.
    """

    main: Learner
    beyond: Learner | None
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
        """log(time / bound) of rows of features [rows, features], below 0 where a cache is taken to hold the data; or
        what to add to the usual.
        """
        floors = over_bound(key, values, self.floor_s)
        larger = values[:, 0] > self.high[0] + self.slack[0]
        if self.beyond is None or not larger.any():
            return floors + self.main.predict(values)
        answer = np.zeros(len(values))
        if not larger.all():
            answer[~larger] = self.main.predict(values[~larger])
        answer[larger] = self.beyond.predict(values[larger][:, list(steady_features(key))])
        return floors + answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """log(time / bound) of rows of work, never below 0, with the ends of the 90 % interval; ``known`` [rows]: whether
    such work, on this device, was among what was learned from. ``low`` is below 0 where measured times may be faster
    than the bound (``least_slowdown``).
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
            high=time + np.maximum(0.0, found.high - found.slowdown),
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
        return np.stack(self._views(values), axis=1) - slowdown[:, None]

    def refined(self, refinement: Refinement, values: Floats, base: Answer, apart: Floats) -> Answer:
        """The answer to rows of features [rows, features] with what was learned on top of ``base``, that of the experts
        alone, no further limited than that. ``apart`` as the method of this name has it; not read unless the refinement
        ``compares``.
        """
        slowdown = base.slowdown + refinement.added(self.key, values, apart, base.slowdown)
        known = refinement.knows(self.key, values)
        low, high = (
            np.where(known, near, far) for near, far in zip(refinement.inside, refinement.outside, strict=True)
        )
        return Answer(slowdown=slowdown, low=slowdown + low, high=slowdown + high, known=known | base.known)

    def unrefined(self, facts: Floats, values: Floats, device: DeviceSpec) -> Answer:
        """What experts and corrections answer of rows of facts [rows, facts]; times may be below the bound. What the
        device's own expert knows is not corrected.
        """
        views = self._views(values) if self.expert(device) is None else ()
        answer = self._of_experts(facts, values, device, views)
        correction = self.correction(device)
        if correction is None:
            return answer
        slowdown = answer.slowdown - self._launch_shares(facts, values, answer.slowdown, device, views)
        slowdown = slowdown + np.where(answer.known, 0.0, correction.predict(values))
        low, high = slowdown + answer.low - answer.slowdown, slowdown + answer.high - answer.slowdown
        near = correction.knows(self.key, values) & ~answer.known & (correction.rows >= ENOUGH_FOR_PLACES)
        low[near], high[near] = slowdown[near] + correction.inside[0], slowdown[near] + correction.inside[1]
        return Answer(slowdown=slowdown, low=low, high=high, known=answer.known | near)

    def correction(self, device: DeviceSpec) -> Correction | None:
        """What few rows of a device add, if anything."""
        return next((each for each in self.corrections if each.device == device.name), None)

    def knows(self, values: Floats, device: DeviceSpec, kind: str = "", *, below: float = 0.0) -> Mask:
        """Which rows of features [rows, features] ``answer`` calls known, or may call such larger ones, by sizes that
        are more by ``below`` at most, a logarithm.
        """
        own, few, later = self.expert(device), self.correction(device), self.refinement(device, kind)
        known = np.zeros(len(values), dtype=bool)
        for each in (own, few if few is not None and few.rows >= ENOUGH_FOR_PLACES else None, later):
            if each is not None:
                known |= each.knows(self.key, values, below=below)
        return known

    def smallest_s(self, device: DeviceSpec) -> float:
        """Seconds that the device's own expert answers of work as small as any that it learned from, of products no
        more than nine in ten of the smallest take; infinite without one.
        """
        expert = self.expert(device)
        if expert is None or self.usual or "ops" not in names_of(self.key):
            return inf
        found = float(np.exp(expert.low[0] + expert.predict(self.key, expert.low[None])[0]))
        for dtype in ("float32", "bfloat16") if self.key == PRODUCT_KEY else ():
            if device.matrix_peak(dtype) is not None:
                facts = product_facts(*_SMALL_PRODUCTS, dtype, device)
                facts = facts[self.knows(features_of(self.key, facts, device), device, self.key)]
                if len(facts):
                    facts = facts[facts[:, 0] <= np.quantile(facts[:, 0], _SMALLEST)]
                    times = facts[:, 0] * np.exp(self.answer(facts, device, self.key).slowdown)
                    found = min(found, float(np.quantile(times, _SMALLEST)))
        return found

    def near_rows(self, values: Floats, device: DeviceSpec) -> Mask:
        """Which rows of features [rows, features] are of sizes that the device's own expert or a correction learned
        from, however few rows that was: of a process those beside one of its points, of trees those in their ranges.
        """
        sizes, near = list(size_features(self.key)), np.zeros(len(values), dtype=bool)
        for each in (*self.experts, *self.corrections):
            if each.device == device.name:
                process = each.main if isinstance(each, Expert) and isinstance(each.main, Smooth) else None
                near |= each.knows(self.key, values) & (process is None or process.beside(values, sizes))
        return near

    def expert(self, device: DeviceSpec) -> Expert | None:
        """That of a device, if there is one."""
        return next((each for each in self.experts if each.device == device.name), None)

    def twin(self, device: DeviceSpec) -> Expert | None:
        """The expert of a device, or of one that is nearly the same; None without."""
        here = device_traits(device)
        likely = [likeness(here, each.traits, self.key) + (each.device == device.name) for each in self.experts]
        best = int(np.argmax(likely))
        return self.experts[best] if likely[best] >= TWINS else None

    def saw_both(self, feature: str, device: DeviceSpec) -> bool:
        """Whether the device's own expert learned from rows with a feature and without."""
        expert, names = self.expert(device), names_of(self.key)
        if expert is None or feature not in names:
            return False
        place = names.index(feature)
        return bool(expert.low[place] < expert.high[place])

    def uncorrected(self, facts: Floats, device: DeviceSpec) -> Floats:
        """log(time / bound) that is corrected on a device: on one without an expert, no launch is in it."""
        values = features_of(self.key, facts, device)
        views = self._views(values) if self.expert(device) is None else ()
        slowdown = self._of_experts(facts, values, device, views).slowdown
        return slowdown - self._launch_shares(facts, values, slowdown, device, views)

    def _launch_shares(
        self, facts: Floats, values: Floats, slowdown: Floats, device: DeviceSpec, views: Sequence[Floats]
    ) -> Floats:
        if self.expert(device) is not None:
            return np.zeros(len(slowdown))
        time_s = facts[:, 0] * np.exp(slowdown)
        launches_s = self._launches_of_others_s(facts, values, time_s, device, views)
        alone_s = np.maximum(time_s - launches_s, small_kernel_s(self.key, device))
        return slowdown - np.log(np.maximum(1.0, alone_s / facts[:, 0]))

    @property
    def usual(self) -> bool:
        """Whether its experts' answers are to be added to ``usual_slowdown``."""
        return all(expert.usual for expert in self.experts)

    def _of_experts(self, facts: Floats, values: Floats, device: DeviceSpec, views: Sequence[Floats]) -> Answer:
        """``views`` are all experts' (``_views``), read only on a device without one of its own."""
        expert = self.expert(device)
        launch_s = expert.launch_s if expert else 0.0
        usual = usual_slowdown(self.key, facts, device, launch_s) if self.usual else np.zeros(len(facts))
        if expert is None:
            slowdown = self.blend(values, device_traits(device), views)
            known = np.zeros(len(values), dtype=bool)
            low, high = (np.full(len(values), end) for end in self.unseen)
        else:
            slowdown, known = expert.predict(self.key, values), expert.knows(self.key, values)
            low, high = expert.around(known, values)
            strange = familiarity(self.key, expert, values) < FAMILIAR
            if strange.any():
                known &= ~strange
                if len(self.experts) > 1:
                    views = self._views(values[strange])
                    blend = self.blend(values[strange], expert.traits, views)
                    blend = self._with_launch_of(expert, facts[strange], values[strange], blend, device, views)
                    slowdown[strange] = blend
                low[strange], high[strange] = (
                    min(expert.outside[0], self.unseen[0]),
                    max(expert.outside[1], self.unseen[1]),
                )
        slowdown = usual + slowdown
        return Answer(slowdown=slowdown, low=slowdown + low, high=slowdown + high, known=known)

    def _with_launch_of(
        self,
        expert: Expert,
        facts: Floats,
        values: Floats,
        slowdown: Floats,
        device: DeviceSpec,
        views: Sequence[Floats],
    ) -> Floats:
        if self.usual:
            return slowdown
        bound_s = facts[:, 0]
        time_s = bound_s * np.exp(slowdown)
        alone_s = np.maximum(bound_s, time_s - self._launches_of_others_s(facts, values, time_s, device, views))
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
        values = features_of(self.key, facts, device)
        return self._launches_of_others_s(facts, values, time_s, device, self._views(values))

    def _launches_of_others_s(
        self, facts: Floats, values: Floats, time_s: Floats, device: DeviceSpec, views: Sequence[Floats]
    ) -> Floats:
        if self.usual or not any(expert.launch_s for expert in self.experts):
            return np.zeros(len(facts))
        bound_s, answers = facts[:, 0], []
        here = device_traits(device)
        for each, view in zip(self.experts, views, strict=True):
            there_s = bound_s * bound_elsewhere(self.key, values, here, each.traits)
            taken_s = without_launch(there_s * np.exp(view), each.launch_s)
            answers.append(np.log(np.maximum(1.0, taken_s / there_s)))
        alone = blended(self.key, self.experts, answers, values, here, self.power)
        return np.asarray(np.maximum(0.0, time_s - bound_s * np.exp(alone)))

    def likeness(self, facts: Floats, device: DeviceSpec) -> Floats:
        """How much the expert weighs that is most like a device and rows of facts [rows, facts], 1 at most."""
        values, traits = features_of(self.key, facts, device), device_traits(device)
        weights = [
            likeness(traits, each.traits, self.key) * familiarity(self.key, each, values) for each in self.experts
        ]
        return np.asarray(np.max(weights, axis=0))

    def _views(self, values: Floats) -> list[Floats]:
        """What each expert answers of rows of features [rows, features]."""
        return [expert.predict(self.key, values) for expert in self.experts]

    def blend(self, values: Floats, traits: Mapping[str, float], views: Sequence[Floats] = ()) -> Floats:
        """log(time / bound) of rows of features [rows, features] on a device with these traits, from all experts, of
        which ``views`` are the answers where they are known.
        """
        answers = views or self._views(values)
        if self.usual:
            return averaged(self.key, self.experts, answers, values, traits)
        return blended(self.key, self.experts, answers, values, traits, self.power)
