"""Bucket timers: those of one profiler by label, and functions that find the active profiler's without being passed it.

A timer costs a program next to nothing while no step is measured: it returns one context manager that is made of C.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakSet

from rooflight.sources.capture.time.timed_calls import Arounds, TimedCalls
from rooflight.studies.inference.config import ENGINE_METHODS, Domain
from rooflight.studies.inference.problems import Problems
from rooflight.studies.inference.result import GraphKind

if TYPE_CHECKING:
    from rooflight.studies.inference.step import Recorder, StepContext


class _Off:
    """Does nothing. A method in Python would take longer than all the rest of a timer that is off: ``"".format`` takes
    any arguments and returns what is false, so that exceptions pass.
    """

    __slots__ = ()
    __enter__ = __exit__ = "".format


OFF: Final[Any] = _Off()
"""The timer that is off."""

Timer = AbstractContextManager[object]

_DOMAINS: Final = tuple(Domain)
_MOST_LABELS: Final = 1024


class Labels(dict[str, Timer]):
    """The timers of one domain by label, each made when it is first asked for. A label that is no text gets none."""

    def __init__(self, make: Callable[[Domain, str], Timer], domain: Domain, on_problem: Callable[[str], None]) -> None:
        super().__init__()
        self._make = make
        self._domain = domain
        self._on_problem = on_problem

    def __missing__(self, label: object) -> Timer:
        if not isinstance(label, str) or not label:
            return self._refuse(label)
        first, _, rest = label.partition(".")
        domain, name = (Domain(first), rest) if rest and first in _DOMAINS else (self._domain, label)
        timer = self._make(domain, ENGINE_METHODS.get(name, name) if domain is Domain.ENGINE else name)
        if len(self) < _MOST_LABELS:
            self[label] = timer
        return timer

    def timer(self, label: str) -> Timer:
        """The timer of a label, whatever it is."""
        try:
            return self[label]
        except TypeError:
            return self._refuse(label)

    def _refuse(self, label: object) -> Timer:
        what = "by an empty one" if label == "" else f"by {type(label).__name__}"
        self._on_problem(f"a bucket is named by a text, not {what}: it was not timed")
        return OFF  # type: ignore[no-any-return]


class Graphs:
    """The CUDA graphs of a process: which buckets were opened when each was captured, and how often they were replayed
    in measured steps. ``kinds`` has graphs that hold the same together.
    """

    def __init__(self) -> None:
        self.kinds: dict[tuple[tuple[str, int], ...] | None, GraphKind] = {}
        self._of_graph: WeakKeyDictionary[Any, GraphKind] = WeakKeyDictionary()

    def captured(self, graph: Any, calls: dict[str, int] | None) -> GraphKind:
        """A graph holds so many calls of buckets; None: it was captured before anybody looked."""
        key = None if calls is None else tuple(sorted(calls.items()))
        kind = self._of_graph[graph] = self.kinds.setdefault(key, GraphKind(graphs=0, replays=0, buckets=calls))
        kind.graphs += 1
        return kind

    def replayed(self, graph: Any) -> None:
        """A graph was replayed in a measured step."""
        kind = self._of_graph.get(graph) or self.captured(graph, None)
        kind.replays += 1


class _Counted:
    def __init__(self, calls: Counter[str], name: str) -> None:
        self._calls, self._name = calls, name

    def __enter__(self) -> None:
        self._calls[self._name] += 1

    def __exit__(self, _kind: object, _error: object, _trace: object) -> None:
        """Nothing is timed."""


class BucketTimers:
    """The timers of one profiler, for its hooks. A bucket is timed by the meter of ``step``; while steps are recorded,
    or a CUDA graph is captured, the recorder has it, or it is counted.
    """

    def __init__(self, step: StepContext, profiled: Sequence[Domain], problems: Problems) -> None:
        self.step, self.problems = step, problems
        self.model, self.engine = (Labels(self._bucket, domain, problems.note) for domain in _DOMAINS)
        self.around_model = Arounds(self.model)
        self.calls: WeakSet[TimedCalls] = WeakSet()
        self.graphs = Graphs()
        self._counted: Counter[str] | None = None  # of the model, while a graph is captured: the engine's are around it
        self._profiled = profiled
        step.published = (self.model, self.engine) if profiled else None

    def _bucket(self, domain: Domain, name: str) -> Timer:
        if domain in self._profiled and self._counted is not None:
            return _Counted(self._counted, name) if domain is Domain.MODEL else OFF
        timing = self.step.recorder or self.step.meter
        return timing.bucket(domain, name) if domain in self._profiled and timing is not None else OFF

    def renew(self) -> None:
        """What times buckets is another from here on."""
        self.around_model.clear()
        self.model.clear()
        self.engine.clear()
        for calls in self.calls:
            calls.renew()

    def record(self, recorder: Recorder | None) -> Recorder | None:
        """Record steps from here on, or time them again. Returns what recorded them before."""
        before = self.step.record(recorder)
        self.renew()
        return before

    def begin_capture(self) -> None:
        """A CUDA graph is captured from here on: buckets that open are counted, not timed."""
        self._counted = Counter()
        self.renew()
        self.step.capture(on=True)

    def end_capture(self, graph: Any = None) -> None:
        """The capture ends; ``graph`` is None if it failed."""
        counted, self._counted = self._counted, None
        if counted is not None:
            self.renew()
            self.step.capture(on=False)
            if graph is not None:
                self.graphs.captured(graph, dict(counted))


# -- the active profiler's --------------------------------------------------------------------------------------------

_open: tuple[Labels, Labels] | None = None  # of model and engine, while the active profiler measures a step

publish: Final = partial(setattr, sys.modules[__name__], "_open")
"""Let the timers of this module be these, until the next call. In each step: costs less than a function."""


def cuda_bucket_timer(bucket: str) -> Timer:
    """Time what runs inside as a bucket of the model: on CUDA the time of the device, on a CPU that of the host.

    A label may begin with its domain, ``model.`` or ``engine.``, which then counts. Off unless the active profiler
    measures a step and the domain's profiling is on.
    """
    opened = _open
    return OFF if opened is None else opened[0].timer(bucket)


def cpu_bucket_timer(bucket: str) -> Timer:
    """Time what runs inside as a bucket of the engine, on the host's clock; otherwise as ``cuda_bucket_timer``."""
    opened = _open
    return OFF if opened is None else opened[1].timer(bucket)


def attention_compute_timer() -> Timer:
    """Time the bucket ``attn.compute`` of the model."""
    opened = _open
    return OFF if opened is None else opened[0]["attn.compute"]


def rope_compute_timer() -> Timer:
    """Time the bucket ``attn.rope`` of the model."""
    opened = _open
    return OFF if opened is None else opened[0]["attn.rope"]


def _of_label(bucket: str) -> AbstractContextManager[None]:  # noqa: ARG001 - the signature of what it stands for
    return nullcontext()


def _without_label() -> AbstractContextManager[None]:
    return nullcontext()


# dynamo traces calls of the timers as contexts that do nothing
with suppress(ImportError):
    from torch.compiler import substitute_in_graph

    for _timer in (cuda_bucket_timer, cpu_bucket_timer):
        substitute_in_graph(_timer)(_of_label)
    for _plain_timer in (attention_compute_timer, rope_compute_timer):
        substitute_in_graph(_plain_timer)(_without_label)
