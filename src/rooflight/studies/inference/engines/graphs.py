"""Functions that stand in for others while profilers time those, and CUDA graphs timed so.

A replay of a graph runs no Python: no bucket opens in it, and events captured into it would have no time. So a replay
is timed as one, in the bucket ``cuda_graph``, and which buckets it holds is counted at its capture, in a step or before
all runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from rooflight.studies.inference.timers import BucketTimers

Made = Callable[[Callable[..., Any], Sequence[BucketTimers]], Callable[..., Any]]
"""Makes what stands in for a function, for the timers of all profilers in a list that changes."""

_shared: Final[dict[tuple[Any, str], tuple[Any, Any, list[BucketTimers]]]] = {}
"""By owner and name: the function, what stands in for it, and the timers that it serves."""


class StandIn:
    """Puts what ``make`` makes in the place of ``name`` in ``owner``, a module or a class.

    One serves the timers of all profilers, so that they can be removed in any order; the first one makes it.
    """

    def __init__(self, owner: Any, name: str, timers: BucketTimers, make: Made) -> None:
        self.key = (owner, name)
        self._timers = timers
        if self.key not in _shared:
            served: list[BucketTimers] = []
            function = vars(owner)[name]
            stand_in = make(function, served)
            stand_in.__wrapped__ = function  # type: ignore[attr-defined]
            _shared[self.key] = (function, stand_in, served)
            setattr(owner, name, stand_in)
        _shared[self.key][2].append(timers)

    def remove(self) -> None:
        """Put the function back once no profiler times it."""
        function, stand_in, served = _shared[self.key]
        served.remove(self._timers)
        if served:
            return
        owner, name = self.key
        del _shared[self.key]
        if vars(owner).get(name) is stand_in:  # else somebody else's is around it
            setattr(owner, name, function)


def call_within(
    served: Iterable[BucketTimers], label: str, function: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    """Call a function with the model's timers of a label open."""
    opened = [timers.model[label] for timers in served]
    for timer in opened:
        timer.__enter__()
    try:
        return function(*args, **kwargs)
    finally:
        for timer in reversed(opened):
            timer.__exit__(None, None, None)


BUCKET: Final = "cuda_graph"
"""The bucket of replays."""


def time_graphs(timers: BucketTimers) -> Iterable[StandIn]:
    """Count what is captured into graphs, and time their replays. Yields what undoes it."""
    import torch

    graph = torch.cuda.CUDAGraph
    for name, make in (("capture_begin", _begin), ("capture_end", _end), ("replay", _replay)):
        if name in vars(graph):
            yield StandIn(graph, name, timers, make)


def _begin(function: Callable[..., Any], served: Sequence[BucketTimers]) -> Callable[..., Any]:
    def capture_begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
        result = function(graph, *args, **kwargs)
        for timers in served:
            timers.begin_capture()
        return result

    return capture_begin


def _end(function: Callable[..., Any], served: Sequence[BucketTimers]) -> Callable[..., Any]:
    def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
        for timers in served:
            timers.end_capture(graph)
        return function(graph, *args, **kwargs)

    return capture_end


def _replay(function: Callable[..., Any], served: Sequence[BucketTimers]) -> Callable[..., Any]:
    def replay(graph: Any, *args: Any, **kwargs: Any) -> Any:
        measuring = [timers for timers in served if timers.step.measuring]
        for timers in measuring:
            timers.graphs.replayed(graph)
        return call_within(measuring, f"model.{BUCKET}", function, (graph, *args), kwargs)

    return replay
