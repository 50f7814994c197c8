"""Compiling beside a loop: its graphs go to a worker process, calls go on eagerly, and a later call finds the caches
filled.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from rooflight.compiling.beside import Job, worker

if TYPE_CHECKING:
    import torch

    from rooflight.compiling.hot.plan import Inductor, Plan
    from rooflight.compiling.hot.result import CallKind, HotOptions

_OTHER_SIZES: Final = 32
"""So many calls of other sizes than those that were captured are waited for these to return."""
IN_CALLS: Final = 0.3
"""Of the time of compiling, what tracing twice and loading the compiled code take."""
START_S: Final = 5.0
"""What the worker takes to import torch, the first time."""


class Capture:
    """A backend that compiles nothing: it keeps each graph as a message, and has it run as it is."""

    def __init__(self, patches: dict[str, Any]) -> None:
        self._patches = patches
        self.graphs: list[bytes] = []
        self.failed = ""

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """Keep a graph that Dynamo captured."""
        from rooflight.compiling.graph_message import NotSendableError, packed

        if not self.failed:
            try:
                self.graphs.append(packed(graph, inputs, self._patches))
            except NotSendableError as error:
                self.failed = str(error)
        return graph.forward


class Beside:
    """A kind of call that is compiled beside the loop: from the call that captured its graphs to the one that has them
    compiled from the caches. ``eager_s``: the last times of calls meanwhile.
    """

    def __init__(self, sizes: tuple[Any, ...], clock: Callable[[], float], began: float) -> None:
        self._sizes = sizes
        self._clock = clock
        self._began = began
        self._job: Job | None = None
        self._misses = 0
        self._since_done = 0
        self.failed = ""
        self.capture_s = 0.0  # of the call that captured
        self.calls = 0
        self.eager_s: list[float] = []
        self.used = False

    def run(self, plan: Plan[Any], inductor: Inductor, limit_s: float, call: Callable[[Plan[Any]], Any]) -> Any:
        """Run the program's call by a plan whose backend captures, and hand over the graphs."""
        from torch._inductor import config

        capture = Capture(inductor.patches)
        capturing = plan.through(capture)
        if config.force_disable_caches or not config.fx_graph_cache:
            capture.failed = "Inductor's cache on disk is switched off"
        try:
            out = call(capturing)
        finally:
            capturing.switch(on=False)
        self.capture_s = self._clock() - self._began
        if capture.failed or not capture.graphs:
            self.failed = capture.failed or "torch captured no graph"
        else:
            self._job = worker.submit(capture.graphs, limit_s)
        return out

    @property
    def done(self) -> bool:
        """Whether the worker has reported, or there is nothing to wait for."""
        return self._job is None or self._job.done

    @property
    def filled(self) -> bool:
        """Whether the caches have what the worker compiled."""
        return self._job is not None and self._job.done and not self._job.failed

    def ready(self, sizes: tuple[Any, ...]) -> bool:
        """Whether a call of these sizes is to be compiled now."""
        if not self.done:
            self.calls += 1
            return False
        self._since_done += 1
        return self.failed != "" or sizes == self._sizes or self._since_done > _OTHER_SIZES

    def switch(self, inductor: Inductor, call: Callable[[], Any]) -> Any:
        """Run the call that compiles in this process."""
        self.used = True
        if self._job is not None:
            self.failed = self.failed or self._job.failed
        before = _misses()
        inductor.backward_at_once = self.filled
        try:
            return call()
        finally:
            inductor.backward_at_once = False
            self._misses = _misses() - before if self.filled else 0

    @property
    def worker_s(self) -> float | None:
        """What compiling took the worker."""
        return None if self._job is None else self._job.seconds

    def slowed(self, eager_s: float) -> float | None:
        """How many times as long eager calls took meanwhile."""
        return statistics.median(self.eager_s) / eager_s if self.eager_s and eager_s else None

    @property
    def told(self) -> str:
        """What became of it, in words."""
        if self.failed:
            return f"compiled in the call: {self.failed}"
        if not self.used:
            now = "compiled" if self.done else f"compiling beside the loop for {self._clock() - self._began:.1f} s"
            return f"{now}, {self.calls} calls ran eagerly meanwhile"
        again = f", but {self._misses} graphs once more in the call" if self._misses else ""
        return (
            f"compiled beside the loop in {self.worker_s or 0.0:.1f} s{again}; {self.calls} calls ran eagerly meanwhile"
        )


def cost_s(kind: CallKind, speedup: float, options: HotOptions) -> float:
    """What compiling a kind costs a loop: the call that compiles; beside the loop, the two calls that trace and load,
    and, where the number of runs is known, the gain that calls meanwhile do without. The worker's time is no cost.
    """
    assert kind.expected is not None
    compile_s = kind.compile_s or kind.expected.compile_s
    if not options.beside or options.backend != "inductor":
        return compile_s
    if kind.compile_s is not None or kind.expected.source == "an earlier run":
        in_calls, worker_s = compile_s, compile_s / IN_CALLS
    else:
        in_calls, worker_s = IN_CALLS * compile_s, START_S + compile_s
    if kind.beside is not None and kind.beside.worker_s is not None:
        worker_s = kind.beside.worker_s
    return in_calls + (worker_s * max(0.0, 1 - 1 / speedup) if options.expected_runs is not None else 0.0)


def _misses() -> int:
    from torch._dynamo.utils import counters

    with suppress(KeyError):
        return int(counters["inductor"]["fxgraph_cache_miss"])
    return 0
