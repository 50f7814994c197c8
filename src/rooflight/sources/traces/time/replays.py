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

from rooflight.records.measurement import Float64
from rooflight.records.quantity import count_of
from rooflight.records.session import Flags, Int32, Int64
from rooflight.sources.traces.file.kineto import load_trace
from rooflight.sources.traces.file.trace import UNKNOWN, Nesting, Numbers, Trace, WorkKind, nested
from rooflight.sources.traces.ops.engines import step_tokens
from rooflight.sources.traces.ownership import Around, is_module_call

_GRAPH_LAUNCH: Final = re.compile(r"^(?:cuda|hip|cu)GraphLaunch")
_LAUNCH: Final = re.compile(r"Launch(?:Cooperative)?Kernel|LaunchCooperative|^(?:cuda|hip|cu)Mem(?:cpy|set)")
_COPY: Final = re.compile(r"^(?:cuda|hip|cu)Memcpy")
_FILL: Final = re.compile(r"^(?:cuda|hip|cu)Memset")
_FOREVER: Final = 1 << 62

NO_NAME: Final = ""
"""The name of a kernel where its launch has none, as CUDA's calls."""

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
    calls = trace.calls
    launches = trace.named(calls, _LAUNCH.search) | (calls.kernel != UNKNOWN)
    idle = _in_time(trace, launches & ~np.isin(calls.correlation, trace.work.correlation))
    starts = calls.start[idle]
    found = []
    for begin, end, names in _windows(trace):
        chosen = idle[np.searchsorted(starts, begin) : np.searchsorted(starts, end)]
        if len(chosen):
            nodes = tuple(_node(trace, call) for call in chosen.tolist())
            found.append(Captured(calls=chosen, nodes=nodes, names=names))
    return found


def graph_launches(trace: Trace) -> Int32:
    """The calls that replay a graph, in order."""
    return _in_time(trace, trace.named(trace.calls, _GRAPH_LAUNCH.search))


def annotations_around(trace: Trace, calls: Int32) -> list[tuple[str, ...]]:
    """The annotations around each call, the innermost first. Modules are left out."""
    annotations = trace.ranges.where(~trace.named(trace.ranges, is_module_call))
    around = Around(trace, annotations, trace.calls.where(calls))
    return [tuple(around.names_around(place)) for place in range(len(calls))]


def _in_time(trace: Trace, calls: Flags) -> Int32:
    chosen = np.flatnonzero(calls)
    return chosen[np.argsort(trace.calls.start[chosen], kind="stable")].astype(np.int32)


def _windows(trace: Trace) -> list[tuple[int, int, tuple[str, ...]]]:
    calls = trace.calls
    begins = _in_time(trace, trace.named(calls, lambda name: "StreamBeginCapture" in name))
    if not len(begins):
        return [(-_FOREVER, _FOREVER, ())]
    ends = np.sort(calls.start[trace.named(calls, lambda name: "StreamEndCapture" in name)])
    closed = np.append(ends, _FOREVER)[np.searchsorted(ends, calls.stop[begins])]
    return list(zip(calls.stop[begins].tolist(), closed.tolist(), annotations_around(trace, begins), strict=True))


def _node(trace: Trace, call: int) -> Node:
    name, kernel = trace.names[trace.calls.name[call]], trace.calls.kernel[call]
    if kernel != UNKNOWN:
        return WorkKind.KERNEL, trace.names[kernel]
    if _COPY.search(name):
        return WorkKind.COPY, NO_NAME
    return (WorkKind.FILL, NO_NAME) if _FILL.search(name) else (WorkKind.KERNEL, NO_NAME)


_CLASSES: Final = (
    (  # a product of matrices
        re.compile(r"gemm|Cijk_|nvjet|xmma|cublas|gemv|wvSplitK|^bmm_|skinny", re.IGNORECASE),
        re.compile(r"mm|linear|matmul|einsum|gemm|product|conv|moe|expert|att|mv|dot|mla|mlp", re.IGNORECASE),
    ),
    (
        re.compile(r"flash_fwd|fmha|paged_attention|_attention_|attn_fwd|FlashAttn", re.IGNORECASE),
        re.compile(r"att|flash|fmha|mha|mla|sdpa|paged|pa_fwd|fwd|triton", re.IGNORECASE),
    ),
    (
        re.compile(r"rotary|rope", re.IGNORECASE),
        re.compile(r"rot|rope|qk|att|triton", re.IGNORECASE),
    ),
    (
        re.compile(r"(?:rms|layer)_?norm", re.IGNORECASE),
        re.compile(r"norm|triton|reduce", re.IGNORECASE),
    ),
    (
        re.compile(r"^(?:void )?at::native::"),
        re.compile(r"^(?:aten|fbgemm|prims|torchvision)::|_foreach|moe|expert|att", re.IGNORECASE),
    ),
)
"""What names of kernels show, and what the name of an op around them has then."""


def contradicts(kernel: str, ops: Iterable[str]) -> bool:
    """Whether a kernel is of a class that none of the ops around its launch is."""
    around = list(ops)
    if not around:
        return False
    return any(shown.search(kernel) and not any(fits.search(op) for op in around) for shown, fits in _CLASSES)


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
        self._names = annotations_around(trace, launches)
        self._turn: Counter[tuple[int, ...]] = Counter()
        self._fits: dict[tuple[Node, ...], dict[int, Int32]] = {}
        self._problems: list[str] = []

    def replays(self) -> Replays:
        work, calls = self._trace.work, self._trace.calls
        by_correlation: dict[int, list[int]] = defaultdict(list)
        chosen = np.flatnonzero(np.isin(work.correlation, calls.correlation[self._launches]))
        for index in chosen[np.argsort(work.start[chosen], kind="stable")].tolist():
            by_correlation[int(work.correlation[index])].append(index)
        pairs = [
            (*pair, number)
            for number, launch in enumerate(self._launches.tolist())
            for pair in self._joined(number, by_correlation.get(int(calls.correlation[launch]), []))
        ]
        if not pairs:
            problem = self._problems[0] if self._problems else "its replays did no work on a device"
            raise ValueError(f"{self._captured.path.name} does not fit {self._trace.path.name}: {problem}")
        works, made_by, numbers = np.array(pairs, dtype=np.int64).T
        joined = np.zeros(len(work), dtype=np.bool_)
        joined[works] = True
        launched = zip(calls.start[self._launches].tolist(), calls.thread[self._launches].tolist(), strict=True)
        return Replays(
            trace=_with_work(self._captured, self._trace, works, made_by),
            nesting=self._nesting,
            replay=numbers.astype(np.int32),
            names=tuple(self._names),
            launched=tuple(launched),
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
        if nodes not in self._fits:
            fits = ((index, self._fit(graph, nodes)) for index, graph in enumerate(self._graphs))
            self._fits[nodes] = {index: places for index, places in fits if places is not None}
        return self._fits[nodes]

    def _joined(self, number: int, works: Sequence[int]) -> list[tuple[int, int]]:
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
        replay = f"a replay of {count_of(nodes, 'kernel, copy or fill', 'kernels, copies and fills')}"
        if fitting:
            own = "their batch size is not its own"
            why = own if fitting == 1 else "nothing shows which of their shapes are its own"
            return f"{replay} fits {count_of(fitting, 'graph')} captured there, but {why}"
        sizes = sorted({len(graph.nodes) for graph in self._graphs})
        shown = ", ".join(str(size) for size in sizes[:8]) + (", ..." if len(sizes) > 8 else "")
        return f"{replay} is none of the graphs captured there, which have {shown}"

    def _fit(self, graph: Captured, nodes: tuple[Node, ...]) -> Int32 | None:
        found = _in_order(*(_keys(each, by_name=graph.is_named) for each in (graph.nodes, nodes)))
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
        return [self._captured.op_name(op) for op in self._nesting.around(int(self._nesting.call_op[call]))]

    def _chosen(self, fitting: Sequence[int], around: Sequence[str]) -> int | None:
        """Of several graphs the one of the annotated batch size; graphs of equal ops, as of layers, take turns."""
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
        ops = self._captured.ops
        launched = self._nesting.call_op[self._graphs[index].calls]
        return tuple((int(ops.name[op]), int(ops.args[op])) if op != UNKNOWN else (-1, -1) for op in launched.tolist())


def _keys(nodes: Sequence[Node], *, by_name: bool) -> list[int | str]:
    """What is joined in order: kernels to those of their name, or to kernels; copies to copies, fills to fills."""
    return [name if by_name and kind == WorkKind.KERNEL else kind for kind, name in nodes]


def _in_order(captured: Sequence[int | str], nodes: Sequence[int | str]) -> Int32:
    """By node the captured one with as many of its key before it; ``UNKNOWN`` where the counts differ."""
    if captured == nodes:
        return np.arange(len(nodes), dtype=np.int32)
    places: dict[int | str, list[int]] = defaultdict(list)
    for place, key in enumerate(captured):
        places[key].append(place)
    counts, passed = Counter(nodes), Counter[int | str]()
    found = []
    for key in nodes:
        found.append(places[key][passed[key]] if counts[key] == len(places.get(key, ())) else UNKNOWN)
        passed[key] += 1
    return np.array(found, dtype=np.int32)


def batch_size(names: Iterable[str]) -> int | None:
    """The batch size in the annotations around a capture or a replay, None where none has one: in tokens."""
    listed = list(names)
    sizes = (int(match[1] or match[2]) for name in listed if (match := _BATCH.search(name)))
    return next(sizes, step_tokens(listed))


def _with_work(captured: Trace, trace: Trace, works: Int64, calls: Int64) -> Trace:
    numbers = Numbers({name: number for number, name in enumerate(captured.names)})
    moved = trace.work.where(works)
    moved = replace(
        moved,
        name=np.array([numbers[trace.names[name]] for name in moved.name.tolist()], dtype=np.int32),
        correlation=captured.calls.correlation[calls],
    )
    return replace(captured, names=tuple(numbers), work=moved, streams=trace.streams)


def work_by_replay(
    replays: Replays, accounted: Int32, own: Float64
) -> Mapping[tuple[int, int], tuple[float, float, int]]:
    """For each replay and op the seconds of its work, in sum, its ``own`` of them, and when the first of it began."""
    work = replays.trace.work
    found: dict[tuple[int, int], tuple[float, float, int]] = {}
    columns = (replays.replay, accounted, work.length * 1e-9, own * 1e-9, work.start)
    for replay, op, seconds, alone, start in zip(*(column.tolist() for column in columns), strict=True):
        if op != UNKNOWN:
            before, own_before, first = found.get((replay, op), (0.0, 0.0, start))
            found[replay, op] = before + seconds, own_before + alone, min(first, start)
    return found
