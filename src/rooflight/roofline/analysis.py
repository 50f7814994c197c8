"""Analysis: a session costed and bounded for a device, and its roll-ups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.costs.registry import cost_of
from rooflight.devices import get
from rooflight.devices.spec import DeviceSpec
from rooflight.records.estimate import Estimate
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.record import Direction, outside_modules, phase_name
from rooflight.records.report import Report
from rooflight.records.session import Float64, Int64, Measurement, Session
from rooflight.records.showing import Shown
from rooflight.records.signature import OpSignature
from rooflight.records.timeline import Timeline
from rooflight.records.visible import visible
from rooflight.roofline.bound import Limiter, bound_of
from rooflight.roofline.communication import Communication, communication_of
from rooflight.roofline.coverage import Coverage, coverage_of
from rooflight.roofline.float32 import float32_rules
from rooflight.roofline.fusion import Fusion, fuse
from rooflight.roofline.host import TYPICAL, Host
from rooflight.roofline.idle_report import step_remedy
from rooflight.roofline.measured_on import measured_elsewhere
from rooflight.roofline.memory import MemoryUse, memory_use
from rooflight.roofline.predicted import Estimates, Predicted
from rooflight.roofline.program import ProgramBounds, program_bounds, warm_bound_s
from rooflight.roofline.sums import Contradiction, Group, Operation, Totals, known, sum_known
from rooflight.roofline.wall import PredictedWall, Queue, predicted_wall, queue_of, without_host
from rooflight.roofline.waterfall import Exchange, Gap, waterfall_of

_KEYS = ("phase", "module", "layer", "function", "op", "direction")


class Analysis(Shown):
    """What a session must do, how fast ``device`` could do it, and how fast it ran. Computed once, on first use.

    ``estimates``, one for each of the session's signatures, are the times predicted for ``device``; ``host``, the
    typical one by default, is what the predicted wall time assumes. ``measured_on`` names the device on which the
    session was measured, if that is another: its times are then in ``there`` alone. ``show()`` prints the report,
    ``print(analysis)`` its main part; ``report()`` is what renderers take.
    """

    def __init__(
        self,
        session: Session,
        device: DeviceSpec,
        target: str = "",
        estimates: Sequence[Estimate | None] | None = None,
        host: Host | None = None,
        measured_on: str = "",
    ) -> None:
        self.session = session
        self.measured_on = measured_on
        self.device = device
        self.target = target
        self.host = host or TYPICAL
        self.float32 = float32_rules(session.environment, device)
        self._costs = tuple(cost_of(op) for op in session.signatures)
        self._bounds = tuple(
            None if isinstance(cost, Uncosted) else bound_of(cost, device, self.float32.precision_of(op))
            for op, cost in zip(session.signatures, self._costs, strict=True)
        )
        self._estimates = (
            None if estimates is None else Estimates(session.signatures, self._costs, self._bounds, estimates)
        )
        self._groups: dict[str, tuple[Group, ...]] = {}

    def __repr__(self) -> str:
        totals = self.totals
        measured = "" if totals.measured_s is None else f", measured {Quantity(totals.measured_s, 's')}"
        ops, bound = count_of(totals.calls, "op"), Quantity(totals.op_bound_s, "s")
        return visible(f"Analysis({ops} on {self.device.name}, op bound {bound}{measured})")

    def report(self, *, top: int = 10) -> Report:
        """What ``rooflight analyze`` shows; ``top`` limits the rows of long tables. Raises ValueError below 1."""
        from rooflight.roofline.report import report_of

        return report_of(self, top=top)

    def of(self, session: Session) -> Analysis:
        """The same analysis with other times: ``session`` is this one's, measured differently."""
        other = Analysis(session, self.device, self.target, host=self.host)
        other._estimates = self._estimates
        other.program = self.program
        return other

    def with_host(self, host: Host) -> Analysis:
        """The same analysis with the wall time of another host."""
        other = Analysis(self.session, self.device, self.target, host=host)
        other._estimates, other.queue = self._estimates, self.queue
        return other

    def on(self, device: DeviceSpec) -> Analysis:
        """The same session bounded for another device, without estimates; what does not depend on one is shared."""
        other = Analysis(self.session, device, self.target, measured_on=self.measured_on)
        other.fusion = self.fusion
        return other

    @property
    def measurement(self) -> Measurement | None:
        """The times of the session, None where they are of another device or there are none."""
        return None if self.measured_on else self.session.measurement

    @cached_property
    def there(self) -> Analysis | None:
        """The same analysis with the times of the device on which the session was measured, None where that is this
        one: of use for these times alone, since the bounds are of this device.
        """
        return Analysis(self.session, self.device, self.target) if self.measured_on else None

    @property
    def predicts(self) -> bool:
        """Whether there are estimates, so that times are predicted."""
        return self._estimates is not None

    @property
    def timeline(self) -> Timeline | None:
        """What the device on which the session was measured did meanwhile, None where it was not followed."""
        measurement = self.session.measurement
        return measurement.timeline if measurement is not None else None

    @property
    def costs(self) -> tuple[OpCost | Uncosted, ...]:
        """The cost of each of the session's signatures."""
        return self._costs

    def matrix_precision(self, op: OpSignature, dtype: str) -> str:
        """The precision at whose peak an op's products of ``dtype`` are bounded; the dtype where none is known."""
        return self.device.computed_as(self.float32.matrix_precision(op, dtype))

    @cached_property
    def totals(self) -> Totals:
        """Sums over all counted ops."""
        numbers = np.arange(len(self._calls))
        whole = np.zeros_like(numbers)
        (predicted,) = self._predicted(whole, numbers, self._calls, self._timed_calls, self._times, 1)
        group = self._group("", self._calls, self._times, self._timed_calls, predicted)
        costs = [
            (cost, int(calls)) for cost, calls in zip(self._costs, self._calls, strict=True) if isinstance(cost, OpCost)
        ]
        measurement = self.measurement
        return Totals(
            calls=group.calls,
            matrix_flops=group.matrix_flops,
            vector_flops=group.vector_flops,
            bytes_read=sum(cost.bytes_read * calls for cost, calls in costs),
            bytes_written=sum(cost.bytes_written * calls for cost, calls in costs),
            bytes_sent=group.bytes_sent,
            op_bound_s=group.bound_s,
            limiter=group.limiter,
            measured_s=measurement.wall_s if measurement and measurement.of_the_session else None,
            ops_measured_s=group.measured_s,
            predicted=predicted,
            predicted_wall=self._predicted_wall(predicted),
        )

    def _predicted_wall(self, predicted: Predicted | None) -> PredictedWall | None:
        """None where nothing is predicted. A CPU's measured ops include what the host spends on them."""
        if self._estimates is None or predicted is None:
            return None
        if self.device.kind == "cpu":
            return without_host(predicted)
        return predicted_wall(self.queue, self.predicted_op_s, predicted, self.host)

    @cached_property
    def queue(self) -> Queue:
        """What the counted ops ask of a host and of the device, in order."""
        return queue_of(self.session, self._costs)

    @property
    def predicted_op_s(self) -> Float64:
        """Predicted seconds of each counted op on the device, 0 where they are not known. Raises ValueError without
        estimates.
        """
        return self.estimates.seconds[self.session.columns.signature[self.session.counted]]

    @property
    def estimates(self) -> Estimates:
        """The estimates of the session's signatures. Raises ValueError without any."""
        if self._estimates is None:
            raise ValueError("nothing is predicted: rl.analyze(session, device, predictor=rl.Predictor())")
        return self._estimates

    @cached_property
    def coverage(self) -> Coverage:
        """How much of the session has a cost, and what has not."""
        return coverage_of(self.session, self._costs, self._calls, self._modules_of_signatures())

    def by(self, key: str) -> tuple[Group, ...]:
        """Roll-up by ``"phase"``, ``"module"`` (qualified name, its own ops only), ``"layer"`` (class of module),
        ``"function"`` (torch function called), ``"op"`` or ``"direction"``, largest bound first. The groups of a key
        sum to the totals.

        Raises ValueError for another key.
        """
        if key not in _KEYS:
            raise ValueError(f'no roll-up by "{key}": use one of {", ".join(_KEYS)}')
        if key not in self._groups:
            groups = self._roll_up(*self._labels(key))
            self._groups[key] = tuple(sorted(groups, key=lambda group: (-group.bound_s, -group.calls, group.name)))
        return self._groups[key]

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        """One entry per signature, the longest first: by measured time where there is one, else by predicted time, else
        by bound.
        """
        modules = self._modules_of_signatures()
        numbers = np.arange(len(self._calls))
        predicted = self._predicted(numbers, numbers, self._calls, self._timed_calls, self._times, len(numbers))
        found = [
            Operation(
                signature=op,
                calls=int(self._calls[index]),
                modules=modules.get(index, ()),
                cost=self._costs[index],
                bound=self._bounds[index],
                measured_s=known(self._times[index]),
                timed_calls=int(self._timed_calls[index]),
                estimate=self._estimates.of_one_call[index] if self._estimates else None,
                predicted=predicted[index],
            )
            for index, op in enumerate(self.session.signatures)
            if self._calls[index]
        ]
        return tuple(
            sorted(
                found,
                key=lambda op: (
                    -(op.measured_s or 0.0),
                    -(op.predicted.time_s if op.predicted else 0.0),
                    -op.bound_s,
                    -op.calls,
                ),
            )
        )

    @property
    def untimed_calls(self) -> int:
        """Calls with a bound for which no time was found."""
        return sum(operation.calls - operation.timed_calls for operation in self.operations if operation.bound_s)

    @cached_property
    def contradictions(self) -> tuple[Contradiction, ...]:
        """Ops whose median measured time is below their bound, even with their data in a cache, worst first."""
        if self.measurement is None:
            return ()
        bounds = np.array([bound.time_s if bound else 0.0 for bound in self._bounds])
        warm = self._warm_bounds_s
        signature = self.session.columns.signature
        times = self.measurement.op_s
        with np.errstate(invalid="ignore"):
            # an op that launched no kernel took no time on the device: nothing was measured that could be too fast
            beaten = self.session.counted & (times > 0) & (times < np.array(warm)[signature])
        found = []
        for index in np.unique(signature[beaten]):
            fast = times[beaten & (signature == index)]
            found.append(
                Contradiction(
                    signature=self.session.signatures[index],
                    calls=len(fast),
                    bound_s=float(bounds[index]),
                    measured_s=float(fast.min()),
                )
            )
        return tuple(sorted(found, key=lambda c: c.measured_s / c.bound_s))

    @property
    def beats_light(self) -> bool:
        """Whether the whole step was measured faster than its program bound, even with warm caches."""
        measured_s = self.totals.measured_s
        return measured_s is not None and measured_s < self.program.warm.program_bound_s

    @property
    def without_storages(self) -> bool:
        """Whether it is not known which memory the ops read and wrote: no op can be seen to take another's result."""
        return not len(self.session.storage_bytes) and (bool(self.totals.calls) or self.timeline is not None)

    @cached_property
    def program(self) -> ProgramBounds:
        """The fused and the program bound, from which storage each op reads and writes."""
        return program_bounds(self.session, self._costs, self._bounds, self.device, self.float32, self.fusion)

    @cached_property
    def _warm_bounds_s(self) -> list[float]:
        """Bounds of the signatures where a cache serves the data."""
        return [warm_bound_s(*each, self.device) for each in zip(self._costs, self._bounds, strict=True)]

    @cached_property
    def fusion(self) -> Fusion:
        """Which of its ops one kernel could do together."""
        return fuse(self.session, self._costs)

    @cached_property
    def waterfall(self) -> tuple[Gap, ...]:
        """From the program bound to the measured step, each gap with its remedy."""
        totals, program, timeline = self.totals, self.program, self.timeline
        return waterfall_of(
            program_bound_s=program.program_bound_s,
            fused_bound_s=program.fused_bound_s,
            op_bound_s=totals.op_bound_s,
            ops_measured_s=totals.ops_measured_s,
            measured_s=totals.measured_s,
            exchange=self._exchange,
            warm_program_bound_s=program.warm.program_bound_s,
            warm_op_bound_s=program.warm.op_bound_s,
            unknown_work_s=timeline.step_without_op_s if timeline is not None else 0.0,
            all_timed=not self.untimed_calls,
            idle_remedy=step_remedy(timeline) if timeline is not None else "",
        )

    @cached_property
    def communication(self) -> Communication:
        """The collectives: bytes, bounds, bandwidths, and how much of them no computing op hid."""
        session = replace(self.session, measurement=self.measurement)
        return communication_of(session, self._costs, self._bounds, self.device.interconnect)

    @property
    def busy_s(self) -> float | None:
        """Seconds of a step in which ops ran: their sum, with the exposed part of collectives. None where unknown."""
        ops_s, exchange = self.totals.ops_measured_s, self._exchange
        if ops_s is None or exchange is None:
            return ops_s
        return ops_s - exchange.measured_s + exchange.exposed_s

    @property
    def _exchange(self) -> Exchange | None:
        found = self.communication
        if found.measured_s is None or found.exposed_step_s is None:
            return None
        return Exchange(measured_s=found.measured_s, exposed_s=found.exposed_step_s, op_bound_s=found.op_bound_s)

    @cached_property
    def memory(self) -> MemoryUse:
        """Memory the step takes: its peak, by kind and over time, and what is alive then."""
        return memory_use(self.session)

    @cached_property
    def unknown_peaks(self) -> dict[str, int]:
        """Figures that the device's spec lacks, with the number of calls that would have needed them."""
        missing: dict[str, int] = {}
        for bound, calls in zip(self._bounds, self._calls, strict=True):
            for name in bound.unknown if bound else ():
                missing[name] = missing.get(name, 0) + int(calls)
        return {name: calls for name, calls in missing.items() if calls}

    @cached_property
    def _calls(self) -> Int64:
        signature = self.session.columns.signature[self.session.counted]
        return np.bincount(signature, minlength=len(self.session.signatures)).astype(np.int64)

    @cached_property
    def _op_s(self) -> Float64:
        """Measured seconds of the counted records, NaN where there are none."""
        measurement, counted = self.measurement, self.session.counted
        return np.full(int(counted.sum()), np.nan) if measurement is None else measurement.op_s[counted]

    @cached_property
    def _times(self) -> Float64:
        """Measured seconds by signature, NaN where no call was timed."""
        signature = self.session.columns.signature[self.session.counted]
        return sum_known(signature, self._op_s, len(self.session.signatures))

    @cached_property
    def _timed_calls(self) -> Int64:
        signature = self.session.columns.signature[self.session.counted][np.isfinite(self._op_s)]
        return np.bincount(signature, minlength=len(self.session.signatures)).astype(np.int64)

    def _labels(self, key: str) -> tuple[Int64, Sequence[str]]:
        """For each record the number of its group, and the groups' names."""
        columns, session = self.session.columns, self.session
        if key == "op":
            return _merge(columns.signature, [op.name for op in session.signatures])
        directions = [direction.label for direction in Direction]
        if key in ("module", "layer"):
            names = [
                (module.path if key == "module" else module.class_name) or outside_modules(direction)
                for module in session.modules
                for direction in Direction
            ]
            return _merge(columns.module.astype(np.int64) * len(directions) + columns.direction, names)
        if key == "function":
            return columns.function.astype(np.int64), [name or "(outside functions)" for name in session.functions]
        if key == "direction":
            return columns.direction.astype(np.int64), directions
        others = any(session.phases)
        names = [phase_name(phase, direction, others=others) for phase in session.phases for direction in Direction]
        return _merge(columns.phase.astype(np.int64) * len(directions) + columns.direction, names)

    def _roll_up(self, labels: Int64, names: Sequence[str]) -> list[Group]:
        counted = self.session.counted
        signatures = len(self.session.signatures)
        pairs = labels[counted].astype(np.int64) * signatures + self.session.columns.signature[counted]
        unique, inverse, counts = np.unique(pairs, return_inverse=True, return_counts=True)
        times = sum_known(inverse, self._op_s, len(unique))
        timed = np.bincount(inverse[np.isfinite(self._op_s)], minlength=len(unique))
        groups = []
        owners, members = np.divmod(unique, max(1, signatures))
        found, places = np.unique(owners, return_inverse=True)
        predicted = self._predicted(places, members, counts, timed, times, len(found))
        for number, label in enumerate(found):
            start, stop = np.searchsorted(owners, [label, label + 1])
            chosen = slice(start, stop)
            calls = dict(zip(members[chosen].tolist(), counts[chosen].tolist(), strict=True))
            groups.append(self._group(names[label], calls, times[chosen], timed[chosen], predicted[number]))
        return groups

    def _predicted(
        self, group: Int64, signature: Int64, calls: Int64, timed: Int64, measured_s: Float64, num_groups: int
    ) -> list[Predicted | None]:
        if self._estimates is None:
            return [None] * num_groups
        return self._estimates.sums(group, signature, calls, timed, measured_s, num_groups)

    def _group(
        self, name: str, calls: dict[int, int] | Int64, times: Float64, timed: Int64, predicted: Predicted | None
    ) -> Group:
        """``calls`` by signature; ``times`` and ``timed`` go with its entries: seconds, and of how many calls."""
        items = calls.items() if isinstance(calls, dict) else enumerate(calls.tolist())
        matrix = vector = moved = sent = total = 0
        bound_s = timed_bound_s = warm_s = 0.0
        by_limiter: dict[Limiter, float] = {}
        for (index, count), num_timed in zip(items, timed.tolist(), strict=True):
            cost, bound = self._costs[index], self._bounds[index]
            total += count
            if isinstance(cost, Uncosted) or bound is None or not count:
                continue
            matrix += count * cost.matrix_flops
            vector += count * cost.vector_flops
            moved += count * cost.bytes_moved
            sent += count * cost.bytes_sent
            seconds = count * bound.time_s
            bound_s += seconds
            warm_s += count * self._warm_bounds_s[index]
            timed_bound_s += num_timed * bound.time_s
            by_limiter[bound.limiter] = by_limiter.get(bound.limiter, 0.0) + seconds
        limiter = max(by_limiter, key=lambda key: by_limiter[key]) if bound_s else Limiter.NOTHING
        return Group(
            name=name,
            calls=total,
            matrix_flops=matrix,
            vector_flops=vector,
            bytes_moved=moved,
            bytes_sent=sent,
            bound_s=bound_s,
            limiter=limiter.value,
            measured_s=known(np.nansum(times) if np.isfinite(times).any() else np.nan),
            timed_bound_s=timed_bound_s,
            warm_bound_s=warm_s,
            predicted=predicted,
        )

    def _modules_of_signatures(self) -> dict[int, tuple[str, ...]]:
        counted = self.session.counted
        modules = len(self.session.modules)
        pairs = self.session.columns.signature[counted].astype(np.int64) * modules
        found: dict[int, list[str]] = {}
        for pair in np.unique(pairs + self.session.columns.module[counted]).tolist():
            found.setdefault(pair // modules, []).append(self.session.modules[pair % modules].path)
        return {index: tuple(paths) for index, paths in found.items()}


def analyze(
    session: Session,
    device: DeviceSpec | str,
    target: str = "",
    estimates: Sequence[Estimate | None] | None = None,
    host: Host | None = None,
) -> Analysis:
    """Cost and bound a session for a device given as a spec or by name; ``estimates`` of its signatures on that device
    make it predict times too, its wall time with ``host``. Raises ValueError for an unknown name.

    Times that were measured on another device are not times of this one: no efficiency is computed with them. Where the
    session names a GPU that is not in the catalog, ``device`` stands for that.
    """
    spec = get(device) if isinstance(device, str) else device
    return Analysis(session, spec, target, estimates, host, measured_elsewhere(session, spec))


def _merge(numbers: np.ndarray, names: Sequence[str]) -> tuple[Int64, list[str]]:
    """Renumber so that entries of the same name share a number."""
    distinct: dict[str, int] = {}
    renumbered = np.array([distinct.setdefault(name, len(distinct)) for name in names], dtype=np.int64)
    return renumbered[numbers], list(distinct)
