"""``record``: the context manager that turns what runs inside it into a session."""

from __future__ import annotations

import warnings
from threading import Lock, get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rooflight.capture.composites import install_route, remove_route
from rooflight.capture.dispatch import DispatchSource
from rooflight.capture.functions import FunctionSource
from rooflight.capture.modules import ModuleTracker
from rooflight.capture.phases import current_phase, subscribe, unsubscribe
from rooflight.capture.tape import Tape
from rooflight.machine.environment import describe
from rooflight.records.session import Session

if TYPE_CHECKING:
    from torch import nn


class record:  # noqa: N801 - used like a function: with record(model) as recording
    """Record every operation that runs inside, forward, backward, optimizer and collectives.

    ``model`` gives modules their qualified names; without it the outermost module called names itself. Works on real,
    meta and fake tensors, under inference_mode, around compiled models (which run eagerly meanwhile: their structure
    is what is recorded, and their compiled code is left as it was), nested, and in several threads at once, each
    recording its own; threads started inside are not recorded. On leaving, also by an exception, torch is as before.

        with rooflight.record(model) as recording:
            loss(model(x)).backward()
        recording.session

    ``functions`` also notes which torch function each op was called for (2 µs a call). ``times`` reads the clock around
    each op, host time without what recording costs: right on a CPU, of no use on a GPU, which works on after the call.
    """

    _source: DispatchSource | None = None
    _functions: FunctionSource | None = None
    _tracker: ModuleTracker | None = None
    _session: Session | None = None

    def __init__(self, model: nn.Module | None = None, *, functions: bool = False, times: bool = False) -> None:
        self._model = model
        self._tape = Tape()
        self._wants_functions = functions
        self._wants_times = times

    @property
    def session(self) -> Session:
        """What was recorded. Raises RuntimeError before the recording has ended."""
        if self._session is None:
            raise RuntimeError("the recording is still open: read .session after the with block")
        return self._session

    def __enter__(self) -> record:
        if self._source is not None:
            raise RuntimeError("a recording is used once: call rooflight.record() again")
        source = self._source = DispatchSource(self._tape, timed=self._wants_times)
        if self._wants_functions:
            self._functions = FunctionSource(source)
        self._tracker = ModuleTracker(source, self._model, self._functions)
        source.set_phase(current_phase())
        try:
            install_route(source)
            _run_eagerly(source)
            subscribe(source.set_phase)
            self._tracker.install()
            source.enter_module(0)
            source.__enter__()
            if self._functions is not None:
                self._functions.__enter__()
        except BaseException:
            self._take_out(source)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        source = self._source
        assert source is not None
        if get_ident() != source.thread:
            raise RuntimeError("a recording ends in the thread that it began in")
        try:
            self._take_out(source)
        except BaseException:  # an interrupt must not leave torch half restored
            self._take_out(source)
            raise
        source.composites.close_backward()
        self._session = self._tape.session(_environment(self._tape.devices))
        self._model = self._tracker = self._functions = None

    def _take_out(self, source: DispatchSource) -> None:
        """Put torch back. Each step can be done twice and undoes what was half done."""
        if self._functions is not None:
            self._functions.leave()
        source.leave()
        if self._tracker is not None:
            self._tracker.remove()
        unsubscribe(source.set_phase)
        _stop_running_eagerly(source)
        remove_route(source)

    def __del__(self) -> None:
        if self._source is not None and self._session is None:  # an interrupt kept it from ending
            self._take_out(self._source)


def _environment(devices: set[str]) -> dict[str, str]:
    """The machine's facts, and which of its devices the recorded tensors were on: "meta" for none."""
    kind = next((kind for kind in ("meta", "cuda", "cpu") if kind in devices), "cpu")
    return {**describe("cuda" if kind == "cuda" else "cpu"), "device_kind": kind}


_lock = Lock()
_eager: set[DispatchSource] = set()
_stance: Any = None  # what to go back to
_HOOKS_WARNING = "Using `torch.compile\\(module\\)` when there are global hooks"  # ours do no harm


def _run_eagerly(source: DispatchSource) -> None:
    """Let compiled functions run their original code, without a trace in their caches (pytorch issue 140909)."""
    global _stance
    from torch._dynamo import eval_frame

    with _lock:
        _eager.add(source)
        if _stance is None:
            _stance = eval_frame._stance
            eval_frame._set_stance(eval_frame.DynamoStance("force_eager"))
            warnings.filterwarnings("ignore", _HOOKS_WARNING)


def _stop_running_eagerly(source: DispatchSource) -> None:
    """Undo ``_run_eagerly``; the last recording to do so restores the stance that the first one found."""
    global _stance
    from torch._dynamo import eval_frame

    with _lock:
        _eager.discard(source)
        if not _eager and _stance is not None:
            eval_frame._set_stance(_stance)
            for entry in [entry for entry in warnings.filters if getattr(entry[1], "pattern", "") == _HOOKS_WARNING]:
                warnings.filters.remove(entry)  # type: ignore[attr-defined]
            _stance = None
