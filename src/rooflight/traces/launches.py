"""How the host launched the work in a trace: short kernels, how much work waited in the queue, the host's time."""

from __future__ import annotations

from typing import Final

import numpy as np

from rooflight.records.measurement import Float64
from rooflight.records.session import Int32, Int64
from rooflight.records.timeline import HostOp, Launches
from rooflight.traces.idle import waits_for_device
from rooflight.traces.nesting import Nesting
from rooflight.traces.ownership import Ownership
from rooflight.traces.trace import UNKNOWN, Spans, Trace, WorkKind

SHORT_NS: Final = 5_000
_COMPILED: Final = ("CompiledFxGraph", "Torch-Compiled Region")
"""In the names of annotations around compiled code."""


def launches_of(trace: Trace, nesting: Nesting, owned: Ownership) -> Launches | None:
    """None where no call that launched is known."""
    work, calls = trace.work, trace.calls
    known = owned.call != UNKNOWN
    if not known.any():
        return None
    durations = work.stop - work.start
    is_kernel = work.kind == WorkKind.KERNEL
    is_short = is_kernel & (durations < SHORT_NS)
    called, begun = calls.start[owned.call[known]], work.start[known]
    delays = np.maximum(begun - called, 0) * 1e-9  # clocks of host and device may be some µs apart
    depth, shares = queue(np.minimum(calls.stop[owned.call[known]], begun), begun)
    ops = _host_ops(trace, nesting, owned)
    host_s, launched = sum(op.host_s for op in ops), sum(op.launched for op in ops)
    return Launches(
        kernels=int(is_kernel.sum()),
        kernels_s=float(durations[is_kernel].sum()) * 1e-9,
        short_kernels=int(is_short.sum()),
        short_s=float(durations[is_short].sum()) * 1e-9,
        launches=int(known.sum()),
        graphs=_named(trace, calls, "GraphLaunch"),
        captures=_named(trace, calls, "StreamBeginCapture"),
        compiled=any(_named(trace, trace.ranges, mark) for mark in _COMPILED),
        delay_median_s=float(np.median(delays)),
        delay_p90_s=float(np.percentile(delays, 90)),
        queue_median=quantile(depth, shares, 0.5),
        queue_p90=quantile(depth, shares, 0.9),
        queue_max=int(depth.max()),
        queue_empty=float(shares[depth == 0].sum()),
        host_per_launch_s=host_s / launched if launched else 0.0,
        ops=ops,
    )


def _named(trace: Trace, spans: Spans, part: str) -> int:
    """How many spans have names with this part."""
    return int(np.isin(spans.name, [number for number, name in enumerate(trace.names) if part in name]).sum())


def queue(launched: Int64, begun: Int64) -> tuple[Int64, Float64]:
    """How much work was launched and had not begun, and the share of the time from the first launch to the last begin
    in which it was so much.
    """
    moments = np.concatenate([launched, begun])
    change = np.concatenate([np.ones(len(launched), dtype=np.int64), np.full(len(begun), -1, dtype=np.int64)])
    order = np.argsort(moments, kind="stable")
    lengths, depth = np.diff(moments[order]), np.cumsum(change[order])[:-1]
    whole = lengths.sum()
    if not whole:
        return np.zeros(1, dtype=np.int64), np.ones(1)
    depths, places = np.unique(depth[lengths > 0], return_inverse=True)
    return depths, np.asarray(np.bincount(places, lengths[lengths > 0]) / whole, dtype=np.float64)


def quantile(values: Int64, shares: Float64, share: float) -> int:
    """The smallest of ``values``, which are sorted, such that it and smaller ones have this share."""
    reached = np.cumsum(shares)
    return int(values[min(int(np.searchsorted(reached, share - 1e-12)), len(values) - 1)])


def _host_ops(trace: Trace, nesting: Nesting, owned: Ownership) -> tuple[HostOp, ...]:
    """By name, the ops at which work is accounted, those that took the host longest first."""
    mine = owned.accounted != UNKNOWN
    of_op = owned.accounted[mine]
    if not len(of_op):
        return ()
    ops, work = trace.ops, trace.work
    running = np.unique(of_op)
    worked_ns = ops.stop - ops.start
    waits = waits_for_device(trace, owned)
    waiting = _around(nesting, nesting.call_op[waits], running.astype(np.int32))
    waited_ns = (trace.calls.stop - trace.calls.start)[waits]
    np.subtract.at(worked_ns, waiting[waiting != UNKNOWN], waited_ns[waiting != UNKNOWN])
    host_ns = np.bincount(ops.name[running], np.maximum(worked_ns[running], 0), len(trace.names))
    calls = np.bincount(ops.name[running], minlength=len(trace.names))
    launched = np.bincount(ops.name[of_op], minlength=len(trace.names))
    device_ns = np.bincount(ops.name[of_op], (work.stop - work.start)[mine], len(trace.names))
    return tuple(
        HostOp(
            name=trace.names[name],
            calls=int(calls[name]),
            host_s=float(host_ns[name]) * 1e-9,
            launched=int(launched[name]),
            device_s=float(device_ns[name]) * 1e-9,
        )
        for name in sorted(np.flatnonzero(calls).tolist(), key=lambda name: (-host_ns[name], trace.names[name]))
    )


def _around(nesting: Nesting, inner: Int32, chosen: Int32) -> Int32:
    """The chosen op around each of the inner ones, itself included, ``UNKNOWN`` where there is none."""
    is_chosen = np.zeros(len(nesting.parent) + 1, dtype=np.bool_)  # the last is that of UNKNOWN
    is_chosen[chosen] = True
    found = inner.copy()
    while (climbing := (found != UNKNOWN) & ~is_chosen[found]).any():
        found[climbing] = nesting.parent[found[climbing]]
    return found
