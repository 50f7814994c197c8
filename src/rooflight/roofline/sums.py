"""What an analysis sums up: totals, roll-ups, all calls of one signature, and what contradicts a bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.records.estimate import Estimate
from rooflight.records.session import Float64
from rooflight.records.signature import OpSignature
from rooflight.roofline.bound import Bound, Limiter
from rooflight.roofline.predicted import Predicted
from rooflight.roofline.wall import PredictedWall


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over the counted ops. ``limiter`` is what limits most of the op bound. ``measured_s`` is the median time of
    a whole step, ``ops_measured_s`` the sum of the ops' median times; both None for a session that was not measured, or
    whose timed step is another than the recorded one. ``predicted`` is the device's time, as if replayed from a graph;
    ``predicted_wall`` includes the host's. Both are None without a predictor.
    """

    calls: int = 0
    matrix_flops: int = 0
    vector_flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_sent: int = 0
    op_bound_s: float = 0.0
    limiter: str = Limiter.NOTHING.value
    measured_s: float | None = None
    ops_measured_s: float | None = None
    predicted: Predicted | None = None
    predicted_wall: PredictedWall | None = None

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written."""
        return self.bytes_read + self.bytes_written

    @property
    def flops(self) -> int:
        """Matrix and vector FLOPs."""
        return self.matrix_flops + self.vector_flops


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A roll-up: the ops that share a phase, module, class of module, or name.

    ``measured_s`` sums the ops for which a time was found, ``timed_bound_s`` the bounds of the same ops;
    ``warm_bound_s`` is the bound of all, were all that a cache can hold in it whenever an op begins.
    """

    name: str
    calls: int
    matrix_flops: int
    vector_flops: int
    bytes_moved: int
    bytes_sent: int
    bound_s: float
    limiter: str
    measured_s: float | None
    timed_bound_s: float
    warm_bound_s: float
    predicted: Predicted | None = None

    @property
    def efficiency(self) -> float | None:
        """bound / measured, of the ops that were timed: 1 is the speed of light. None where none has a bound."""
        return self.timed_bound_s / self.measured_s if self.measured_s and self.timed_bound_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """All calls of one signature. ``bound`` and ``estimate`` are of one call, ``predicted`` is of all; ``measured_s``
    sums the medians of the ``timed_calls``.
    """

    signature: OpSignature
    calls: int
    modules: tuple[str, ...]
    cost: OpCost | Uncosted
    bound: Bound | None
    measured_s: float | None
    timed_calls: int
    estimate: Estimate | None = None
    predicted: Predicted | None = None

    @property
    def bound_s(self) -> float:
        """The bound of all calls."""
        return self.bound.time_s * self.calls if self.bound else 0.0

    @property
    def efficiency(self) -> float | None:
        """bound / measured, of the calls that were timed: 1 is the speed of light."""
        return self.bound.time_s * self.timed_calls / self.measured_s if self.measured_s and self.bound else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """Calls measured faster than their bound, which cannot be: a wrong cost, a wrong roof or a wrong clock."""

    signature: OpSignature
    calls: int
    bound_s: float
    measured_s: float


def sum_known(groups: np.ndarray, values: Float64, count: int) -> Float64:
    """Sum by group, leaving NaN where a group has no known value."""
    known = np.isfinite(values)
    sums = np.bincount(groups[known], weights=values[known], minlength=count).astype(np.float64)
    sums[np.bincount(groups[known], minlength=count) == 0] = np.nan
    return np.asarray(sums, dtype=np.float64)


def known(value: float) -> float | None:
    """A value, None where it is NaN."""
    return float(value) if np.isfinite(value) else None
