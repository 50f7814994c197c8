"""Work that replays of graphs did, joined to the ops whose launches were captured into the graph.

A replay is one call on the host, so its kernels have no op. The trace of the capture has the ops, with their shapes and
launches, but no kernels. Both have the same launches in the same order: ROCm's calls name the kernel, so that each
kernel is joined to the launch of its name with the same place among those of this name. CUDA's do not: there kernels,
copies and fills are joined by their places, if there are as many of each, and if the names of the kernels go with those
of the ops.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from rooflight.records.quantity import count_of
from rooflight.records.session import Flags, Int32, Int64
from rooflight.traces.captures import Captured, Node, captures, graph_launches, names_around
from rooflight.traces.kernel_classes import contradicts
from rooflight.traces.nesting import Nesting, nested
from rooflight.traces.step_lengths import step_tokens
from rooflight.traces.trace import UNKNOWN, Trace, WorkKind, load_trace

_FITS: Final = 0.9
"""The least share of a replay's work and of a capture's launches that must be joined: a few events may be lost."""

_BATCH: Final = re.compile(r"^capture_(\d+)(?:_|$)|\b(?:bs|batch_size|num_tokens)=(\d+)")
"""In the names of SGLang's annotations around a capture, and around a step."""

_CONTRADICTIONS: Final = 0.05
"""The largest share of kernels whose name may contradict that of their op, where names are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replays:
    """Replays as if the device had worked while the graph was captured. ``trace`` is that of the capture, and its work
    what the replays did; ``replay[k]`` is the number of the replay that did work k, ``names[replay]`` the annotations
    around it, the innermost first, and ``launched[replay]`` when and on which thread it was launched. ``joined[i]``:
    work i of the replays' own trace is among it.
    """

    trace: Trace
    nesting: Nesting
    replay: Int32
    names: tuple[tuple[str, ...], ...]
    launched: tuple[tuple[int, int], ...]
    joined: Flags
    note: str


def join_replays(trace: Trace, capture: Path, progress: Callable[[int, int], None] | None = None) -> Replays:
    """Join the replays of graphs in a trace to the trace of their capture.

    Raises ValueError where there is no replay, no capture, or none of the captures fits any of the replays; OSError.
    """
    launches = graph_launches(trace)
    if not len(launches):
        raise ValueError(f"{trace.path.name} has no replay of a graph: leave out the capture {capture.name}")
    captured = load_trace(capture, progress)
    graphs = captures(captured)
    if not graphs:
        raise ValueError(f"{capture.name} has no capture of a graph: no launch in it is without its kernel")
    return _Join(trace, launches, captured, graphs).replays()


class _Join:
    def __init__(self, trace: Trace, launches: Int32, captured: Trace, graphs: Sequence[Captured]) -> None:
        self._trace, self._captured, self._graphs = trace, captured, graphs
        self._launches = launches
        self._nesting = nested(captured)
        self._names = names_around(trace, trace.calls.start[launches], trace.calls.thread[launches])
        self._turn: Counter[tuple[int, ...]] = Counter()
        self._fits: dict[tuple[Node, ...], dict[int, Int32]] = {}
        self._problems: list[str] = []

    def replays(self) -> Replays:
        """All that can be joined."""
        work, calls = self._trace.work, self._trace.calls
        by_correlation: dict[int, list[int]] = defaultdict(list)
        of_graphs = np.isin(work.correlation, calls.correlation[self._launches])
        chosen = np.flatnonzero(of_graphs)
        for index in chosen[np.argsort(work.start[chosen], kind="stable")].tolist():
            by_correlation[int(work.correlation[index])].append(index)
        works: list[int] = []
        made_by: list[int] = []
        numbers: list[int] = []
        for number, launch in enumerate(self._launches.tolist()):
            mine = by_correlation.get(int(calls.correlation[launch]), [])
            for index, call in self._joined(number, mine):
                works.append(index)
                made_by.append(call)
                numbers.append(number)
        if not works:
            problem = self._problems[0] if self._problems else "its replays did no work on a device"
            raise ValueError(f"{self._captured.path.name} does not fit {self._trace.path.name}: {problem}")
        at = np.array(works, dtype=np.int64)
        joined = np.zeros(len(work), dtype=np.bool_)
        joined[at] = True
        return Replays(
            trace=_with_work(self._captured, self._trace, at, np.array(made_by, dtype=np.int64)),
            nesting=self._nesting,
            replay=np.array(numbers, dtype=np.int32),
            names=tuple(self._names),
            launched=tuple(
                zip(calls.start[self._launches].tolist(), calls.thread[self._launches].tolist(), strict=True)
            ),
            joined=joined,
            note=self._note(len(works), len(chosen)),
        )

    def _note(self, joined: int, of: int) -> str:
        note = (
            f"{self._trace.path.name}: {joined} of {count_of(of, 'kernel, copy or fill', 'kernels, copies and fills')} "
            f"of {count_of(len(self._launches), 'replay')} joined to the ops captured in {self._captured.path.name}"
        )
        return f"{note}; {count_of(len(self._problems), 'replay')} not: {self._problems[0]}" if self._problems else note

    def _graphs_of(self, nodes: tuple[Node, ...]) -> Mapping[int, Int32]:
        """For each graph that such a replay can be of, the places of its nodes."""
        if nodes not in self._fits:
            fits = ((index, self._fit(graph, nodes)) for index, graph in enumerate(self._graphs))
            self._fits[nodes] = {index: places for index, places in fits if places is not None}
        return self._fits[nodes]

    def _joined(self, number: int, works: Sequence[int]) -> list[tuple[int, int]]:
        """Each piece of work of a replay with the call that captured it, in the order of its begin."""
        if not works:
            return []
        trace = self._trace
        names, kinds = trace.work.name, trace.work.kind
        nodes = tuple((int(kinds[work]), trace.names[names[work]]) for work in works)
        fits = self._graphs_of(nodes)
        chosen = self._chosen(list(fits), self._names[number]) if fits else None
        if chosen is None:
            self._problems.append(self._problem(len(nodes), len(fits)))
            return []
        calls = self._graphs[chosen].calls
        return [(work, int(calls[at])) for work, at in zip(works, fits[chosen].tolist(), strict=True) if at != UNKNOWN]

    def _problem(self, nodes: int, fitting: int) -> str:
        """Why a replay of so many nodes, which so many graphs fit, is not joined to one of them."""
        replay = f"a replay of {count_of(nodes, 'kernel, copy or fill', 'kernels, copies and fills')}"
        if fitting:
            own = "their batch size is not its own"
            why = own if fitting == 1 else "nothing shows which of their shapes are its own"
            return f"{replay} fits {count_of(fitting, 'graph')} captured there, but {why}"
        sizes = sorted({len(graph.nodes) for graph in self._graphs})
        shown = ", ".join(str(size) for size in sizes[:8]) + (", ..." if len(sizes) > 8 else "")
        return f"{replay} is none of the graphs captured there, which have {shown}"

    def _fit(self, graph: Captured, nodes: tuple[Node, ...]) -> Int32 | None:
        """The place in the graph of each node of a replay, ``UNKNOWN`` of some; None if it is not this graph."""
        found = _by_name(graph.nodes, nodes) if graph.is_named else _by_place(graph.nodes, nodes)
        joined = int((found != UNKNOWN).sum())
        if joined < _FITS * max(len(nodes), len(graph.nodes)):
            return None
        if not graph.is_named:
            wrong = sum(
                contradicts(name, self._op_names(int(graph.calls[at])))
                for (kind, name), at in zip(nodes, found.tolist(), strict=True)
                if at != UNKNOWN and kind == WorkKind.KERNEL
            )
            if wrong > _CONTRADICTIONS * len(nodes):
                return None
        return found

    def _op_names(self, call: int) -> list[str]:
        """The names of the ops around a call, the innermost first."""
        op, names = int(self._nesting.call_op[call]), []
        while op != UNKNOWN:
            names.append(self._captured.names[self._captured.ops.name[op]])
            op = int(self._nesting.parent[op])
        return names

    def _chosen(self, fitting: Sequence[int], around: Sequence[str]) -> int | None:
        """The graph that a replay is of. Of several, that of the batch size in the annotations; graphs of equal ops, as
        those of layers that were captured one by one, take turns. None if they differ in what their ops are.
        """
        sizes = {index: batch_size(self._graphs[index].names) for index in fitting}
        size = batch_size(around)
        if size is not None:  # a batch runs in the smallest graph that holds it
            holding = [each for each in sizes.values() if each is not None and each >= size]
            fitting = [index for index in fitting if sizes[index] in (None, min(holding, default=None))]
        if len({self._described(index) for index in fitting}) != 1:
            return None
        key = tuple(fitting)
        self._turn[key] += 1
        return fitting[(self._turn[key] - 1) % len(fitting)]

    def _described(self, index: int) -> tuple[tuple[int, int], ...]:
        """Names and arguments of the ops of a graph."""
        ops = self._captured.ops
        launched = self._nesting.call_op[self._graphs[index].calls]
        return tuple((int(ops.name[op]), int(ops.args[op])) if op != UNKNOWN else (-1, -1) for op in launched.tolist())


def _by_place(captured: Sequence[Node], nodes: Sequence[Node]) -> Int32:
    """Kernels to kernels, copies to copies and fills to fills, in order, where there are as many."""
    return _in_order([kind for kind, _ in captured], [kind for kind, _ in nodes])


def _by_name(captured: Sequence[Node], nodes: Sequence[Node]) -> Int32:
    """Kernels to those of their name, in order, where there are as many; copies and fills likewise."""
    return _in_order(_keys(captured), _keys(nodes))


def _keys(nodes: Sequence[Node]) -> list[object]:
    return [name if kind == WorkKind.KERNEL else kind for kind, name in nodes]


def _in_order(captured: Sequence[object], nodes: Sequence[object]) -> Int32:
    """For each node the place of the captured one with the same key and as many of this key before it; ``UNKNOWN`` for
    keys that both do not have equally often.
    """
    if list(captured) == list(nodes):
        return np.arange(len(nodes), dtype=np.int32)
    places: dict[object, list[int]] = defaultdict(list)
    for place, key in enumerate(captured):
        places[key].append(place)
    counts = Counter(nodes)
    seen: Counter[object] = Counter()
    found = []
    for key in nodes:
        found.append(places[key][seen[key]] if counts[key] == len(places.get(key, ())) else UNKNOWN)
        seen[key] += 1
    return np.array(found, dtype=np.int32)


def batch_size(names: Iterable[str]) -> int | None:
    """The batch size in the annotations around a capture or a replay, None where none has one: in tokens."""
    listed = list(names)
    told = (int(match[1] or match[2]) for name in listed if (match := _BATCH.search(name)))
    return next(told, step_tokens(listed))


def _with_work(captured: Trace, trace: Trace, works: Int64, calls: Int64) -> Trace:
    """The trace of a capture with work of another trace, launched by these of its calls."""
    numbers: dict[str, int] = {name: number for number, name in enumerate(captured.names)}
    names = [numbers.setdefault(trace.names[name], len(numbers)) for name in trace.work.name[works].tolist()]
    work = trace.work
    moved = replace(
        work,
        start=work.start[works],
        stop=work.stop[works],
        thread=work.thread[works],
        name=np.array(names, dtype=np.int32),
        correlation=captured.calls.correlation[calls],
        external_id=np.full(len(works), UNKNOWN, dtype=np.int64),
        kind=work.kind[works],
        device=work.device[works],
        size=work.size[works],
    )
    return replace(captured, names=tuple(numbers), work=moved, streams=trace.streams)


def work_by_replay(replays: Replays, accounted: Int32) -> Mapping[tuple[int, int], tuple[float, int]]:
    """For each replay and op the seconds of its work, in sum, and when the first of it began."""
    work = replays.trace.work
    found: dict[tuple[int, int], tuple[float, int]] = {}
    ends = (work.stop - work.start) * 1e-9
    for key, seconds, start in zip(
        zip(replays.replay.tolist(), accounted.tolist(), strict=True), ends.tolist(), work.start.tolist(), strict=True
    ):
        before, first = found.get(key, (0.0, start))
        found[key] = before + seconds, min(first, start)
    return {key: value for key, value in found.items() if key[1] != UNKNOWN}
