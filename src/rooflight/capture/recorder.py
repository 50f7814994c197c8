"""``record``: the context manager that turns what runs inside it into a session."""

from __future__ import annotations

from contextlib import ExitStack
from threading import Lock, get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rooflight.capture.composites import install_route, remove_route
from rooflight.capture.dispatch import DispatchSource
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
    recording its own. On leaving, also by an exception, torch is as before.

        with rooflight.record(model) as recording:
            loss(model(x)).backward()
        recording.session
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self._model = model
        self._tape = Tape()
        self._source: DispatchSource | None = None
        self._undo = ExitStack()
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        """What was recorded. Raises RuntimeError before the recording has ended."""
        if self._session is None:
            raise RuntimeError("the recording is still open: read .session after the with block")
        return self._session

    def __enter__(self) -> record:
        if self._source is not None:
            raise RuntimeError("a recording is used once: call rooflight.record() again")
        source = self._source = DispatchSource(self._tape)
        tracker = ModuleTracker(source, self._model)
        source.phase = self._tape.phase(current_phase())
        source.update_context()
        with ExitStack() as undo:  # whatever stops us half-way, what was installed is taken out again
            undo.callback(remove_route)
            install_route()
            undo.callback(_stop_running_eagerly)
            _run_eagerly()
            undo.callback(unsubscribe, self._set_phase)
            subscribe(self._set_phase)
            undo.callback(tracker.remove)
            tracker.install()
            source.enter_module(0)
            undo.enter_context(source)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._source is not None
        if get_ident() != self._source.thread:
            raise RuntimeError("a recording ends in the thread that it began in")
        try:
            self._undo.close()
        except BaseException:  # an interrupt must not leave torch half restored
            self._undo.close()
            raise
        self._source.composites.close_backward()
        self._session = self._tape.session(_environment(self._tape.devices))
        self._model = None

    def _set_phase(self, name: str) -> None:
        assert self._source is not None
        self._source.phase = self._tape.phase(name)
        self._source.update_context()


def _environment(devices: set[str]) -> dict[str, str]:
    """The machine's facts, and which of its devices the recorded tensors were on: "meta" for none."""
    kind = next((kind for kind in ("meta", "cuda", "cpu") if kind in devices), "cpu")
    return {**describe("cuda" if kind == "cuda" else "cpu"), "device_kind": kind}


_lock = Lock()
_eager_recordings = 0
_stance: Any = None


def _run_eagerly() -> None:
    """Let compiled functions run their original code, without a trace in their caches (pytorch issue 140909)."""
    global _eager_recordings, _stance
    from torch._dynamo.eval_frame import DynamoStance, _set_stance

    with _lock:
        _eager_recordings += 1
        if _eager_recordings == 1:
            _stance = _set_stance(DynamoStance("force_eager"))


def _stop_running_eagerly() -> None:
    global _eager_recordings, _stance
    from torch._dynamo.eval_frame import _set_stance

    with _lock:
        _eager_recordings -= 1
        if _eager_recordings == 0:
            _set_stance(_stance)
            _stance = None
