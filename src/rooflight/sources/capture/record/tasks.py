"""TaskSource: a recording that begins in an asyncio task, and has the ops of its context alone.

Torch's modes and hooks belong to a thread, in which tasks take turns. Such a recording therefore asks whether an op is
its own: of the task that it began in, or of one that this started meanwhile. All others ask nothing.

OtherThreads: the ops that a recording's other threads run are counted, since its tape belongs to the thread that it
began in. A program has no hook where a thread begins. While a recording is open, therefore, ``Thread.start`` and
``ThreadPoolExecutor.submit`` put a counter around what they are given to run. Threads that were alive before, other
than those of such pools, and threads that C++ or ``_thread`` starts are not seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import wraps
from itertools import count
from threading import RLock, Thread, get_ident
from typing import Any, Final

from torch._guards import CompileContext
from torch.utils._python_dispatch import TorchDispatchMode

from rooflight.records.session import Uncounted
from rooflight.sources.capture.phases import phases_open
from rooflight.sources.capture.record.composites import OnStack
from rooflight.sources.capture.record.dispatch import DispatchSource, computes
from rooflight.sources.capture.record.schemas import schema_of
from rooflight.sources.capture.record.signatures import signature_of

_open: ContextVar[tuple[int, ...]] = ContextVar("rooflight_recordings", default=())
_count: Final = count()


class TaskSource(DispatchSource):
    """A source that is asked whether it is ``here`` before anything is noted."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        self._number = next(_count)
        _open.set((*_open.get(), self._number))
        self._open_phases = phases_open()
        self._phases: list[str] = []

    @property
    def here(self) -> bool:  # type: ignore[override]
        """Whether the code that runs now belongs to the context that the recording began in."""
        if get_ident() == self.thread:
            return self._number in _open.get()
        task: Any = asyncio.current_task(self._loop)  # it waits while a thread of autograd's runs its backward pass
        if hasattr(task, "get_context"):  # from Python 3.12 on
            return self._number in task.get_context().get(_open, ())
        return task is self._task

    def __torch_dispatch__(
        self, func: Any, types: tuple[type, ...], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self.here:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def set_phase(self, name: str) -> None:
        """Begin or end a phase of this thread, which counts if it is of this context."""
        before, self._open_phases = self._open_phases, phases_open()
        if not self.here:
            return
        if not self._phases and any(isinstance(mode, TaskSource) and mode._task != self._task for mode in self.modes()):
            name = ""  # a phase that is open may be the other task's
        if self._open_phases <= before and self._phases:
            self._phases.pop()
        if self._open_phases >= before or not self._phases:
            self._phases.append(name)
        super().set_phase(self._phases[-1])

    def leave(self) -> None:
        """Take it off the stack, and out of the context."""
        super().leave()
        _open.set(tuple([number for number in _open.get() if number != self._number]))


def in_task() -> bool:
    """Whether an asyncio task runs in this thread."""
    return asyncio._get_running_loop() is not None and asyncio.current_task() is not None


_SERVING: Final = ("concurrent.futures.", "multiprocessing.queues", "torch.utils.data.")
"""Modules whose threads do what others have asked for: jobs, each of which is counted, and the loading of data."""

_lock = RLock()
_counting_in: dict[int, OtherThreads] = {}  # by id
_theirs: dict[str, Any] = {}


class OtherThreads:
    """What threads run that a recording's own thread starts while it is open, and those that they start. A thread that
    has a recording of its own is not counted meanwhile.
    """

    def __init__(self, source: DispatchSource) -> None:
        self.source: DispatchSource | None = source
        self._counters: list[Counter] = []

    def open(self) -> None:
        """Begin to count."""
        with _lock:
            _counting_in[id(self)] = self
            for kind, name, ours in _METHODS:
                if kind.__dict__[name] is not ours:
                    _theirs[name] = kind.__dict__[name]
                    setattr(kind, name, ours)

    def close(self) -> None:
        """Count no more, also after half of ``open``; the last to do so leaves Python as it was. A thread that still
        runs keeps its counter, which passes ops on, until it ends.
        """
        with _lock:
            self.source = None  # its memory is not the threads' to keep
            _counting_in.pop(id(self), None)
            if _counting_in:
                return
            for kind, name, ours in _METHODS:
                if kind.__dict__[name] is ours:
                    setattr(kind, name, _theirs[name])

    def counted(self) -> Uncounted:
        """All that they ran so far."""
        counters = tuple(self._counters)
        return Uncounted(sum(each.calls for each in counters), sum(each.bytes for each in counters))

    def counter(self) -> Counter:
        """A new one for this thread, to be put on its stack."""
        counter = Counter(self)
        self._counters.append(counter)
        return counter


class Counter(OnStack, TorchDispatchMode):
    """Counts the calls of ops in a thread and the bytes of their tensors. Of compiled code, which runs there as ever,
    it sees what torch dispatches, and not the kernels that a compiler made; while it is compiled, nothing counts.
    """

    supports_higher_order_operators = True

    def __init__(self, others: OtherThreads) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.others = others
        self.calls = self.bytes = 0
        self._thread = get_ident()  # torch passes the mode on to the backward threads that it starts

    def __torch_dispatch__(
        self, func: Any, types: tuple[type, ...], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        source = self.others.source
        if source is None or any(source.is_foreign(kind) for kind in types):
            return func(*args, **kwargs) if source is None else NotImplemented
        out = func(*args, **kwargs)
        if computes(func) and CompileContext.try_get() is None and not _recorded_in(self._thread):
            self.calls += 1
            try:
                op = signature_of(schema_of(func), args, kwargs, out)
                self.bytes += op.input_bytes + op.output_bytes
            except Exception as error:
                source.fail(error)
        return out


def _recorded_in(thread: int) -> list[OtherThreads]:
    pairs = [(others, others.source) for others in tuple(_counting_in.values())]
    return [others for others, source in pairs if source is not None and source.thread == thread and source.here]


def _begun_in() -> list[OtherThreads]:
    counters = [mode for mode in Counter.modes() if isinstance(mode, Counter)]
    return [*_recorded_in(get_ident()), *[each.others for each in counters if each.others.source is not None]]


def _counting(function: Callable[..., Any], recordings: list[OtherThreads]) -> Callable[..., Any]:
    """The function with counters around it, one for each recording that is then open."""

    def run(*args: Any, **kwargs: Any) -> Any:
        counters = []
        try:
            while recordings:
                counters.append(recordings.pop().counter())
                counters[-1].__enter__()
            return function(*args, **kwargs)
        finally:
            for counter in counters:
                counter.leave()

    return run


@wraps(Thread.start)
def _start(self: Thread) -> None:
    module = getattr(getattr(self, "_target", None), "__module__", None)
    recordings = [] if str(module).startswith(_SERVING) else _begun_in()
    if not recordings:
        return _theirs["start"](self)  # type: ignore[no-any-return]
    before, counting = self.__dict__.get("run"), _counting(self.run, recordings)

    def put_back() -> None:
        self.__dict__.pop("run", None)
        if before is not None:
            self.__dict__["run"] = before

    def run() -> None:
        put_back()
        counting()

    self.__dict__["run"] = run  # a class of threads may have a method of its own
    try:
        _theirs["start"](self)
    except BaseException:
        put_back()
        raise


@wraps(ThreadPoolExecutor.submit)  # type: ignore[arg-type]
def _submit(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
    recordings = _begun_in()
    return _theirs["submit"](self, _counting(fn, recordings) if recordings else fn, *args, **kwargs)  # type: ignore[no-any-return]


_METHODS: Final[tuple[tuple[type, str, Any], ...]] = (
    (Thread, "start", _start),
    (ThreadPoolExecutor, "submit", _submit),
)
