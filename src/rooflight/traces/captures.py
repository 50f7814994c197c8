"""Captures of graphs in a trace: the launches that were recorded into a graph, and ran only when it was replayed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from rooflight.records.session import Flags, Int32, Int64
from rooflight.traces.trace import MODULE, UNKNOWN, Trace, WorkKind

_BEGIN: Final = "StreamBeginCapture"
_END: Final = "StreamEndCapture"
_GRAPH_LAUNCH: Final = re.compile(r"^(?:cuda|hip|cu)GraphLaunch")
_KERNEL_LAUNCH: Final = re.compile(r"Launch(?:Cooperative)?Kernel|LaunchCooperative")
_COPY: Final = re.compile(r"^(?:cuda|hip|cu)Memcpy")
_FILL: Final = re.compile(r"^(?:cuda|hip|cu)Memset")

NO_NAME: Final = ""
"""The name of a kernel that its launch does not tell: CUDA's calls tell none."""

Node = tuple[int, str]
"""A node of a graph: the kind of its work and its kernel's name, which copies and fills do not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """One graph as it was captured: its launches in order. ``calls`` are numbers in ``Trace.calls``, ``nodes`` what
    they launch; ``names`` are those of the annotations around the begin of the capture, the innermost first.
    """

    calls: Int32
    nodes: tuple[Node, ...]
    names: tuple[str, ...]

    @property
    def is_named(self) -> bool:
        """Whether the name of each kernel is known."""
        return all(name != NO_NAME for kind, name in self.nodes if kind == WorkKind.KERNEL)


def captures(trace: Trace) -> list[Captured]:
    """The graphs captured in a trace, in order. Without calls that begin a capture, all launches without work of a
    device are one.
    """
    idle = np.flatnonzero(_launches(trace) & ~np.isin(trace.calls.correlation, trace.work.correlation))
    idle = idle[np.argsort(trace.calls.start[idle], kind="stable")]
    starts = trace.calls.start[idle]
    found = []
    for begin, end, names in _windows(trace):
        chosen = idle[np.searchsorted(starts, begin) : np.searchsorted(starts, end)].astype(np.int32)
        if len(chosen):
            found.append(
                Captured(calls=chosen, nodes=tuple(_node(trace, call) for call in chosen.tolist()), names=names)
            )
    return found


def graph_launches(trace: Trace) -> Int32:
    """The calls that replay a graph, in order."""
    chosen = np.flatnonzero(_named(trace, _GRAPH_LAUNCH))
    return chosen[np.argsort(trace.calls.start[chosen], kind="stable")].astype(np.int32)


def names_around(trace: Trace, moments: Int64, threads: Int32) -> list[tuple[str, ...]]:
    """The annotations open on a thread at each moment, the innermost (the last begun) first. Modules are left out."""
    ranges = trace.ranges
    is_note = np.array([not name.startswith(MODULE) for name in trace.names], dtype=np.bool_)
    chosen = is_note[ranges.name] if len(ranges) else np.empty(0, dtype=np.bool_)
    found = []
    for moment, thread in zip(moments.tolist(), threads.tolist(), strict=True):
        is_open = chosen & (ranges.start <= moment) & (moment < ranges.stop) & (ranges.thread == thread)
        around = np.flatnonzero(is_open)
        around = around[np.lexsort((ranges.stop[around], -ranges.start[around]))]
        found.append(tuple(trace.names[name] for name in ranges.name[around].tolist()))
    return found


def _launches(trace: Trace) -> Flags:
    found = _named(trace, _KERNEL_LAUNCH) | _named(trace, _COPY) | _named(trace, _FILL)
    return np.asarray(found | (trace.calls.kernel != UNKNOWN))


def _named(trace: Trace, pattern: re.Pattern[str]) -> Flags:
    fits = np.array([bool(pattern.search(name)) for name in trace.names], dtype=np.bool_)
    return fits[trace.calls.name] if len(trace.calls) else np.empty(0, dtype=np.bool_)


def _windows(trace: Trace) -> list[tuple[int, int, tuple[str, ...]]]:
    """Begin and end of each capture, and the annotations around it."""
    calls = trace.calls
    begins = np.flatnonzero(_named(trace, re.compile(_BEGIN)))
    if not len(begins):
        return [(-(1 << 62), 1 << 62, ())]
    begins = begins[np.argsort(calls.start[begins], kind="stable")]
    ends = np.sort(calls.start[_named(trace, re.compile(_END))])
    names = names_around(trace, calls.start[begins], calls.thread[begins])
    found = []
    for begin, around in zip(calls.stop[begins].tolist(), names, strict=True):
        at = int(np.searchsorted(ends, begin))
        found.append((begin, int(ends[at]) if at < len(ends) else 1 << 62, around))
    return found


def _node(trace: Trace, call: int) -> Node:
    name, kernel = trace.names[trace.calls.name[call]], trace.calls.kernel[call]
    if kernel != UNKNOWN:
        return WorkKind.KERNEL, trace.names[kernel]
    if _COPY.search(name):
        return WorkKind.COPY, NO_NAME
    return (WorkKind.FILL, NO_NAME) if _FILL.search(name) else (WorkKind.KERNEL, NO_NAME)
