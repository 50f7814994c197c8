"""What the estimates of single ops add up to: the predicted time of a module, a phase, a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.costs.registry import traits_of
from rooflight.records.document import Fields
from rooflight.records.estimate import Estimate, Source
from rooflight.records.quantity import count_of
from rooflight.records.session import Float64, Int64
from rooflight.records.signature import OpSignature
from rooflight.roofline.bound import Bound

_UNSHOWN = "outside of what was measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """``calls`` take ``time_s`` one after the other, nine times in ten between ``low_s`` and ``high_s``.

    ``bound_s`` is of the same calls. Of ``time_s``, ``extrapolated_s`` rests on models asked outside of what they were
    shown, ``typical_s`` on none. The calls that were timed too took ``measured_s``, and are predicted to take
    ``timed_s``.
    """

    calls: int
    time_s: float
    low_s: float
    high_s: float
    bound_s: float
    extrapolated_s: float
    typical_s: float
    timed_s: float | None = None
    measured_s: float | None = None

    @property
    def efficiency(self) -> float | None:
        """bound / predicted: 1 is the speed of light. None for what takes no time."""
        return self.bound_s / self.time_s if self.time_s else None

    @property
    def error(self) -> float | None:
        """predicted / measured − 1, of the calls that have both."""
        return self.timed_s / self.measured_s - 1 if self.timed_s and self.measured_s else None

    @property
    def holds(self) -> bool | None:
        """Whether what was measured lies in the interval, scaled to the calls that were timed."""
        if not self.timed_s or not self.measured_s:
            return None
        return self.low_s <= self.measured_s * (self.time_s / self.timed_s) <= self.high_s


class PredictedFields(Fields, frozen=True, kw_only=True):
    """A predicted time as it stands in every row: with its interval, op bound / predicted, predicted / measured - 1."""

    predicted_s: float | None
    predicted_low_s: float | None
    predicted_high_s: float | None
    predicted_efficiency: float | None
    prediction_error: float | None

    @staticmethod
    def read(found: Predicted | None) -> dict[str, float | None]:
        """The values of these fields; None where nothing is predicted."""
        return {
            "predicted_s": found.time_s if found else None,
            "predicted_low_s": found.low_s if found else None,
            "predicted_high_s": found.high_s if found else None,
            "predicted_efficiency": found.efficiency if found else None,
            "prediction_error": found.error if found else None,
        }


class Estimates:
    """Estimates of the ops of a session, of one call each, in columns. What does nothing takes no time; what has no
    cost, or nothing that bounds it, has no estimate.

    Raises ValueError for another number of estimates than ops.
    """

    def __init__(
        self,
        ops: Sequence[OpSignature],
        costs: Sequence[OpCost | Uncosted],
        bounds: Sequence[Bound | None],
        estimates: Sequence[Estimate | None],
    ) -> None:
        if len(estimates) != len(ops):
            raise ValueError(
                f"{count_of(len(estimates), 'estimate')} for {count_of(len(ops), 'op')}: give one for each, "
                "None where unknown"
            )
        self.of_one_call = tuple(
            None
            if estimate is None or bound is None or not bound.time_s
            else _no_faster(estimate.on_device, bound.time_s)
            for estimate, bound in zip(estimates, bounds, strict=True)
        )
        given = self.of_one_call
        self._known = np.array([estimate is not None for estimate in given], dtype=bool) | _idle(costs)
        self._time_s = np.array([estimate.time_s if estimate else 0.0 for estimate in given])
        self._low_s = np.array([estimate.low_s if estimate else 0.0 for estimate in given])
        self._high_s = np.array([estimate.high_s if estimate else 0.0 for estimate in given])
        self._bound_s = np.array([estimate.bound_s if estimate else 0.0 for estimate in given])
        typical = [estimate is not None and estimate.source is Source.TYPICAL for estimate in given]
        extrapolated = [estimate is not None and estimate.extrapolated for estimate in given]
        self._typical = np.array(typical, dtype=bool)
        self._extrapolated = np.array(extrapolated, dtype=bool) & ~self._typical
        kinds: dict[str, int] = {}
        names = [_kind(op, estimate) for op, estimate in zip(ops, given, strict=True)]
        self._kind = np.array([kinds.setdefault(name, len(kinds)) for name in names], dtype=np.int64)
        self._num_kinds = len(kinds)

    @property
    def seconds(self) -> Float64:
        """Seconds of one call of each op; 0 where they are not known."""
        return self._time_s

    @property
    def bounds_s(self) -> Float64:
        """Bounds of one call of each op that has an estimate; 0 elsewhere."""
        return self._bound_s

    @property
    def widths(self) -> Float64:
        """log(high / low) of each op's interval; 0 where its time is not known."""
        return np.asarray(np.log(np.maximum(self._high_s, 1e-30) / np.maximum(self._low_s, 1e-30)))

    def sums(
        self, group: Int64, signature: Int64, calls: Int64, timed: Int64, measured_s: Float64, num_groups: int
    ) -> list[Predicted | None]:
        """By group, what its calls are predicted to take together; None where no estimate is known.

        Entry i of the columns: so many calls of a signature belong to a group; those timed took ``measured_s`` in all.

        Errors of one group of ops (see ``rl.formula``) have one cause, the model, and add up; groups are independent,
        and their squares add up. What was extrapolated, or rests on no model, counts as a group of its own: it may
        have one cause as well, the device say.
        """
        known = self._known[signature] & (calls > 0)
        group, signature, calls, timed, measured_s = (
            column[known] for column in (group, signature, calls, timed, measured_s)
        )
        cell = group * self._num_kinds + self._kind[signature]

        def total(values: Float64 | Int64) -> Float64:
            return np.bincount(group, weights=values, minlength=num_groups).astype(np.float64)

        def joined(widths: Float64) -> Float64:
            by_kind = np.bincount(cell, weights=calls * widths[signature], minlength=num_groups * self._num_kinds)
            return np.asarray(np.sqrt(np.square(by_kind.reshape(num_groups, self._num_kinds)).sum(axis=1)))

        time_s, bound_s = total(calls * self._time_s[signature]), total(calls * self._bound_s[signature])
        low_s = np.clip(time_s - joined(self._time_s - self._low_s), bound_s, time_s)
        high_s = time_s + joined(self._high_s - self._time_s)
        extrapolated_s = total(calls * (self._time_s * self._extrapolated)[signature])
        typical_s = total(calls * (self._time_s * self._typical)[signature])
        compared = np.isfinite(measured_s)
        timed_s = total(np.where(compared, timed * self._time_s[signature], 0.0))
        sums_measured_s, num_compared = total(np.where(compared, measured_s, 0.0)), total(compared.astype(np.int64))
        count = total(calls)
        return [
            Predicted(
                calls=int(count[number]),
                time_s=float(time_s[number]),
                low_s=float(low_s[number]),
                high_s=float(high_s[number]),
                bound_s=float(bound_s[number]),
                extrapolated_s=float(extrapolated_s[number]),
                typical_s=float(typical_s[number]),
                timed_s=float(timed_s[number]) if num_compared[number] else None,
                measured_s=float(sums_measured_s[number]) if num_compared[number] else None,
            )
            if count[number]
            else None
            for number in range(num_groups)
        ]


def _idle(costs: Sequence[OpCost | Uncosted]) -> np.ndarray:
    """Which ops have a cost that is nothing: views, allocations."""
    return np.array([isinstance(cost, OpCost) and cost.does_nothing for cost in costs], dtype=bool)


def _no_faster(estimate: Estimate, bound_s: float) -> Estimate:
    """The estimate, not below this bound: it may have been made with another."""
    if estimate.bound_s == bound_s:
        return estimate
    time_s, low_s, high_s = (max(figure, bound_s) for figure in (estimate.time_s, estimate.low_s, estimate.high_s))
    return replace(estimate, time_s=time_s, low_s=low_s, high_s=high_s, bound_s=bound_s)


def _kind(op: OpSignature, estimate: Estimate | None) -> str:
    """Ops whose errors have a cause in common are of one kind."""
    if estimate is None:
        return ""
    if estimate.extrapolated or estimate.source is Source.TYPICAL:
        return _UNSHOWN
    return traits_of(op).error_group
