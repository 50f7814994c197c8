"""A session costed and bounded for a device, its roll-ups, and the times that were measured or are predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Self

import msgspec
import numpy as np

from rooflight.costs.cost import Uncosted
from rooflight.costs.registry import cost_of
from rooflight.hardware.devices.catalog import find_by_torch_name
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.records.estimate import Estimate
from rooflight.records.measurement import Float64, Measurement
from rooflight.records.record import Direction, outside_modules, phase_name
from rooflight.records.session import Int64, Session
from rooflight.records.signature import OpSignature
from rooflight.records.timeline import Timeline
from rooflight.roofline.bound import bound_of, float32_rules
from rooflight.roofline.fusion.regions import Fusion, fuse
from rooflight.roofline.groups import Contradiction, Coverage, Group, Operation, RollUp, Totals, coverage_of, merged
from rooflight.roofline.host import TYPICAL, Host, device_cost_of, in_device_memory
from rooflight.roofline.memory.use import MemoryUse, memory_use
from rooflight.roofline.network import Communication, communication_of
from rooflight.roofline.predicted import (
    Estimates,
    Predicted,
    PredictedWall,
    Queue,
    predicted_wall,
    queue_of,
    without_host,
)
from rooflight.roofline.program import ProgramBounds, program_bounds, warm_bound_s

_KEYS = ("phase", "module", "layer", "function", "op", "direction")


class CostedSession:
    """What a session must do, how fast ``device`` could do it, and how fast it ran. Computed once, on first use.

    ``estimates``, one for each of the session's signatures, are the times predicted for ``device``; ``host``, the
    typical one by default, is what the predicted wall time assumes. ``measured_on`` names the device on which the
    session was measured, if that is another: its times are then in ``there`` alone.
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
        self.costs = tuple(map(cost_of if device.kind == "cpu" else device_cost_of, session.signatures))
        self.bounds = tuple(
            None if isinstance(cost, Uncosted) else bound_of(cost, device, self.float32.products_at(op, cost))
            for op, cost in zip(session.signatures, self.costs, strict=True)
        )
        self._estimates = None
        if estimates is not None:
            self._estimates = Estimates(session.signatures, self.costs, self.bounds, estimates)
        self.formats: Mapping[tuple[str, str], Predicted] = {}  # a decode step's, by those of weights and KV cache
        self.channels_last: Predicted | None = None  # of a step whose images lie channel by channel
        self._by: dict[str, tuple[Group, ...]] = {}

    def of(self, session: Session) -> Self:
        """The same analysis with other times: ``session`` is this one's, measured differently."""
        measured = session.measurement is not None
        there = self.measured_on or (ran_elsewhere(session, self.device) if measured else "")
        other = type(self)(session, self.device, self.target, host=self.host, measured_on=there)
        other._estimates, other.formats, other.channels_last = self._estimates, self.formats, self.channels_last
        other.program, other.fusion = self.program, self.fusion
        return other

    def with_host(self, host: Host) -> Self:
        """The same analysis with the wall time of another host."""
        other = type(self)(self.session, self.device, self.target, host=host, measured_on=self.measured_on)
        other._estimates, other.formats, other.queue = self._estimates, self.formats, self.queue
        other.channels_last = self.channels_last
        return other

    def on(self, device: DeviceSpec) -> Self:
        """The same session bounded for another device, without estimates; what does not depend on one is shared."""
        other = type(self)(self.session, device, self.target, measured_on=self.measured_on)
        if (device.kind == "cpu") == (self.device.kind == "cpu"):
            other.fusion = self.fusion
        return other

    # -- what was measured --------------------------------------------------------------------------------------------

    @property
    def measurement(self) -> Measurement | None:
        """The times of the session, None where they are of another device or there are none."""
        return None if self.measured_on else self.session.measurement

    @cached_property
    def there(self) -> Self | None:
        """The same analysis with the times of the device on which the session was measured, None where that is this
        one: of use for these times alone, since the bounds are of this device.
        """
        return type(self)(self.session, self.device, self.target) if self.measured_on else None

    @property
    def timeline(self) -> Timeline | None:
        """What the device on which the session was measured did meanwhile, None where it was not followed."""
        measurement = self.session.measurement
        return measurement.timeline if measurement is not None else None

    @property
    def untimed_calls(self) -> int:
        """Calls with a bound for which no time was found."""
        return sum(operation.calls - operation.timed_calls for operation in self.operations if operation.bound_s)

    @cached_property
    def contradictions(self) -> tuple[Contradiction, ...]:
        """Ops whose median measured time is below their bound, even with their data in a cache, worst first."""
        if self.measurement is None:
            return ()
        signature, times = self.session.columns.signature, self.measurement.op_s
        with np.errstate(invalid="ignore"):
            # an op that launched no kernel took no time on the device: nothing was measured that could be too fast
            too_fast = self.session.counted & (times > 0) & (times < np.array(self._warm_bounds_s)[signature])
        found = []
        for index in np.unique(signature[too_fast]).tolist():
            op, bound, fast = self.session.signatures[index], self.bounds[index], times[too_fast & (signature == index)]
            assert bound is not None
            found.append(
                Contradiction(
                    name=op.name,
                    shapes=op.input_shapes,
                    calls=len(fast),
                    bound_s=float(bound.time_s),
                    measured_s=float(fast.min()),
                )
            )
        return tuple(sorted(found, key=lambda c: c.measured_s / c.bound_s))

    @property
    def beats_light(self) -> bool:
        """Whether the whole step was measured faster than its program bound, even with warm caches."""
        measured_s = self.totals.measured_s
        return measured_s is not None and measured_s < self.program.warm.program_bound_s

    @cached_property
    def communication(self) -> Communication:
        """The collectives: bytes, bounds, bandwidths, and how much of them no computing op hid."""
        session = replace(self.session, measurement=self.measurement)
        return communication_of(session, self.costs, self.bounds, self.device.interconnect)

    @property
    def busy_s(self) -> float | None:
        """Seconds of a step in which ops ran: their sum, with the exposed part of collectives. None where unknown."""
        ops_s, found = self.totals.ops_measured_s, self.communication
        if ops_s is None or found.measured_s is None or found.exposed_step_s is None:
            return ops_s
        return ops_s - found.measured_s + found.exposed_step_s

    # -- what is predicted --------------------------------------------------------------------------------------------

    @property
    def predicts(self) -> bool:
        """Whether there are estimates, so that times are predicted."""
        return self._estimates is not None

    @property
    def estimates(self) -> Estimates:
        """The estimates of the session's signatures. Raises ValueError without any."""
        if self._estimates is None:
            raise ValueError("nothing is predicted: rl.analyze(session, device, predictor=rl.Predictor())")
        return self._estimates

    @property
    def predicted_op_s(self) -> Float64:
        """Predicted seconds of each counted op on the device, 0 where they are not known. Raises ValueError without
        estimates.
        """
        return self.estimates.seconds[self.session.columns.signature[self.session.counted]]

    def predicted_with(self, ops: Sequence[OpSignature], estimates: Sequence[Estimate | None]) -> Predicted | None:
        """What the device is predicted to take if these ops ran, each in the place of the signature of its number."""
        other = type(self)(replace(self.session, signatures=tuple(ops)), self.device, "", estimates)
        return other._groups.whole().predicted

    @cached_property
    def queue(self) -> Queue:
        """What the counted ops ask of a host and of the device, in order."""
        return queue_of(self.session, self.costs)

    def _predicted_wall(self, predicted: Predicted | None) -> PredictedWall | None:
        """None where nothing is predicted. A CPU's measured ops include what the host spends on them."""
        if predicted is None:
            return None
        if self.device.kind == "cpu":
            return without_host(predicted)
        return predicted_wall(self.queue, self.predicted_op_s, predicted, self.host)

    # -- sums ---------------------------------------------------------------------------------------------------------

    @cached_property
    def _groups(self) -> RollUp:
        signature = self.session.columns.signature[self.session.counted].astype(np.int64)
        measurement = self.measurement
        op_s = measurement.op_s[self.session.counted] if measurement else np.full(len(signature), np.nan)
        return RollUp(signature, op_s, self.costs, self.bounds, self._warm_bounds_s, self._estimates)

    @cached_property
    def totals(self) -> Totals:
        """Sums over all counted ops; the op bound is that of the whole step (``ProgramBounds``)."""
        whole = self._groups.whole()
        wall, measurement = self._predicted_wall(whole.predicted), self.measurement
        step_s = measurement.wall_s if measurement and measurement.of_the_session else None
        totals = Totals.of(whole, step_s, wall)
        if not self.held_by_caches:
            return totals
        return msgspec.structs.replace(
            totals, op_bound_s=self.program.program_bound_s, limiter=self.program.limiter.value
        )

    @property
    def leading_bound(self) -> tuple[str, float]:
        """Name and seconds of the bound that a step is compared with: compiled code beats the op bound by design."""
        if self.session.compiled and self.program.fused_bound_s:
            return "fused bound", self.program.fused_bound_s
        return "op bound", self.totals.op_bound_s

    @cached_property
    def held_by_caches(self) -> bool:
        """Whether all ops at once take longer than the sum of their bounds: each finds in a measured cache what it
        needs, and the cache cannot hold what all of them need.
        """
        measured = any(level.bytes_per_s is not None for level in self.device.memory[:-1])
        return measured and self.program.program_bound_s > self._groups.whole().op_bound_s * (1 + 1e-9)  # not rounding

    def by(self, key: str) -> tuple[Group, ...]:
        """Roll-up by ``"phase"``, ``"module"`` (qualified name, its own ops only), ``"layer"`` (class of module),
        ``"function"`` (torch function called), ``"op"`` or ``"direction"``, largest bound first. The groups of a key
        sum to the totals, their bounds to less where ``held_by_caches``.

        Raises ValueError for another key.
        """
        if key not in _KEYS:
            raise ValueError(f'no roll-up by "{key}": use one of {", ".join(_KEYS)}')
        if key not in self._by:
            there = {group.name: group.measured_s for group in self.there.by(key)} if self.there else {}
            labels, names = self.labels(key)
            groups = self._groups.by(labels[self.session.counted], names, there)
            self._by[key] = tuple(sorted(groups, key=lambda group: (-group.bound_s, -group.calls, group.name)))
        return self._by[key]

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        """One entry per signature, the longest first: by measured time where there is one, else by predicted time, else
        by bound.
        """
        modules, signatures = self._modules_of_signatures, self.session.signatures
        numbers = [str(index) for index in range(len(signatures))]
        there = {} if self.there is None else {each.signature: each.measured_s for each in self.there.operations}
        measured_there = {number: there.get(op) for number, op in zip(numbers, signatures, strict=True)}
        found = []
        for group in self._groups.by(self._groups.signature, numbers, measured_there):
            index = int(group.name)
            estimate = self._estimates.of_one_call[index] if self._estimates else None
            cost, bound = self.costs[index], self.bounds[index]
            found.append(Operation.of_group(signatures[index], cost, bound, estimate, modules.get(index, ()), group))
        return tuple(
            sorted(found, key=lambda op: (-(op.measured_s or 0.0), -(op.predicted_s or 0.0), -op.bound_s, -op.calls))
        )

    @cached_property
    def coverage(self) -> Coverage:
        """How much of the session has a cost, and what has not."""
        masks = len(self.fusion.unknown_masks)
        return coverage_of(self.session, self.costs, self._calls, self._modules_of_signatures, assumed=masks)

    @cached_property
    def unknown_peaks(self) -> dict[str, int]:
        """Figures that the device's spec lacks, with the number of calls that would have needed them."""
        missing: dict[str, int] = {}
        for bound, calls in zip(self.bounds, self._calls.tolist(), strict=True):
            for name in bound.unknown if bound and calls else ():
                missing[name] = missing.get(name, 0) + calls
        return missing

    @property
    def products(self) -> list[tuple[OpSignature, str]]:
        """Ops that compute matrix products, each with the dtype of those."""
        costed = [(op.signature, op.cost) for op in self.operations if not isinstance(op.cost, Uncosted)]
        return [(op, cost.matrix_dtype) for op, cost in costed if cost.matrix_flops and cost.matrix_dtype]

    @property
    def matrix_formats(self) -> list[str]:
        """The formats of which matrix peaks bound the run."""
        return sorted({self.matrix_precision(op, dtype) for op, dtype in self.products})

    def matrix_precision(self, op: OpSignature, dtype: str) -> str:
        """The precision at whose peak an op's products of ``dtype`` are bounded; the dtype where none is known."""
        return self.device.computed_as(self.float32.matrix_precision(op, dtype))

    # -- the whole program --------------------------------------------------------------------------------------------

    @property
    def without_storages(self) -> bool:
        """Whether it is not known which memory the ops read and wrote: no op can be seen to take another's result."""
        return not len(self.session.storage_bytes) and (bool(self.totals.calls) or self.timeline is not None)

    @cached_property
    def fusion(self) -> Fusion:
        """Which of its ops one kernel could do together."""
        return fuse(self.session, self.costs)

    @cached_property
    def program(self) -> ProgramBounds:
        """The fused and the program bound, from which storage each op reads and writes."""
        return program_bounds(self.session, self.costs, self.bounds, self.device, self.float32, self.fusion)

    @cached_property
    def memory(self) -> MemoryUse:
        """Memory the step takes: its peak, by kind and over time, and what is alive then."""
        session = self.session if self.device.kind == "cpu" else in_device_memory(self.session)
        return memory_use(session, self.device.dram_capacity_bytes, self.fusion.kept, self.costs)

    # -- columns ------------------------------------------------------------------------------------------------------

    @cached_property
    def _warm_bounds_s(self) -> list[float]:
        return [warm_bound_s(*each, self.device) for each in zip(self.costs, self.bounds, strict=True)]

    @cached_property
    def _calls(self) -> Int64:
        signature = self.session.columns.signature[self.session.counted]
        return np.bincount(signature, minlength=len(self.session.signatures)).astype(np.int64)

    @cached_property
    def _modules_of_signatures(self) -> Mapping[int, tuple[str, ...]]:
        counted, modules = self.session.counted, len(self.session.modules)
        pairs = self.session.columns.signature[counted].astype(np.int64) * modules
        found: dict[int, list[str]] = {}
        for pair in np.unique(pairs + self.session.columns.module[counted]).tolist():
            found.setdefault(pair // modules, []).append(self.session.modules[pair % modules].path)
        return {index: tuple(paths) for index, paths in found.items()}

    def labels(self, key: str) -> tuple[Int64, Sequence[str]]:
        """For each record the number of its group, and the groups' names."""
        columns, session = self.session.columns, self.session
        if key == "op":
            return merged(columns.signature, [op.name for op in session.signatures])
        if key == "function":
            return columns.function.astype(np.int64), [name or "(outside functions)" for name in session.functions]
        if key == "direction":
            return columns.direction.astype(np.int64), [direction.label for direction in Direction]
        if key == "phase":
            owners, others = columns.phase, any(session.phases)
            names = [phase_name(phase, way, others=others) for phase in session.phases for way in Direction]
        else:
            owners = columns.module
            paths = [module.path if key == "module" else module.class_name for module in session.modules]
            names = [path or outside_modules(way) for path in paths for way in Direction]
        return merged(owners.astype(np.int64) * len(Direction) + columns.direction, names)


def ran_elsewhere(session: Session, device: DeviceSpec) -> str:
    """The name of the device that a session ran on, empty where that is ``device`` or unknown. A GPU stands
    for one that is not in the catalog.
    """
    environment = session.environment
    if "device_kind" not in environment:
        return ""
    if environment["device_kind"] == "cuda":
        name = environment.get("gpu", "")
        known = find_by_torch_name(name)
        if known is None and device.kind == "cuda":
            return ""
        return "" if device.part_name in (name, known.name if known else "") else name
    return "" if device.kind == "cpu" else environment.get("cpu", "a CPU")
