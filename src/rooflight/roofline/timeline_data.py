"""The timeline of a measured run as ``rooflight analyze --json`` writes it."""

from __future__ import annotations

import msgspec

from rooflight.records.document import Fields
from rooflight.roofline.analysis import Analysis


class IdleData(Fields, frozen=True, kw_only=True):
    """Seconds in which the device did nothing, by cause; they sum to the idle time.

    No work was queued: ``host_late_s`` the host did other things than to launch; ``sync_s`` it had waited for the
    device (a sync, ``.item()``, a blocking copy), until its next launch; ``pageable_copy_s`` the same of a copy from
    pageable memory; ``data_loader_s`` it waited for a batch; ``rank_s`` it waited for another rank in a collective of
    the host; ``driver_s`` it was in a call of the driver that is no launch, or loaded a kernel; ``profiler_s`` the
    profiler worked. ``launch_s``: work was queued, and had not begun. ``unknown_s``: the launch of the work that ended
    it is not in the trace.
    """

    host_late_s: float
    sync_s: float
    pageable_copy_s: float
    data_loader_s: float
    rank_s: float
    driver_s: float
    profiler_s: float
    launch_s: float
    unknown_s: float


class IdleDetailData(Fields, frozen=True, kw_only=True):
    """How one cause held the device up: ``count`` stretches of ``seconds`` in sum, and the op, call or annotation
    ``where`` most of it was, empty where that has no name.
    """

    cause: str
    seconds: float
    count: int
    median_s: float
    longest_s: float
    where: str
    where_s: float


class DeviceTimeData(Fields, frozen=True, kw_only=True):
    """What the device did with a stretch of wall time. Times of which several may pass at once: ``compute_s``,
    ``copy_s`` and ``communication_s``; ``compute_s`` and the exposed times sum to ``busy_s``, and with ``idle_s`` to
    ``wall_s``. ``idle`` is None where causes were not looked for.
    """

    wall_s: float
    busy_s: float
    compute_s: float
    copy_s: float
    communication_s: float
    exposed_communication_s: float
    exposed_copy_s: float
    idle_s: float
    idle: IdleData | None


class StepData(DeviceTimeData, frozen=True, kw_only=True):
    """A step that the profiler marked: it begins when the host begins it or the device has finished the steps before,
    whichever is later. ``calls`` are its ops; ``in_session``: totals, ops and measured times are of such steps.
    ``without_op_s`` is its work in sum that belongs to no op.
    """

    name: str
    calls: int
    in_session: bool
    without_op_s: float


class PhaseData(Fields, frozen=True, kw_only=True):
    """What the device did for a phase: the work launched in it, whenever that ran. ``count`` and ``host_s`` are those
    of its annotation on the host, 0 of other work. ``idle_s`` is the idle time before its work began.
    """

    name: str
    count: int
    host_s: float
    busy_s: float
    compute_s: float
    copy_s: float
    communication_s: float
    idle_s: float
    idle: IdleData


class HostOpData(Fields, frozen=True, kw_only=True):
    """All calls of an op that launched work: the host's time in them without its waits for the device, the pieces of
    work, the device's time.
    """

    name: str
    calls: int
    host_s: float
    launched: int
    device_s: float


class LaunchesData(Fields, frozen=True, kw_only=True):
    """How the host launched the device's work. ``short_kernels`` took less than 5 µs each, ``short_s`` in sum.

    ``launches`` are the pieces of work whose call is known; ``graphs`` counts replays of graphs, ``captures``
    graphs that were captured; ``compiled``: torch.compile's code ran. ``delay`` is from the
    begin of the call to that of the work; ``queue`` how much work was launched and had not begun, over time, and
    ``queue_empty`` the share of the time in which there was none. ``host_per_launch_s`` is the host's time in ``ops``
    per piece of work.
    """

    kernels: int
    kernels_s: float
    short_kernels: int
    short_s: float
    launches: int
    graphs: int
    captures: int
    compiled: bool
    delay_median_s: float
    delay_p90_s: float
    queue_median: int
    queue_p90: int
    queue_max: int
    queue_empty: float
    host_per_launch_s: float
    ops: tuple[HostOpData, ...]


class KernelData(Fields, frozen=True, kw_only=True):
    """All kernels of one name in the trace: how many, their seconds in sum, and the op that most of these belong to;
    empty if most belong to none.
    """

    name: str
    op: str
    count: int
    seconds: float


class TimelineData(DeviceTimeData, frozen=True, kw_only=True):
    """What the device did in the whole trace, in each of its ``steps`` where the profiler marked some, and for each of
    its ``phases`` where there are several. ``launched`` is the time of that work alone which an op launched within the
    trace, from its first piece to the end of its last, as TraceLens counts; None if there is no such work.
    """

    steps: tuple[StepData, ...]
    phases: tuple[PhaseData, ...]
    launched: DeviceTimeData | None
    idle_details: tuple[IdleDetailData, ...]
    launches: LaunchesData | None
    kernels: tuple[KernelData, ...]


def timeline_data(analysis: Analysis) -> TimelineData | None:
    """None where the device was not followed."""
    found = analysis.timeline
    return None if found is None else msgspec.convert(found, TimelineData, from_attributes=True)
