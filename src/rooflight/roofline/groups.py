"""What an analysis sums up: totals, groups of ops, all calls of one signature, what has no cost, what beats its bound.

Each noun is what ``rooflight analyze --json`` writes of it. Where a noun has more than that, it is a subclass of its
``Figures``, which a document takes by ``Fields.view``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.records.document import Fields
from rooflight.records.estimate import Estimate
from rooflight.records.measurement import Float64
from rooflight.records.report import share
from rooflight.records.session import Int64, Session
from rooflight.records.signature import OpSignature
from rooflight.roofline.bound import Bound, Limiter
from rooflight.roofline.distinct import distinct
from rooflight.roofline.predicted import Estimates, Predicted, PredictedFields, PredictedWall, WallFields

_Key = TypeVar("_Key")
_SUMMED: Final = ("matrix_flops", "vector_flops", "bytes_moved", "bytes_read", "bytes_written", "bytes_sent")


def shared(cls: type[Fields], value: Fields) -> dict[str, Any]:
    """The fields of ``value`` that ``cls`` has too."""
    return {name: getattr(value, name) for name in cls.__struct_fields__ if hasattr(value, name)}


class GroupFigures(PredictedFields, frozen=True, kw_only=True):
    """The ops that share a phase, module, class of module or name. A list of groups sums to the totals.

    ``measured_s`` sums the ops for which a time was found; ``efficiency`` is op bound / measured of the same ops,
    None where none has a bound. ``arithmetic_intensity`` is matrix and vector FLOPs over bytes moved,
    None where none are. ``measured_there_s``: the time on another device, see ``Analysis``.
    """

    name: str
    calls: int
    matrix_flops: int
    vector_flops: int
    bytes_moved: int
    bytes_sent: int
    arithmetic_intensity: float | None
    op_bound_s: float
    limiter: str
    measured_s: float | None
    efficiency: float | None
    measured_there_s: float | None = None


class Group(GroupFigures, frozen=True, kw_only=True):
    """A group of ops. ``warm_bound_s`` is the bound, were all that a cache can hold in it whenever an op begins."""

    bytes_read: int
    bytes_written: int
    timed_calls: int
    warm_bound_s: float
    predicted: Predicted | None

    @property
    def bound_s(self) -> float:
        """The op bound."""
        return self.op_bound_s


class SummedFields(WallFields, frozen=True, kw_only=True):
    """Sums over all ops. ``measured_s`` is the median of steps, ``ops_measured_s`` the sum of the ops' medians; both
    None for a session that was not measured, or whose timed step is another than the recorded one. ``predicted_s`` is
    the device's time, as if replayed from a graph; ``predicted_wall_s`` includes the host's.
    """

    calls: int
    matrix_flops: int
    vector_flops: int
    bytes_moved: int
    bytes_read: int
    bytes_written: int
    bytes_sent: int
    arithmetic_intensity: float | None
    op_bound_s: float
    measured_s: float | None
    ops_measured_s: float | None


class Totals(SummedFields, frozen=True, kw_only=True):
    """Sums over the counted ops. ``limiter`` is what limits most of the op bound; predictions are None without one."""

    limiter: str
    predicted: Predicted | None
    predicted_wall: PredictedWall | None

    @classmethod
    def of(cls, group: Group, measured_s: float | None, wall: PredictedWall | None) -> Totals:
        """The sums that ``group`` has, with the time of a step and a predicted one."""
        both = WallFields.read_both(group.predicted, wall)
        step = {"measured_s": measured_s, "ops_measured_s": group.measured_s, "predicted_wall": wall}
        return cls(**shared(cls, group) | both | step)

    @property
    def flops(self) -> int:
        """Matrix and vector FLOPs."""
        return self.matrix_flops + self.vector_flops


class OperationFigures(PredictedFields, frozen=True, kw_only=True):
    """All calls of one signature; figures are of all of them. Those of its cost are None for an op without one.

    ``limiter`` is compute, memory, cache (its data fit a cache, whose speed ``op_bound_s`` leaves out and
    ``warm_op_bound_s`` has), network or nothing.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    modules: tuple[str, ...]
    calls: int
    costed: bool
    reason: str | None
    matrix_flops: int | None
    vector_flops: int | None
    bytes_moved: int | None
    bytes_sent: int | None
    arithmetic_intensity: float | None
    assumed: bool | None
    op_bound_s: float | None
    warm_op_bound_s: float | None
    limiter: str | None
    measured_s: float | None
    efficiency: float | None
    measured_there_s: float | None
    prediction_source: str | None
    extrapolated: bool | None


class Operation(OperationFigures, frozen=True, kw_only=True):
    """All calls of one signature. ``bound`` and ``estimate`` are of one call, ``predicted`` is of all; ``measured_s``
    sums the medians of the ``timed_calls``.
    """

    signature: OpSignature
    cost: OpCost | Uncosted
    bound: Bound | None
    timed_calls: int
    estimate: Estimate | None
    predicted: Predicted | None

    @classmethod
    def of_group(
        cls,
        op: OpSignature,
        cost: OpCost | Uncosted,
        bound: Bound | None,
        estimate: Estimate | None,
        modules: tuple[str, ...],
        group: Group,
    ) -> Operation:
        """The calls of ``op``, which ``group`` sums up."""
        of_one = {"name": op.name, "signature": op, "cost": cost, "bound": bound, "estimate": estimate}
        found = (
            shared(cls, group)
            | of_one
            | {
                "shapes": op.input_shapes,
                "dtypes": tuple(tensor.dtype for tensor in op.inputs),
                "modules": modules,
                "costed": isinstance(cost, OpCost),
                "reason": cost.reason if isinstance(cost, Uncosted) else None,
                "assumed": cost.is_assumed if isinstance(cost, OpCost) else None,
                "op_bound_s": group.op_bound_s if bound else None,
                "warm_op_bound_s": group.warm_bound_s if bound else None,
                "limiter": bound.limiter.value if bound else None,
                "efficiency": None,
                "prediction_source": estimate.source.value if estimate else None,
                "extrapolated": estimate.extrapolated if estimate else None,
            }
        )
        if isinstance(cost, Uncosted):
            found |= dict.fromkeys(set(_SUMMED) & found.keys())
        if group.measured_s and bound:
            found["efficiency"] = bound.time_s * group.timed_calls / group.measured_s
        return cls(**found)

    @property
    def bound_s(self) -> float:
        """The bound of all calls, 0 where there is none."""
        return self.op_bound_s or 0.0


class RollUp:
    """Sums of counted ops by any label: of a step, its phases or modules, or the calls of one signature.

    By op: the number of its ``signature``, and ``op_s``, the seconds measured, NaN where there are none. The others go
    with the signatures; ``warm_s`` are bounds where a cache serves the data.
    """

    def __init__(
        self,
        signature: Int64,
        op_s: Float64,
        costs: Sequence[OpCost | Uncosted],
        bounds: Sequence[Bound | None],
        warm_s: Sequence[float],
        estimates: Estimates | None,
    ) -> None:
        self.signature, self._op_s = signature, op_s
        self._costs, self._bounds, self._warm_s, self._estimates = costs, bounds, warm_s, estimates

    def whole(self) -> Group:
        """All ops."""
        nothing = np.empty(0, dtype=np.int64)
        groups = self.by(np.zeros(len(self.signature), dtype=np.int64), ["all"])
        return groups[0] if groups else self._group("all", nothing, nothing, np.empty(0), nothing, None, None)

    def by(self, labels: Int64, names: Sequence[str], there: Mapping[str, float | None] | None = None) -> list[Group]:
        """The groups: ``labels`` has by op the number of its name, ``there`` by name the time on another device."""
        num_ops = max(1, len(self._costs))
        cells, cell, calls = distinct(labels.astype(np.int64) * num_ops + self.signature)
        label, op = np.divmod(cells, num_ops)
        times = sum_known(cell, self._op_s, len(cells))
        timed = np.bincount(cell[np.isfinite(self._op_s)], minlength=len(cells))
        found, place = np.unique(label, return_inverse=True)
        predicted: list[Predicted | None] = [None] * len(found)
        if self._estimates is not None:
            predicted = self._estimates.sums(place, op, calls, timed, times, len(found))
        ends = np.searchsorted(label, found, side="right").tolist()
        groups = []
        for name, start, end, sums in zip(found.tolist(), [0, *ends], ends, predicted, strict=False):
            here, there_s = slice(start, end), (there or {}).get(names[name])
            groups.append(self._group(names[name], op[here], calls[here], times[here], timed[here], sums, there_s))
        return groups

    def _group(
        self,
        name: str,
        ops: Int64,
        calls: Int64,
        times: Float64,
        timed: Int64,
        predicted: Predicted | None,
        there_s: float | None,
    ) -> Group:
        """So many ``calls`` of each of ``ops`` (numbers of signatures), of which those ``timed`` took ``times``."""
        sums: dict[str, Any] = dict.fromkeys(_SUMMED, 0)
        bound_s = timed_bound_s = warm_s = 0.0
        by_limiter: dict[Limiter, float] = {}
        for index, count, num_timed in zip(ops.tolist(), calls.tolist(), timed.tolist(), strict=True):
            cost, bound = self._costs[index], self._bounds[index]
            if isinstance(cost, Uncosted) or bound is None:
                continue
            sums = {field: so_far + count * getattr(cost, field) for field, so_far in sums.items()}
            seconds = count * bound.time_s
            bound_s += seconds
            warm_s += count * self._warm_s[index]
            timed_bound_s += num_timed * bound.time_s
            by_limiter[bound.limiter] = by_limiter.get(bound.limiter, 0.0) + seconds
        limiter = max(by_limiter, key=lambda key: by_limiter[key]) if bound_s else Limiter.NOTHING
        measured_s = float(np.nansum(times)) if np.isfinite(times).any() else None
        return Group(
            name=name,
            calls=int(calls.sum()),
            arithmetic_intensity=share(sums["matrix_flops"] + sums["vector_flops"], sums["bytes_moved"]),
            op_bound_s=bound_s,
            limiter=limiter.value,
            measured_s=measured_s,
            efficiency=timed_bound_s / measured_s if measured_s and timed_bound_s else None,
            measured_there_s=there_s,
            timed_calls=int(timed.sum()),
            warm_bound_s=warm_s,
            predicted=predicted,
            **(sums | PredictedFields.read(predicted)),
        )


class Contradiction(Fields, frozen=True, kw_only=True):
    """Calls measured faster than their bound, which cannot be: a wrong cost, a wrong roof or a wrong clock.
    ``measured_s`` is the fastest.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    calls: int
    bound_s: float
    measured_s: float


NO_OP: Final = "(no op)", "the trace does not show which op launched it"
OTHER_THREADS: Final = "(other threads)", "began inside the recording and were only counted: record in them too"
"""What stand for an op and its reason, of work that belongs to none."""


class UncostedOp(Fields, frozen=True, kw_only=True):
    """An op without a cost, which every total lacks: how often it ran, the bytes of its tensors, why, and where."""

    name: str
    reason: str
    calls: int
    bytes: int
    modules: tuple[str, ...] = ()


class Coverage(Fields, frozen=True, kw_only=True):
    """The share of calls, and of the bytes of all ops' tensors, that has a cost: None of no calls. ``upper_calls``
    are costed under an assumption about their data, which could lower the cost.

    What ran in threads that a recording only counted has no cost. Of a trace, ``time`` is the share of the device's
    work by its time. Each piece of work that belongs to no op counts as a call without a cost, and the bytes are then
    not known.
    """

    calls: float | None
    bytes: float | None
    time: float | None = None
    uncosted: tuple[UncostedOp, ...]
    upper_calls: int


def coverage_of(
    session: Session,
    costs: Sequence[OpCost | Uncosted],
    calls: Int64,
    modules: Mapping[int, Sequence[str]],
    *,
    assumed: int = 0,
) -> Coverage:
    """The coverage of a session; ``costs`` and ``calls`` go with its signatures, ``modules`` has by number of a
    signature the paths of the modules that call it. ``assumed``: calls under assumptions that their costs do not name.
    """
    found: dict[tuple[str, str], UncostedOp] = {}
    all_bytes, upper = session.other_threads.bytes, assumed
    for number, (op, cost, count) in enumerate(zip(session.signatures, costs, calls.tolist(), strict=True)):
        size = count * (op.input_bytes + op.output_bytes)
        all_bytes += size
        if isinstance(cost, OpCost):
            upper += count if cost.is_assumed else 0
        elif count:
            before = found.get((op.name, cost.reason))
            found[op.name, cost.reason] = UncostedOp(
                name=op.name,
                reason=cost.reason,
                calls=count + (before.calls if before else 0),
                bytes=size + (before.bytes if before else 0),
                modules=tuple(dict.fromkeys((*(before.modules if before else ()), *modules.get(number, ())))),
            )
    timeline, elsewhere = session.measurement.timeline if session.measurement else None, session.other_threads
    pieces = timeline.step_without_op if timeline else 0
    for (name, reason), count, size in ((NO_OP, pieces, 0), (OTHER_THREADS, *elsewhere)):
        if count:
            found[name, reason] = UncostedOp(name=name, reason=reason, calls=count, bytes=size)
    uncosted, all_calls = found.values(), int(calls.sum()) + pieces + elsewhere.calls
    return Coverage(
        calls=1 - sum(op.calls for op in uncosted) / all_calls if all_calls else None,
        bytes=1 - sum(op.bytes for op in uncosted) / all_bytes if all_bytes and not pieces else None,
        time=_timed_share(session, costs, timeline.step_without_op_s) if timeline else None,
        uncosted=tuple(sorted(uncosted, key=lambda op: (-op.bytes, -op.calls, op.name))),
        upper_calls=upper,
    )


def _timed_share(session: Session, costs: Sequence[OpCost | Uncosted], without_op_s: float) -> float | None:
    assert session.measurement is not None
    has_cost = np.array([isinstance(cost, OpCost) for cost in costs], dtype=np.bool_)[session.columns.signature]
    seconds = np.where(session.counted, np.nan_to_num(session.measurement.op_s), 0.0)
    whole_s = float(seconds.sum()) + without_op_s
    return float(seconds[has_cost].sum()) / whole_s if whole_s else None


def seconds_by(pairs: Iterable[tuple[_Key, float]]) -> dict[_Key, float]:
    """Sums of seconds by key, the longest first."""
    sums: dict[_Key, float] = {}
    for key, seconds in pairs:
        sums[key] = sums.get(key, 0.0) + seconds
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def merged(numbers: np.ndarray, names: Sequence[str]) -> tuple[Int64, list[str]]:
    """Renumber so that entries of the same name share a number."""
    distinct: dict[str, int] = {}
    renumbered = np.array([distinct.setdefault(name, len(distinct)) for name in names], dtype=np.int64)
    return renumbered[numbers], list(distinct)


def sum_known(groups: np.ndarray, values: Float64, count: int) -> Float64:
    """Sum by group, leaving NaN where a group has no known value."""
    known = np.isfinite(values)
    sums = np.bincount(groups[known], weights=values[known], minlength=count).astype(np.float64)
    sums[np.bincount(groups[known], minlength=count) == 0] = np.nan
    return np.asarray(sums, dtype=np.float64)


def plain_name(name: str) -> str:
    """``aten::mm`` as ``mm``; other namespaces stay."""
    return name.removeprefix("aten::").removeprefix("rooflight::")
