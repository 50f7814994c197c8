"""``record``: the context manager that makes a session of the ops that run inside it."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import get_ident
from types import TracebackType
from typing import Any, Final

import torch
from torch import nn
from torch._C import _current_graph_task_id
from torch.compiler import is_dynamo_compiling
from torch.optim import optimizer as torch_optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from rooflight.hardware.machine.environment import describe
from rooflight.records.session import COMPILED, Session
from rooflight.roofline.host import with_host_side
from rooflight.sources.capture.holders import plain_parts
from rooflight.sources.capture.phases import current_phase, subscribe, unsubscribe
from rooflight.sources.capture.record.autocast import contexts_without_gpu
from rooflight.sources.capture.record.dispatch import DispatchSource
from rooflight.sources.capture.record.lifetimes import LifetimeTape, Standing
from rooflight.sources.capture.record.modules import FunctionSource, Models, ModuleTracker, models_of, with_experts
from rooflight.sources.capture.record.outside import with_outside_writes
from rooflight.sources.capture.record.patches import IN_COMPILED, patch, unpatch
from rooflight.sources.capture.record.schemas import place_in_world
from rooflight.sources.capture.record.signatures import storage_of
from rooflight.sources.capture.record.tape import Tape
from rooflight.sources.capture.record.tasks import OtherThreads, TaskSource, in_task

_WITHOUT_GPU: Final = (
    'torch.autocast("cuda") was off, since there is no CUDA here. For a GPU that is not here, make and record the step '
    "inside rooflight.as_on_gpu()"
)
_ELSEWHERE: Final = (
    "The recording ended in another asyncio task than it began in: it has the ops of the task that it began in, and of "
    "those that this started meanwhile"
)


class record:  # noqa: N801 - used like a function: with record(model) as recording
    """Record every operation that runs in the block: forward, backward, optimizer and collectives.

    Modules get their qualified names from ``model``, or from several models in a dict or list, with a prefix each;
    without it they get names that begin with the class of the outermost module called. Works on real, meta and fake
    tensors, under inference_mode, around compiled models (which run eagerly while they are recorded; their compiled
    code is left as it was), nested, and in several threads at once, each of which records its own ops. Those that begin
    inside, and jobs that go to a pool of threads, are counted as ops without a cost unless they record themselves;
    threads that were alive before are not seen. A recording that begins in an asyncio task has the ops of this task,
    and of tasks started inside. After the block, even if it raised, torch is as before.

        with rooflight.record(model) as recording:
            loss(model(x)).backward()
        recording.session

    Each op has the line of the user's own that called it, and what that calls. ``functions`` also notes the torch
    function that called each op (2 µs per call). ``times`` reads the clock around each op, host time without what
    recording costs: right on a CPU, of no use on a GPU, which still works after the call. ``memory`` also notes when
    each storage is freed, and its kind (2 µs per op). An error of the recorder itself is passed to ``on_error`` if
    given, and the program continues without being recorded; otherwise it is raised.
    ``standing`` tells what memory is there already, of which ops may touch none: it is then in the session too.
    With ``phases=False`` the program's phases are left out, and ``set_phase`` names them. ``compiled_eagerly=False``,
    for programs known to run no compiled functions, spares the import of Dynamo, a second.
    """

    _source: DispatchSource | None = None
    _functions: FunctionSource | None = None
    _tracker: ModuleTracker | None = None
    _lifetimes: LifetimeTape | None = None
    _others: OtherThreads | None = None
    _session: Session | None = None
    _without_gpu = 0
    _left: Sequence[tuple[int, weakref.ref[torch.UntypedStorage]]] = ()

    def __init__(
        self,
        model: Models | None = None,
        *,
        functions: bool = False,
        times: bool = False,
        memory: bool = False,
        phases: bool = True,
        compiled_eagerly: bool = True,
        on_error: Callable[[Exception], None] | None = None,
        standing: Standing | None = None,
    ) -> None:
        if is_dynamo_compiling():
            raise RuntimeError(IN_COMPILED)
        self._models = models_of(model)
        self._tape = LifetimeTape() if memory else Tape()
        self._wants_functions = functions
        self._wants_times = times
        self._wants_phases = phases
        self._compiled_eagerly = compiled_eagerly
        self._on_error = on_error
        self._standing = standing
        self._notes: list[str] = []

    def __repr__(self) -> str:
        if self._session is not None:
            return repr(self._session).replace("Session", "Recording", 1)
        return "Recording(not begun: use it in a with block)" if self._source is None else "Recording(still open)"

    @property
    def session(self) -> Session:
        """The recorded session. Raises RuntimeError before the recording has ended."""
        if self._session is None:
            raise RuntimeError("the recording is still open: read .session after the with block")
        return self._session

    def so_far(self) -> Session:
        """The session recorded until now; the recording may continue."""
        if self._session is not None:
            return self._session
        if self._source is not None and _current_graph_task_id() == -1:
            self._source.composites.close_backward()
        return self._finished()

    @property
    def left(self) -> Sequence[tuple[int, weakref.ref[torch.UntypedStorage]]]:
        """With ``memory``: storages by number that were made in the block and are still there."""
        return self._left if self._lifetimes is None else self._lifetimes.left()

    def name_modules(self, model: Models) -> None:
        """Give the modules of a model their qualified names, from now on."""
        models = models_of(model)
        self._models = {**self._models, **models}
        if self._tracker is not None:
            self._tracker.name(models)

    def set_phase(self, name: str) -> None:
        """Ops from here on belong to the phase ``name``. Does nothing while the recording is not open."""
        if self._source is not None and self._session is None:
            self._source.set_phase(name)

    @property
    def calls(self) -> int:
        """How many calls it has so far."""
        return len(self._tape)

    def within(self, module: nn.Module, args: Any) -> None:
        """The block began inside a call of ``module`` with ``args``, of which torch has run the hooks."""
        if self._tracker is not None:
            self._tracker._enter(module, args)

    def abandon(self) -> None:
        """Remove the recording from torch without keeping it. Inside an op that is not completely possible: torch puts
        the mode back. Can be called again.
        """
        if self._source is not None:
            self._take_out(self._source)
            self._models, self._tracker = {}, None

    def __enter__(self) -> record:
        if self._source is not None:
            raise RuntimeError("a recording is used once: call rooflight.record() again")
        kind = TaskSource if in_task() else DispatchSource
        source = self._source = kind(self._tape, timed=self._wants_times, on_error=self._on_error)
        if self._wants_functions:
            self._functions = FunctionSource(source)
        self._tracker = ModuleTracker(source, self._models, self._functions)
        source.set_phase(current_phase() if self._wants_phases else "")
        self._without_gpu = contexts_without_gpu()
        self._others = OtherThreads(source)
        try:
            self._others.open()
            patch(source, compiled_eagerly=self._compiled_eagerly)
            if self._wants_phases:
                subscribe(source.set_phase)
            self._tracker.install()
            register_optimizer_step_pre_hook(source.before_step)
            if isinstance(self._tape, LifetimeTape):
                self._lifetimes = self._tape
                self._lifetimes.install(self._tracker.roots, self._standing)
            source.move(0, 0)
            source.__enter__()
            if self._functions is not None:
                self._functions.__enter__()
        except BaseException:
            self._take_out(source)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        source = self._source
        assert source is not None
        if get_ident() != source.thread:
            raise RuntimeError("a recording ends in the thread that it began in")
        if not source.here:
            self._notes.append(_ELSEWHERE)
        try:
            self._take_out(source)
        except BaseException:  # an interrupt must not leave torch half restored
            self._take_out(source)
            raise
        source.composites.close_backward()
        source.constants.clear()
        self._session = self._finished()
        if self._lifetimes is not None:
            self._left = self._lifetimes.left()
            self._lifetimes.forget()
        self._models = {}
        self._tracker = self._functions = self._lifetimes = None

    def _finished(self) -> Session:
        tape, tracker = self._tape, self._tracker

        def state() -> frozenset[int]:
            models = tracker.roots() if tracker is not None else ()
            tensors = (tensor for model in models for tensor in (*model.parameters(), *model.buffers()))
            addresses = (storage_of(part) for tensor in tensors for part in plain_parts(tensor))
            known = (tape.storage_ids.get(storage._cdata) for storage in addresses if storage is not None)
            return frozenset(number for number in known if number is not None)

        tape.births.finish()
        notes = [*self._notes, *[_WITHOUT_GPU] * (contexts_without_gpu() > self._without_gpu)]
        compiled = {COMPILED: "yes"} if self._source is not None and self._source.compiled else {}
        environment = {**_environment(tape.devices), **compiled}
        session = with_outside_writes(tape.session(environment, notes), tape.births, state)
        session = with_experts(session, tracker.roots() if tracker is not None else ())
        if self._others is not None:
            session = replace(session, other_threads=self._others.counted())
        if tape.devices <= {"cpu", "fake"}:
            return session
        return with_host_side(session, tape.on_host, state(), fake="fake" in tape.devices)

    def _take_out(self, source: DispatchSource) -> None:
        """Restore torch. Each step can be done twice, and undoes what was half done."""
        if self._functions is not None:
            self._functions.leave()
        source.leave()
        if self._tracker is not None:
            self._tracker.remove()
        steps = torch_optimizer._global_optimizer_pre_hooks
        for number in [number for number, hook in steps.items() if hook == source.before_step]:
            steps.pop(number, None)  # searched for, since an interrupt may have lost the handle
        if self._lifetimes is not None:
            self._lifetimes.remove()
        unsubscribe(source.set_phase)
        if self._others is not None:
            self._others.close()
        unpatch(source)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # an argument, because the names of this module may be gone by then
            return
        if self._source is not None and self._session is None:  # an interrupt kept it from ending
            self._take_out(self._source)


def _environment(devices: set[str]) -> dict[str, str]:
    kind = "meta" if "fake" in devices else next((kind for kind in ("meta", "cuda") if kind in devices), "cpu")
    return {**describe("cuda" if kind == "cuda" else "cpu"), **place_in_world(), "device_kind": kind}
