"""Tells where the steps of a script begin and end, from calls of its modules, backward passes, optimizers and loaders.

A step ends when the outermost ``Optimizer.step`` returns; it begins at the first call, with gradients on, of a module
in training mode after the one before, or where the optimizer's call begins if it runs the model itself. Without an
optimizer a backward pass ends it, and without that a step is a call of the outermost module with the most parameters.
Modules without parameters (losses, transforms, metrics) and calls from within a backward pass begin none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from time import perf_counter_ns
from typing import Any, Final, NamedTuple
from weakref import ref

from torch import is_grad_enabled, nn
from torch._C import _current_graph_task_id, _get_tracing_state
from torch._C._autograd import _get_sequence_nr
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import _global_forward_pre_hooks
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from rooflight.capture.run.quick import hasten
from rooflight.capture.run.recording import Recorder
from rooflight.capture.run.steps import Steps
from rooflight.records.timeline import StepKind

HOOK: Final = "rooflight"
_CALLS_OF_A_STEP: Final = 8
"""A recording that began with a call is given up after so many without a backward pass: they are no part of a step."""


class Weights(NamedTuple):
    """Elements of a module's parameters, and whether one of them is trained."""

    elements: int
    trained: bool


class Caller(NamedTuple):
    """Who ends steps: the name in reports, and the line of the script that calls it."""

    name: str
    where: str


class StepFinder:
    """One for a process; it follows the thread that steps. Times are of ``perf_counter_ns``."""

    def __init__(self, *, skip: int, only: StepKind | None = None, named: str = "") -> None:
        self.skip, self.only, self.named = skip, only, named
        self.by_optimizer, self.by_backward, self.by_function = Steps(), Steps(), Steps()
        self.calls: dict[int, Steps] = {}  # of modules, by number
        self.optimizers: dict[Caller, int] = {}
        self.modules: dict[int, tuple[Caller, Weights]] = {}
        self.backward = Caller("backward", "")
        self.function = Caller(named, "")
        self.recorder = Recorder(skip)
        self.begun_by: type | None = None
        self.broken = ""
        self.losses = 0  # calls of modules without parameters
        self.cycle: int | None = 1
        self._thread: int | None = None
        self.hook: Callable[[nn.Module, Any], None] | None = None
        self._model: nn.Module | None = None
        self._weights: dict[int, tuple[ref[nn.Module], Weights, int]] = {}  # by id
        self._numbers: dict[int, int] = {}  # id of an optimizer -> its number
        self.loader = self.evaluation = self.checkpoint = 0
        self.begun = self.nodes = self.backwards = 0
        self._backward_end = 0, 0
        self._known_at_begin = 0, 0, 0
        self.last_event = perf_counter_ns()  # when what is known to lie between steps last ended
        self.running: list[int] = []
        self._called: nn.Module | None = None
        self._call_begin = self._call_place = self._call_recorded = 0
        self._ended_by_backward = False
        self.evaluates_since = self._with_gradients_since = 0
        self._only_grads = True  # no call of backward so far
        self.in_known_step = False  # a step whose backward passes are only counted
        self._trained_in_eval: type | None = None
        self._trains_in_eval = self._without_modules = self._call_is_recorded = False
        self._data: object = None
        self._training_data: object = None
        self._heaviest = -1
        self._modules_seen = 0
        self._undecided: tuple[int, int, tuple[int, int, int]] | None = None  # where the first step may have begun

    # -- modules

    def watch(self) -> None:
        """Notice calls of modules from here on."""
        _global_forward_pre_hooks[HOOK] = self.hook or self.called  # type: ignore[index]

    def _look_away(self) -> None:
        _global_forward_pre_hooks.pop(HOOK, None)  # type: ignore[call-overload]

    def called(self, module: nn.Module, args: Any) -> None:
        """Torch's hook before each outermost call of a module."""
        if is_dynamo_compiling() or not self._mine() or _current_graph_task_id() != -1 or _get_tracing_state():
            return
        now = perf_counter_ns()
        self.recorder.keep_what_ended()
        if self.only is not None and self._is_chosen(module, args, now):
            return
        _, weights, _ = self._weights_of(module)
        if not weights.elements:
            self.losses += 1
            return
        grad = is_grad_enabled()
        if self._ended_by_backward:
            self._end_backward(now)
        if grad and weights.trained and (module.training or self._trains_in_eval):
            self._trains(module, args, now)
        elif not self.begun:
            if grad and weights.trained and not self._with_gradients_since:
                self._with_gradients_since, self._trained_in_eval = now, type(module)
            if not self.evaluates_since and self.has_trained:
                self.evaluates_since = now
            self._call(module, args, now)

    def _is_chosen(self, module: nn.Module, args: Any, now: int) -> bool:
        """Whether only calls of a module or function that the user named are looked at."""
        if self.only is StepKind.MODULE and type(module).__name__ == self.named:
            self._call(module, args, now)
        return self.only in (StepKind.MODULE, StepKind.FUNCTION)

    def _trains(self, module: nn.Module, args: Any, now: int) -> None:
        decided = self.by_optimizer.count > 0
        begins = not self.begun
        if begins:
            self._training_data = self._data
            self._open(now, module)
        if (begins or self.running) and not self.recorder.settled and self.has_trained:
            self._record(module, args)
        if decided:
            self._model = module if begins and not self.running else None
            self._look_away()
        else:
            self._call(module, args, now)

    def _call(self, module: nn.Module, args: Any, now: int) -> None:
        """A call that may itself be the step; the hook is off until it returns, so that its modules cost nothing."""
        self._look_away()
        number = self._number_of(module)
        self._called, self._call_begin = module, now
        module._forward_hooks[HOOK] = self.returned  # type: ignore[index]
        if self.has_trained or number != self._heaviest:
            return
        self._call_place = self.calls[number].count
        if not self.backwards and self.recorder.is_open and self._call_place >= self._call_recorded + _CALLS_OF_A_STEP:
            self.recorder.drop()
        if self.recorder.wants(StepKind.MODULE, self._call_place):
            self._call_recorded, self._call_is_recorded = self._call_place, True
            self.recorder.begin(self._call_place, 1, module, args)

    def returned(self, module: nn.Module, _args: Any, _result: Any) -> None:
        """Torch's hook after it."""
        now = perf_counter_ns()
        self._forget_call()
        number = self._number_of(module)
        steps = self.calls[number]
        if self._call_is_recorded and number == self._heaviest and not self.backwards:
            self._call_is_recorded = False
            may_train = bool(self.begun) and is_grad_enabled() and self.only is None
            self.recorder.keep(StepKind.MODULE, so_far=may_train)
        steps.add(self._call_begin, now, number, 0, 0, self._known(now))

    def _forget_call(self) -> None:
        module, self._called = self._called, None
        if module is not None:
            module._forward_hooks.pop(HOOK, None)  # type: ignore[call-overload]
            self.watch()

    # -- backward passes

    def counts_backward(self, *, accumulates: bool) -> bool:
        """Whether it may end a step: ``backward`` does, and before any of those ``autograd.grad`` outside modules."""
        if accumulates:
            self._only_grads = False
        return accumulates or (self._only_grads and self._called is None and not self.by_optimizer.count)

    def backward_begins(self) -> None:
        """A backward pass, not one inside another."""
        if self.only in (StepKind.MODULE, StepKind.FUNCTION) or not self._mine():
            return
        now = perf_counter_ns()
        if self._called is not None:
            self._forget_call()
        if self._ended_by_backward:
            self._end_backward(now)
        if self.begun or self.running:
            return
        if self._with_gradients_since:
            self._begin_in_eval()
        else:
            self._without_modules = True
            self._open(self.last_event)

    def backward_ended(self) -> None:
        """It returned; whether it ended a step shows later."""
        if self.only is StepKind.MODULE or not self._mine():
            return
        if not self.backward.where:
            self.backward = Caller("backward", calling_line())
        self.backwards += 1
        self._backward_end = perf_counter_ns(), _get_sequence_nr()
        may_end = self.only is None and not self.by_optimizer.count
        if self.only is StepKind.BACKWARD or may_end:
            self._ended_by_backward = not self.running
            self.watch()

    def _end_backward(self, now: int) -> None:
        """What follows a backward pass: without an optimizer it ended a step, with one it was a part of it."""
        self._ended_by_backward = False
        steps = self.by_backward
        place = steps.count
        self._add(steps, now, 0)
        recorder = self.recorder
        if recorder.is_open:
            first = place < self.skip and not self.only
            recorder.keep(StepKind.BACKWARD, so_far=first)
            recorder.give_up_after(place + 1)
        self.begun, self.last_event = 0, now
        self.backwards = 0
        if self._without_modules and recorder.wants(StepKind.BACKWARD, steps.count):
            recorder.begin(steps.count, 1)

    # -- optimizers

    def optimizer_begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Torch's hook before ``Optimizer.step``."""
        if self.only not in (None, StepKind.OPTIMIZER):
            return
        if get_ident() != self._thread:
            if self.by_optimizer.count:
                return
            self._thread = get_ident()
        now, key = perf_counter_ns(), id(optimizer)
        if key in self.running:  # an error ended that call
            self.running.clear()
        self.running.append(key)
        if len(self.running) > 1 or self.begun:
            return
        runs_model = len(args) > 1 or kwargs.get("closure") is not None
        if self._with_gradients_since and not runs_model:
            self._begin_in_eval()
        elif runs_model:
            self._open(now, optimizer)
        else:
            self._open(self.last_event)

    def _begin_in_eval(self) -> None:
        """The model is trained in evaluation mode, as where its batch norms are frozen."""
        self._trains_in_eval = True
        begin, self.evaluates_since = self._with_gradients_since, 0
        self._open(begin, self._trained_in_eval)

    def optimizer_ended(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Torch's hook after ``Optimizer.step``."""
        if get_ident() != self._thread or not self.running:
            return
        self.running.pop()
        if self.running:
            return
        now, steps = perf_counter_ns(), self.by_optimizer
        number = self.number_of(optimizer)
        if not steps.count and self.by_backward.count and self._undecided is not None:
            self.begun, self.nodes, self._known_at_begin = self._undecided
            self.backwards += self.by_backward.count
        self._add(steps, now, number)
        self._ended_by_backward = False
        if self.cycle is None:
            self.cycle = steps.cycle()
        recorder, place = self.recorder, steps.count
        cycle = self.cycle or 1
        if recorder.is_open and (place % cycle == 0 or self.cycle is None):
            recorder.keep(StepKind.OPTIMIZER, settles=self.cycle is not None)
        self.begun = self.backwards = self._with_gradients_since = 0
        self.last_event = now
        self._forget_call()
        self.watch()
        if self._without_modules:
            self._record()
        elif recorder.settled and self._model is not None and self.hook is None and len(self.optimizers) == 1:
            hasten(self, self._model, optimizer, HOOK)
            self.watch()

    def number_of(self, optimizer: Any) -> int:
        """Its number. Those of one class at one line are one: a script may make a new one for each epoch."""
        known = self._numbers.get(id(optimizer))
        if known is not None:
            return known
        caller = Caller(f"{type(optimizer).__name__}.step", calling_line())
        number = self.optimizers.setdefault(caller, len(self.optimizers))
        if number == len(self.optimizers) - 1:
            self.cycle = None if number else 1
            self.recorder.settled, self.hook = False, None
        self._numbers[id(optimizer)] = number
        return number

    # -- loaders and checkpoints

    def loader_begins(self, data: object) -> int:
        """A loader is asked for a batch of ``data``. Returns when, or 0 where it is not the time between steps."""
        now = perf_counter_ns()
        self._forget_call()
        self.recorder.keep_what_ended()
        if self._ended_by_backward:
            self._end_backward(now)
        if self.begun:
            return 0
        if data is self._training_data:
            self._end_evaluation(now)
        elif self._training_data is not None and not self.evaluates_since:
            self.evaluates_since = now
        self._data = data
        return 0 if self.evaluates_since else now

    def loader_ended(self, begin: int) -> None:
        """It has the batch."""
        now = perf_counter_ns()
        if begin:
            self.loader += now - begin
            self.last_event = now

    def checkpoint_begins(self) -> int:
        """A file is saved. Returns when, or 0 within a step."""
        now = perf_counter_ns()
        if self._ended_by_backward:
            self._end_backward(now)
        return 0 if self.begun else now

    def checkpoint_ended(self, begin: int) -> None:
        """It is written."""
        if begin:
            now = perf_counter_ns()
            self.checkpoint += now - begin
            if self.evaluates_since:
                self.evaluates_since += now - begin
            self.last_event = now

    # -- a function that the user named

    def function_begins(self) -> None:
        """The function that is the step is called."""
        if self._mine() and not self.begun:
            self._open(perf_counter_ns(), self)
            if not self.function.where:
                self.function = Caller(self.named, calling_line())
            place = self.by_function.count
            if self.recorder.wants(StepKind.FUNCTION, place):
                self.recorder.begin(place, 1)

    def function_ended(self) -> None:
        """It returned, or raised."""
        if self._mine() and self.begun:
            now = perf_counter_ns()
            if self.recorder.is_open:
                self.recorder.keep(StepKind.FUNCTION)
            self._add(self.by_function, now, 0)
            self.begun, self.last_event = 0, now

    # -- what they share

    def finish(self) -> None:
        """The script has ended."""
        self._look_away()
        self._forget_call()
        self._look_away()
        self.recorder.keep_what_ended()
        if self._ended_by_backward:  # what the script did after it is no part of it
            now, made = self._backward_end
            self.nodes += _get_sequence_nr() - made
            self._end_backward(now)
        self.recorder.drop()

    def leave(self) -> None:
        """Notice nothing any more."""
        self._look_away()
        self.recorder.drop()

    def starts_anew(self) -> None:
        """In a child that was forked: what happened before is the parent's."""
        self.leave()
        StepFinder.__init__(self, skip=self.skip, only=self.only, named=self.named)
        self.watch()

    @property
    def has_trained(self) -> bool:
        """Whether an optimizer stepped, or a backward pass ended a step."""
        return bool(self.by_optimizer.count or self.by_backward.count)

    def _mine(self) -> bool:
        if self._thread is None:
            self._thread = get_ident()
        return self._thread == get_ident()

    def _open(self, begin: int, by: object = None) -> None:
        """A step begins, by a call of a module or optimizer, or where the one before ended."""
        self._end_evaluation(begin)
        self.begun, self.nodes, self.backwards = begin, _get_sequence_nr(), 0
        self._known_at_begin = self._known(begin)
        self.begun_by = by if by is None or isinstance(by, type) else type(by)
        if self._undecided is None:
            self._undecided = begin, self.nodes, self._known_at_begin

    def _record(self, module: nn.Module | None = None, args: Any = ()) -> None:
        if self.cycle is None and self.recorder.kept:
            return
        kind = StepKind.OPTIMIZER if self.by_optimizer.count else StepKind.BACKWARD
        cycle = (self.cycle or 1) if kind is StepKind.OPTIMIZER else 1
        place = (self.by_optimizer if kind is StepKind.OPTIMIZER else self.by_backward).count
        if place % cycle == 0 and self.recorder.wants(kind, place // cycle, cycle):
            self.recorder.begin(place // cycle, cycle, module, args)

    def _add(self, steps: Steps, now: int, caller: int) -> None:
        begin = max(self.begun or self.last_event, steps.last_end)
        steps.add(begin, now, caller, self.backwards, _get_sequence_nr() - self.nodes, self._known_at_begin)

    def _known(self, now: int) -> tuple[int, int, int]:
        running = now - self.evaluates_since if self.evaluates_since and now > self.evaluates_since else 0
        return self.loader, self.evaluation + running, self.checkpoint

    def _end_evaluation(self, now: int) -> None:
        if self.evaluates_since:
            self.evaluation += max(0, now - self.evaluates_since)
            self.evaluates_since, self.last_event = 0, now
        self._with_gradients_since = 0

    def _weights_of(self, module: nn.Module) -> tuple[ref[nn.Module], Weights, int]:
        found = self._weights.get(id(module))
        if found is None or found[0]() is not module:
            parameters = list(module.parameters())
            lazy = any(isinstance(each, (UninitializedParameter, UninitializedBuffer)) for each in parameters)
            elements = 1 if lazy else sum(each.numel() for each in parameters)
            trained = any(each.requires_grad for each in parameters)
            found = ref(module), Weights(elements, trained), self._modules_seen
            self._modules_seen += 1
            if not lazy:
                self._weights[id(module)] = found
        return found

    def _number_of(self, module: nn.Module) -> int:
        _, weights, number = self._weights_of(module)
        if number not in self.calls:
            self.calls[number] = Steps()
            self.modules[number] = Caller(type(module).__name__, calling_line()), weights
            if self._heaviest < 0 or weights.elements > self.modules[self._heaviest][1].elements:
                self._heaviest = number
                self.recorder.kept.pop(StepKind.MODULE, None)
        return number


def calling_line() -> str:
    """``train.py:112``: the innermost line of the user's own code that is running."""
    frame = sys._getframe(1)
    found = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if not _is_library(file):
            found = f"{file}:{frame.f_lineno}"
            break
        frame = frame.f_back  # type: ignore[assignment]
    folder, _, name = found.rpartition("/")
    return name if folder else found


def _is_library(file: str) -> bool:
    return file.startswith(("<", *_LIBRARIES)) or "/site-packages/" in file


_LIBRARIES: Final = (str(Path(os.__file__).parent) + "/", str(Path(__file__).parents[2]) + "/")
