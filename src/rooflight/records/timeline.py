"""Timeline: what a device did with the time of a measured run, why it was idle, and how much of it belongs to no op."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedWork:
    """Work of a device of one name: how many pieces, and their seconds in sum."""

    name: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Seconds in which a device did nothing, by cause; they sum to the idle time.

    No work was queued: ``host_late_s`` the host had other things to do than to launch; ``sync_s`` it had waited for the
    device (a sync, ``.item()``, a blocking copy), until its next launch; ``pageable_copy_s`` the same of a copy from
    pageable memory; ``data_loader_s`` it fetched a batch; ``rank_s`` it waited for another rank in a collective of
    the host; ``driver_s`` it was in a call of the driver that is no launch (allocation, loading of kernels, contexts);
    ``profiler_s`` the profiler worked. ``launch_s``: work was queued, and had not begun. ``unknown_s``: the launch of
    the work that ended it is not in the trace.
    """

    host_late_s: float = 0.0
    sync_s: float = 0.0
    pageable_copy_s: float = 0.0
    data_loader_s: float = 0.0
    rank_s: float = 0.0
    driver_s: float = 0.0
    profiler_s: float = 0.0
    launch_s: float = 0.0
    unknown_s: float = 0.0

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """Each cause, by the name of its field, with its seconds."""
        return tuple((each.name, getattr(self, each.name)) for each in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTime:
    """Seconds of a stretch of wall time.

    Each is the time in which at least one such piece of work ran, whatever else ran: ``compute_s`` kernels that are no
    collectives, and fills, ``copy_s`` copies, ``communication_s`` collectives. ``exposed_communication_s`` is that in
    which collectives ran and no other kernel, ``exposed_copy_s`` that in which copies ran and no kernel at all.
    ``busy_s`` is compute and both exposed times; ``idle_s`` is the rest of the wall time, and ``idle`` has its causes.
    A device is busy where any of its streams is; of several devices the work is counted as if they were one.
    """

    wall_s: float
    busy_s: float
    compute_s: float
    copy_s: float
    communication_s: float
    exposed_communication_s: float
    exposed_copy_s: float
    idle_s: float
    idle: Idle = Idle()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime(DeviceTime):
    """A step that the profiler marked. It begins when the host begins it or the device has finished the steps before,
    whichever is later, so that steps follow each other without a gap. ``calls`` are its ops; ``in_session``: the
    session has its times. ``without_op_s`` is its work, in sum, that belongs to no op.
    """

    name: str
    calls: int
    in_session: bool
    without_op_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline(DeviceTime):
    """A whole run, from the begin of its first event to the end of its last, and its ``steps`` where they are marked.

    In sum over pieces of work, as ops' times are: ``before_trace_s`` was launched before the trace began,
    ``no_host_op_s`` by no op on the host, ``no_shapes_s`` by ops whose shapes are not known. ``without_op`` is the
    work of the first two by name, the longest first. ``signature_s[i]`` is the work of all ops with signature i, also
    of those in steps that the session has no records of. ``launched`` is the time of that work alone which an op
    launched within the trace, from its first piece to the end of its last, as TraceLens counts; None if there is none.
    """

    before_trace_s: float
    no_host_op_s: float
    no_shapes_s: float
    without_op: tuple[NamedWork, ...] = ()
    signature_s: tuple[float, ...] = ()
    steps: tuple[StepTime, ...] = ()
    launched: DeviceTime | None = None

    @property
    def without_op_s(self) -> float:
        """Seconds of work, in sum, that belongs to no op."""
        return self.before_trace_s + self.no_host_op_s

    @property
    def step_without_op_s(self) -> float:
        """The same of a step of the session: of several the mean; of the whole run where none is marked."""
        mine = [step.without_op_s for step in self.steps if step.in_session]
        return sum(mine) / len(mine) if mine else self.without_op_s
