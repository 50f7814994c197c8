"""Timeline: what a device did with the time of a measured run, and how much of it belongs to no op."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedWork:
    """Work of a device of one name: how many pieces, and their seconds in sum."""

    name: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Seconds of a run's wall time, from the begin of its first event to the end of its last.

    Each is the time in which at least one such piece of work ran, whatever else ran: ``compute_s`` kernels that are no
    collectives, and fills, ``copy_s`` copies, ``communication_s`` collectives. ``exposed_communication_s`` is that in
    which collectives ran and no other kernel, ``exposed_copy_s`` that in which copies ran and no kernel at all.
    ``busy_s`` is compute and both exposed times; ``idle_s`` is the rest of the wall time. A device is busy where any of
    its streams is; of several devices the work is counted as if they were one.

    In sum over pieces of work, as ops' times are: ``before_trace_s`` was launched before the trace began,
    ``no_host_op_s`` by no op on the host, ``no_shapes_s`` by ops whose shapes are not known. ``without_op`` is the
    work of the first two by name, the longest first.
    """

    wall_s: float
    busy_s: float
    compute_s: float
    copy_s: float
    communication_s: float
    exposed_communication_s: float
    exposed_copy_s: float
    idle_s: float
    before_trace_s: float
    no_host_op_s: float
    no_shapes_s: float
    without_op: tuple[NamedWork, ...] = ()

    @property
    def without_op_s(self) -> float:
        """Seconds of work, in sum, that belongs to no op."""
        return self.before_trace_s + self.no_host_op_s
