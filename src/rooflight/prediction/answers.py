"""Answers: what models answer of works on a device, put into the order that physics demands.

Nothing is below its bound, a small op on elements takes as long whatever it computes, backward no less than forward.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf, log
from typing import Final

import numpy as np

from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.hardware.network.collectives import CollectiveKind
from rooflight.prediction.model.corrections import ExpertFigures
from rooflight.prediction.model.devices import better_of_chip, familiarity, lesser_of_chip, outdone_by, reached_s
from rooflight.prediction.model.model import FAMILIAR, Answer, Model
from rooflight.prediction.model.monotone import (
    Batch,
    Groups,
    Mask,
    Surface,
    alike,
    doubled,
    has_sizes,
    resized,
    scattered,
    sizes_of,
)
from rooflight.prediction.work.facts import (
    ALL_REDUCE_KEY,
    ATTENTION_BACKWARD_KEY,
    ATTENTION_KEY,
    OTHER_REDUCTIONS_KEY,
    OTHERS_KEY,
    PRODUCT_KEY,
    Floats,
    WorkKind,
    as_all_reduce,
    forward_of,
    is_plain,
    key_of_others,
    kind_of,
    on_same_chip,
)
from rooflight.prediction.work.features import ALIGNED, ALIGNED_BYTES, MATRIX_UNITS, features_of, names_of
from rooflight.prediction.work.floors import (
    beyond_read,
    has_launch,
    kernels_s,
    least_by_blocks_s,
    least_kernel_s,
    least_slowdown,
    shortest_of_s,
    small_kernel_s,
    small_s,
    takes_a_launch,
    with_launch,
)
from rooflight.records.estimate import Source

TYPICAL_SLOWDOWN: Final = log(2.0)
"""log(time / bound) of work that no model knows: twice its bound, as roofline studies commonly find."""
TYPICAL_SPREAD: Final = log(4.0)
_FEW_DEVICES: Final = 3
_FAR: Final = 0.02
"""The weight of the most similar expert from which a device is too unlike all that taught a kind of work."""
TINY: Final = 0.1
"""Of a small kernel's time: work on elements with a smaller bound takes as long as that."""
MOST_FALL: Final = 1.05
"""By what factor measured work on elements, or work unlike the measured, may take longer than twice the work."""
_DOUBLED: Final = log(2.0) + 1e-6
"""By how much any size of work grows, as a logarithm, when one is doubled."""
_MEASURED: Final = frozenset({ALL_REDUCE_KEY, CollectiveKind.SEND.value})
_LESSER: Final = 4
"""How many lesser devices are asked what work takes at most that was not measured on a device."""
NETWORK_SPREAD: Final = log(2.0)
"""By what factor a collective may differ from an all-reduce that sends as many bytes
(docs/concepts/prediction.md).
"""


class Answers:
    """Estimates of works by the models that a subclass has."""

    _lesser: dict[str, tuple[DeviceSpec, ...]]
    """Of devices by name, the lesser ones of the same chip."""
    _better: dict[str, tuple[DeviceSpec, ...]]
    """And those that it is a lesser one of."""
    _outdone_by: dict[str, list[DeviceSpec]]
    """Of devices by name, those that they outdo in everything."""
    _surfaces: dict[tuple[str, str, bytes, Groups], Surface]
    """By kind of work, device and what else is alike."""

    _smallest: dict[tuple[str, str], float]
    """By kind of work and device the seconds of a small kernel, with the launch that the expert has in its times."""

    def model(self, key: str) -> Model | None:
        """The model of a kind of work, None if there is none."""
        raise NotImplementedError

    def _model_for(self, key: str, facts: Floats, device: DeviceSpec) -> tuple[Model | None, Source]:
        """That of other ops (of collectives: all-reduce) where there is none; other ops may have rows of this kind."""
        learned = self.model(key)
        if learned is not None and self._reached(key, facts, device).all():
            return learned, Source.REGRESSED
        general = self.model(ALL_REDUCE_KEY) if kind_of(key) is WorkKind.NETWORK else self._of_others(key, facts)
        if general is None:
            return None, Source.TYPICAL
        refinement = general.refinement(device, key)
        return general, Source.REGRESSED if refinement is not None and refinement.kind else Source.SIMILAR

    def _reached(self, key: str, facts: Floats, device: DeviceSpec) -> Mask:
        """Which works of facts [works, facts] the model of their kind answers. Of collectives but all-reduce, of which
        most is measured, and sends, the device must have been measured, on as many nodes.
        """
        learned = self.model(key)
        if (
            learned is None
            or kind_of(key) is not WorkKind.NETWORK
            or key in _MEASURED
            or not self.model(ALL_REDUCE_KEY)
        ):
            return np.ones(len(facts), dtype=bool)
        place, nodes = names_of(key).index("log nodes"), np.log(facts[:, -1])
        taught = (*learned.experts, *learned.corrections, *learned.refinements)
        most = max(
            (each.high[place] + each.slack[place] for each in taught if each.device == device.name), default=-1.0
        )
        return np.asarray(nodes <= most)

    def _of_others(self, key: str, facts: Floats) -> Model | None:
        if not is_plain(key, facts):
            return None
        return self.model(key_of_others(key)) or self.model(OTHERS_KEY)

    def _answer(self, key: str, facts: Floats, device: DeviceSpec, model: Model) -> Answer:
        """What a model answers; of kinds of work that only unlike devices taught, what other ops of this device do."""
        answer = model.answer(facts, device, key)
        others, far = self._others_instead(key, facts, device, model)
        if others is not None:
            instead = others.answer(facts, device)
            parts = ("slowdown", "low", "high")
            mixed = {part: np.where(far, getattr(instead, part), getattr(answer, part)) for part in parts}
            answer = replace(answer, **mixed)
        return answer

    def _others_instead(self, key: str, facts: Floats, device: DeviceSpec, model: Model) -> tuple[Model | None, Mask]:
        others = self._of_others(key, facts) if key == model.key and device.name not in model.measured_devices else None
        if others is None or others.expert(device) is None:
            return None, np.zeros(len(facts), dtype=bool)
        alone = model.usual and len(model.experts) < _FEW_DEVICES  # of sessions on a device or two
        return others, np.full(len(facts), alone) | (model.likeness(facts, device) < _FAR)

    def _batch(self, key: str, facts: Floats, device: DeviceSpec) -> Batch:
        """Estimates of works of facts [works, facts]; of work unlike what was measured none falls where it grows."""
        reached = self._reached(key, facts, device)
        if reached.any() and not reached.all():
            rows = (np.flatnonzero(reached), np.flatnonzero(~reached))
            return scattered(len(facts), [(each, self._batch(key, facts[each], device)) for each in rows])
        found = self._ordered(key, facts, device)
        if key == ALL_REDUCE_KEY:  # switches may add, which models are not taught
            found = replace(found, bound_s=as_all_reduce(facts, device)[:, 0])
        if key != ATTENTION_BACKWARD_KEY:
            return found
        # it computes the forward's scores again, and more
        share = np.maximum(1.0, self._ordered(ATTENTION_KEY, forward_of(facts), device).time_s / found.time_s)
        return replace(found, time_s=found.time_s * share, high_s=found.high_s * share)

    def _ordered(self, key: str, facts: Floats, device: DeviceSpec) -> Batch:
        model, _ = self._model_for(key, facts, device)
        unlike = has_sizes(key, facts) & (model is not None)
        if model is not None and unlike.any():
            unlike &= ~self._measured(key, facts, device, model)
        parts = []
        if (rows := np.flatnonzero(~unlike)).size:
            found = self._no_slower(key, facts[rows], device, self._as_answered(key, facts[rows], device))
            found = self._capped(key, facts[rows], device, found)
            parts.append((rows, self._no_slower(key, facts[rows], device, found, where_known=True)))
        if (rows := np.flatnonzero(unlike)).size:
            found = self._levelled(key, facts[rows], device)
            found = self._no_slower(key, facts[rows], device, found, where_known=True)
            parts.append((rows, self._as_doubled(key, facts[rows], device, found)))
        return scattered(len(facts), parts)

    def _measured(self, key: str, facts: Floats, device: DeviceSpec, model: Model) -> Mask:
        """Which works are of sizes that the device was measured at, though in ops of other names, or in a few rows."""
        _, source = self._model_for(key, facts, device)
        near = np.zeros(len(facts), dtype=bool)
        if device.name in model.measured_devices:
            values = features_of(model.key, facts, device)
            near |= model.near_rows(values, device)
            if source is Source.REGRESSED:
                near |= model.knows(values, device, key)
        others, far = self._others_instead(key, facts, device, model)
        if others is None or not far.any():
            return near
        return np.asarray(near | (far & others.near_rows(features_of(others.key, facts, device), device)))

    def _levelled(self, key: str, facts: Floats, device: DeviceSpec) -> Batch:
        times = np.empty((len(facts), 3))
        for rows, some, groups in alike(key, facts):
            name = key, device.name, some.tobytes(), groups
            if name not in self._surfaces:
                asked, least = (
                    partial(self._on_chip, key, device=device),
                    partial(self._least_answered_s, key, device=device),
                )
                self._surfaces[name] = Surface(key=key, facts=some, groups=groups, asked=asked, least=least)
            times[rows] = self._surfaces[name].at(facts[rows])
        time_s, low_s, high_s = times.T
        time_s = np.maximum(time_s, shortest_of_s(key, facts, device))
        model, _ = self._model_for(key, facts, device)
        if key == PRODUCT_KEY and model is not None:
            time_s = np.maximum(time_s, reached_s(facts, device, model.experts))
        lowest_s = np.maximum(facts[:, 0] * np.exp(least_slowdown(key, facts, device)), kernels_s(key, facts, device))
        found = Batch(
            time_s=time_s,
            low_s=np.minimum(np.maximum(low_s, lowest_s), time_s),
            high_s=np.maximum(high_s, time_s),
            bound_s=facts[:, 0],
            extrapolated=np.ones(len(facts), dtype=bool),
        )
        if key == PRODUCT_KEY and model is not None:
            found = self._no_faster_misaligned(facts, device, model, found)
        return self._no_faster_on_more_nodes(facts, device, found) if key == ALL_REDUCE_KEY else found

    def _no_faster_misaligned(self, facts: Floats, device: DeviceSpec, model: Model, found: Batch) -> Batch:
        """Products on matrix units whose rows are not aligned no faster than at their own sizes, where the device's
        expert, or a twin's, learned from such: all points of a lattice are aligned.
        """
        if (expert := model.twin(device)) is None:
            return found
        values = features_of(PRODUCT_KEY, facts, device)
        familiar = familiarity(PRODUCT_KEY, expert, values) >= FAMILIAR
        rows = np.flatnonzero(_misaligned(values) & ~_misaligned(values, expert) & familiar)
        if not len(rows):
            return found
        own = scattered(len(facts), [(rows, self._on_chip(PRODUCT_KEY, facts[rows], device))])
        usual_s = self._small_s(PRODUCT_KEY, facts, device, model)  # it was not measured
        return own.where(own.time_s > np.maximum(found.time_s, (1 + 1e-9) * usual_s), found)  # NaN is not more

    def _no_faster_on_more_nodes(self, facts: Floats, device: DeviceSpec, found: Batch) -> Batch:
        """All-reduces no faster than among half the nodes, down to one: a rank sends no less."""
        sizes = sizes_of(ALL_REDUCE_KEY, facts)
        more = np.flatnonzero(sizes[:, 1] > 1)
        if not len(more):
            return found
        fewer = np.stack([sizes[more, 0], np.floor((sizes[more, 1] + 1) / 2)], axis=1)
        works = resized(ALL_REDUCE_KEY, facts[more], fewer)
        if device.link_bytes_per_s:
            alone_s = np.maximum(works[:, 1:3].max(axis=1), works[:, -3] / device.link_bytes_per_s)
            works[:, 0] = np.where(fewer[:, 1] == 1, alone_s, works[:, 0])
        there = self._ordered(ALL_REDUCE_KEY, works, device)
        parts = {name: getattr(found, name).copy() for name in ("time_s", "low_s", "high_s")}
        for name, each in parts.items():
            each[more] = np.maximum(each[more], getattr(there, name))
        return replace(found, **parts)

    def _least_answered_s(self, key: str, facts: Floats, device: DeviceSpec) -> tuple[Floats, Floats]:
        """Seconds that works are answered to take at least, and that any larger ones are: where none was measured, what
        small ones usually take.
        """
        everywhere = [(device, facts)]
        if kind_of(key) is not WorkKind.NETWORK:
            everywhere += [(lesser, on_same_chip(key, facts, device, lesser)) for lesser in self._lesser_of(device)]
        usual_s, (known, beyond) = np.full(len(facts), inf), np.zeros((2, len(facts)), dtype=bool)
        for spec, works in everywhere:
            usual_s = np.minimum(usual_s, self._small_s(key, works, spec, self._model_for(key, works, spec)[0]))
            inside, below = self._known_below(key, works, spec, 0.0, inf)
            known, beyond = known | inside, beyond | below
        least_s = shortest_of_s(key, facts, device)
        usual_s = np.maximum(least_s, usual_s)
        return np.where(known, least_s, usual_s), np.where(beyond, least_s, usual_s)

    def _on_chip(self, key: str, facts: Floats, device: DeviceSpec) -> Batch:
        found = self._no_slower(key, facts, device, self._as_answered(key, facts, device))
        return self._no_faster(key, facts, device, found)

    def _no_faster(self, key: str, facts: Floats, device: DeviceSpec, found: Batch) -> Batch:
        """These estimates, of extrapolated works no shorter than where they were measured on a better device of the
        same chip.
        """
        if kind_of(key) is WorkKind.NETWORK:
            return found
        rows = np.flatnonzero(found.extrapolated)
        time_s, high_s = found.time_s.copy(), found.high_s.copy()
        for better in self._better_of(device):
            works = on_same_chip(key, facts[rows], device, better)
            known = self._known(key, works, better)
            there, which = self._as_answered(key, works[known], better), rows[known]
            time_s[which] = np.maximum(time_s[which], there.time_s)
            high_s[which] = np.maximum(high_s[which], there.high_s)
        return replace(found, time_s=time_s, high_s=high_s)

    def _no_slower(
        self, key: str, facts: Floats, device: DeviceSpec, found: Batch, *, where_known: bool = False
    ) -> Batch:
        """These estimates, of extrapolated works no longer than on lesser devices of the same chip.
        ``where_known``: only where these were measured, and of all works if its expert is off by more than theirs.
        """
        if kind_of(key) is WorkKind.NETWORK:
            return found
        for lesser in self._lesser_of(device):
            works = on_same_chip(key, facts, device, lesser)
            models = (self._model_for(key, works, lesser)[0], self._of_others(key, works))
            model = models[0]
            taught = {name for each in models if each is not None for name in each.measured_devices}
            if model is None or lesser.name not in taught:
                continue
            own, its = (self._model_for(key, facts, device)[0] or model).expert(device), model.expert(lesser)
            better = where_known and own is not None and its is not None and its.error < own.error
            which = np.flatnonzero(found.extrapolated | better)
            if where_known:
                which = which[self._measured(key, works[which], lesser, model)]
            if not len(which):
                continue
            asked = self._ordered if where_known else self._as_answered
            there = asked(key, works[which], lesser)
            time_s = np.maximum(facts[which, 0], there.time_s)
            there = replace(there, bound_s=facts[which, 0], time_s=time_s, extrapolated=found.extrapolated[which])
            shorter = scattered(len(facts), [(which, there)])
            found = shorter.where(shorter.time_s < found.time_s, found)  # NaN is not less
        return found

    def _is_launched(self, key: str, facts: Floats, device: DeviceSpec) -> bool:
        """Whether a launch that is answered was measured on the device itself."""
        model, _ = self._model_for(key, facts, device)
        return model is not None and model.expert(device) is not None

    def _lesser_of(self, device: DeviceSpec) -> tuple[DeviceSpec, ...]:
        if device.name not in self._lesser:
            self._lesser[device.name] = lesser_of_chip(device)
        return self._lesser[device.name]

    def _better_of(self, device: DeviceSpec) -> tuple[DeviceSpec, ...]:
        if device.name not in self._better:
            self._better[device.name] = better_of_chip(device)
        return self._better[device.name]

    def _outdone(self, key: str, values: Floats, device: DeviceSpec) -> list[DeviceSpec]:
        """The devices with most bandwidth that a device outdoes in everything, and at which such work was measured."""
        model, _ = self._model_for(key, values, device)
        if model is None or kind_of(key) is WorkKind.NETWORK:
            return []
        if device.name not in self._outdone_by:
            self._outdone_by[device.name] = outdone_by(device)
        return [each for each in self._outdone_by[device.name] if each.name in model.measured_devices][:_LESSER]

    def _capped(self, key: str, facts: Floats, device: DeviceSpec, found: Batch) -> Batch:
        """These estimates, of measured ops on elements hardly longer than those of twice the work: few rows of them
        teach steps.
        """
        if kind_of(key) is not WorkKind.ROWS or key_of_others(key) == OTHER_REDUCTIONS_KEY:
            return found
        rows = np.flatnonzero(~found.extrapolated & has_sizes(key, facts))
        if not len(rows):
            return found
        time_s = found.time_s.copy()
        for works in doubled(key, facts[rows]):
            time_s[rows] = np.minimum(time_s[rows], MOST_FALL * self._levelled(key, works, device).time_s)
        time_s = np.maximum(time_s, shortest_of_s(key, facts, device))
        return replace(found, time_s=time_s, low_s=np.minimum(found.low_s, time_s))

    def _as_doubled(self, key: str, facts: Floats, device: DeviceSpec, found: Batch) -> Batch:
        """These estimates, of works unlike the measured hardly longer than twice the work that was measured."""
        rows = np.flatnonzero(self._known(key, facts, device, below=_DOUBLED))
        if not len(rows):
            return found
        works = np.stack(list(doubled(key, facts[rows]))).reshape(-1, facts.shape[1])
        known = np.flatnonzero(self._known(key, works, device))
        there = self._capped(key, works[known], device, self._as_answered(key, works[known], device))
        time_s = found.time_s.copy()
        np.minimum.at(time_s, rows[known % len(rows)], MOST_FALL * there.time_s)
        time_s = np.maximum(time_s, shortest_of_s(key, facts, device))
        return replace(found, time_s=time_s, low_s=np.minimum(found.low_s, time_s))

    def _small_s(self, key: str, facts: Floats, device: DeviceSpec, model: Model | None) -> Floats:
        """Seconds [works] that works unlike the measured usually take at least, with the launch that the device's
        expert has in its times.
        """
        usual_s, expert = small_s(key, facts, device), None if model is None else model.expert(device)
        if model is None or expert is None or not takes_a_launch(key):
            return usual_s
        if (key, device.name) not in self._smallest:
            launched = with_launch(np.array([small_kernel_s(key, device)]), expert.launch_s).item()
            self._smallest[key, device.name] = min(launched, model.smallest_s(device))
        # of products a device's own rows say how long small ones take: 2.8 µs on an H100, where 6.5 are usual
        least_s = kernels_s(key, facts, device) if key == PRODUCT_KEY else usual_s
        return np.where(has_sizes(key, facts), np.maximum(least_s, self._smallest[key, device.name]), usual_s)

    def _known(self, key: str, facts: Floats, device: DeviceSpec, *, below: float = 0.0) -> Mask:
        """Which works the device was measured at, or at larger ones by ``below`` at most, a logarithm."""
        return self._known_below(key, facts, device, below)[0]

    def _known_below(self, key: str, facts: Floats, device: DeviceSpec, *below: float) -> list[Mask]:
        model, source = self._model_for(key, facts, device)
        if model is None or source is not Source.REGRESSED or device.name not in model.measured_devices:
            return [np.zeros(len(facts), dtype=bool) for _ in below]
        values = features_of(model.key, facts, device)
        return [model.knows(values, device, key, below=each) for each in below]

    def _within_measured(self, key: str, facts: Floats, device: DeviceSpec) -> Mask:
        """Which works are such that the device was measured at no less in any size: a library could pad them. It does
        not pad products whose rows are not aligned: such must have been measured.
        """
        within = self._known(key, facts, device, below=inf) & has_sizes(key, facts)
        model, _ = self._model_for(key, facts, device)
        if key != PRODUCT_KEY or model is None or not within.any():
            return within
        return within & ~_misaligned(features_of(key, facts, device), model.expert(device))

    def _as_answered(self, key: str, facts: Floats, device: DeviceSpec) -> Batch:
        model, source = self._model_for(key, facts, device)
        bound_s, network = facts[:, 0], kind_of(key) is WorkKind.NETWORK
        similar = source is Source.SIMILAR and network
        base_s = as_all_reduce(facts, device)[:, 0] if similar else bound_s
        if model is None:
            typical = np.full(len(facts), TYPICAL_SLOWDOWN)
            unknown = np.zeros(len(facts), dtype=bool)
            low, high = np.maximum(0.0, typical - TYPICAL_SPREAD), typical + TYPICAL_SPREAD
            answer = Answer(slowdown=typical, low=low, high=high, known=unknown)
        else:
            answer = self._answer(key, as_all_reduce(facts, device) if similar else facts, device, model)
            if similar:
                low = np.minimum(answer.low, np.maximum(0.0, answer.slowdown - NETWORK_SPREAD))
                answer = replace(answer, low=low, high=np.maximum(answer.high, answer.slowdown + NETWORK_SPREAD))
            elif source is Source.SIMILAR:
                answer = _as_read(key, facts, device, model, answer)
            if source is not Source.REGRESSED:
                answer = replace(answer, known=np.zeros(len(facts), dtype=bool))
            answer = self._in_order(key, facts, device, model, answer)
        extrapolated = ~answer.known
        shortest = kernels_s(key, facts, device)
        # what was measured has its blocks in its times
        blocks_s = np.where(extrapolated, least_by_blocks_s(key, facts, device), 0.0)
        lowest_s = np.maximum(bound_s * np.exp(np.minimum(0.0, answer.low)), shortest)
        # collectives of other libraries than NCCL were measured, too
        shortest_s = np.where(extrapolated | network, self._small_s(key, facts, device, model), shortest)
        time_s = np.maximum(np.maximum(bound_s, np.maximum(blocks_s, shortest_s)), base_s * np.exp(answer.slowdown))
        return Batch(
            time_s=time_s,
            low_s=np.minimum(time_s, np.maximum(np.maximum(lowest_s, blocks_s / 2), base_s * np.exp(answer.low))),
            high_s=np.maximum(np.maximum(time_s, 2 * np.maximum(shortest_s, blocks_s)), base_s * np.exp(answer.high)),
            bound_s=bound_s,
            extrapolated=extrapolated,
        )

    def _in_order(self, key: str, facts: Floats, device: DeviceSpec, model: Model, answer: Answer) -> Answer:
        """An answer of which no product unlike those that were measured reaches more of the peak than they did, and
        a small op on elements takes a small kernel's time, whatever it computes.
        """
        bound_s, slowdown = facts[:, 0], answer.slowdown
        if key == PRODUCT_KEY:
            least = np.log(np.maximum(bound_s, reached_s(facts, device, model.experts)) / bound_s)
            more = np.where(answer.known, 0.0, np.maximum(0.0, least - slowdown))
            answer = replace(answer, slowdown=slowdown + more, high=answer.high + more)
        if not takes_a_launch(key):
            return answer
        usual_s = self._small_s(key, facts, device, model)
        tiny = ~answer.known & (bound_s < TINY * small_kernel_s(key, device)) & has_sizes(key, facts)
        if not tiny.any():
            return answer
        shortest = least_kernel_s(device) / small_kernel_s(key, device)
        ends = {"slowdown": usual_s, "low": usual_s * shortest, "high": 2 * usual_s}
        tiny_ones = {name: np.log(end / bound_s) for name, end in ends.items()}
        return replace(
            answer, **{name: np.where(tiny, each, getattr(answer, name)) for name, each in tiny_ones.items()}
        )


def _misaligned(values: Floats, taught: ExpertFigures | None = None) -> Mask:
    """Which products of features [works, features] are on matrix units that their rows are not aligned for; but those
    as an expert learned from.
    """
    names = names_of(PRODUCT_KEY)
    bytes_, units = (values[:, names.index(name)] for name in (ALIGNED_BYTES, MATRIX_UNITS))
    most = ALIGNED if taught is None else min(ALIGNED, taught.low[names.index(ALIGNED_BYTES)])
    return np.asarray((bytes_ < most) & (units > 0))


def _as_read(key: str, facts: Floats, device: DeviceSpec, model: Model, answer: Answer) -> Answer:
    """What a model of other ops answers, a read of one number no slower than a copy; unless launches are in it."""
    expert = model.expert(device)
    if not model.usual or (expert is not None and has_launch(expert.launch_s)):
        return answer
    less = beyond_read(key, facts, device, answer.slowdown)
    low = np.maximum(answer.low - less, np.minimum(0.0, answer.low))
    return replace(answer, slowdown=answer.slowdown - less, low=low, high=answer.high - less)
