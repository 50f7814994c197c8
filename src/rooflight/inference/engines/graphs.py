"""CUDA graphs while a profiler is attached to a model: which buckets a graph holds, and the time of its replays.

A replay runs no Python: no bucket opens in it, and events captured into it would have no time. So a replay is timed as
one, in the bucket ``cuda_graph``, and which buckets it holds is noted at its capture, in a step or before all runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from rooflight.inference.config import Domain
from rooflight.inference.sections import GraphData

if TYPE_CHECKING:
    from rooflight.inference.profiler import Profiler


Made = Callable[[Callable[..., Any], Sequence["Profiler"]], Callable[..., Any]]
"""Makes what stands in for a function, for all the profilers in a list that changes."""

_shared: Final[dict[tuple[Any, str], tuple[Any, Any, list[Profiler]]]] = {}
"""By owner and name: the function, what stands in for it, and the profilers that it serves."""


class StandIn:
    """Puts what ``make`` makes in the place of ``name`` in ``owner``, a module or a class.

    One serves all profilers, so that they can be removed in any order; the first one makes it.
    """

    def __init__(self, owner: Any, name: str, profiler: Profiler, make: Made) -> None:
        self.key = (owner, name)
        self._profiler = profiler
        if self.key not in _shared:
            profilers: list[Profiler] = []
            function = vars(owner)[name]
            stand_in = make(function, profilers)
            stand_in.__wrapped__ = function  # type: ignore[attr-defined]
            _shared[self.key] = (function, stand_in, profilers)
            setattr(owner, name, stand_in)
        _shared[self.key][2].append(profiler)

    def remove(self) -> None:
        """Put the function back once no profiler times it."""
        function, stand_in, profilers = _shared[self.key]
        profilers.remove(self._profiler)
        if profilers:
            return
        owner, name = self.key
        del _shared[self.key]
        if vars(owner).get(name) is stand_in:  # else somebody else's is around it
            setattr(owner, name, function)


BUCKET: Final = "cuda_graph"
"""The bucket of replays."""


class Graphs:
    """The graphs of one profiler's process: what was captured into them, and how often they were replayed in steps."""

    def __init__(self) -> None:
        self.capturing: Capture | None = None
        self._kinds: dict[tuple[tuple[str, int], ...], _Kind] = {}
        self._of_graph: WeakKeyDictionary[Any, _Kind] = WeakKeyDictionary()

    def captured(self, graph: Any, calls: Counter[str]) -> None:
        """A graph holds so many calls of buckets."""
        kind = self._kinds.setdefault(tuple(sorted(calls.items())), _Kind(dict(calls)))
        kind.graphs += 1
        self._of_graph[graph] = kind

    def replayed(self, graph: Any) -> None:
        """A graph was replayed in a measured step."""
        kind = self._of_graph.get(graph)
        if kind is None:  # captured before the profiler was attached
            kind = self._of_graph[graph] = self._kinds.setdefault((("", 0),), _Kind(None))
            kind.graphs += 1
        kind.replays += 1

    def data(self) -> tuple[GraphData, ...]:
        """Graphs that hold the same, together."""
        return tuple(
            GraphData(graphs=kind.graphs, replays=kind.replays, buckets=kind.buckets) for kind in self._kinds.values()
        )


class _Kind:
    def __init__(self, buckets: dict[str, int] | None) -> None:
        self.buckets = buckets
        self.graphs = self.replays = 0


class Capture:
    """Buckets that open while a graph is captured: counted, not timed."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def bucket(self, domain: Domain, name: str) -> CapturedBucket:
        """A bucket of a domain. Those of the engine are around a graph, not in it."""
        return CapturedBucket(self.calls if domain is Domain.MODEL else Counter(), name)


class CapturedBucket:
    """Counts how often it is opened."""

    def __init__(self, calls: Counter[str], name: str) -> None:
        self._calls, self._name = calls, name

    def __enter__(self) -> None:
        self._calls[self._name] += 1

    def __exit__(self, _kind: object, _error: object, _trace: object) -> None:
        """Nothing is timed."""


def time_graphs(profiler: Profiler) -> Iterable[StandIn]:
    """Note what is captured into graphs, and time their replays. Yields what undoes it."""
    import torch

    graph = torch.cuda.CUDAGraph
    for name, make in (("capture_begin", _begin), ("capture_end", _end), ("replay", _replay)):
        if name in vars(graph):
            yield StandIn(graph, name, profiler, make)


def _begin(function: Callable[..., Any], profilers: Sequence[Profiler]) -> Callable[..., Any]:
    def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
        result = function(graph, *args, **kwargs)
        for profiler in profilers:
            profiler.begin_capture()
        return result

    return capture_begin


def _end(function: Callable[..., Any], profilers: Sequence[Profiler]) -> Callable[..., Any]:
    def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
        for profiler in profilers:
            profiler.end_capture(graph)
        return function(graph, *args, **kwargs)

    return capture_end


def _replay(function: Callable[..., Any], profilers: Sequence[Profiler]) -> Callable[..., Any]:
    def replay(graph: Any, *args: Any, **kwargs: Any) -> Any:
        measuring = [profiler for profiler in profilers if profiler.step.measuring]
        timers = [profiler.cuda_bucket_timer(f"model.{BUCKET}") for profiler in measuring]
        for profiler, timer in zip(measuring, timers, strict=True):
            profiler.graphs.replayed(graph)
            timer.__enter__()
        try:
            return function(graph, *args, **kwargs)
        finally:
            for timer in reversed(timers):
                timer.__exit__(None, None, None)

    return replay
