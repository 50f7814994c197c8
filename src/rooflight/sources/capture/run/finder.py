"""Tells where the steps of a script begin and end, from calls of its modules, backward passes, optimizers and loaders.

A step ends when the outermost ``Optimizer.step`` returns; it begins at the first call, with gradients on, of a module
in training mode after the one before, or where the optimizer's call begins if it runs the model itself. Without an
optimizer a backward pass ends it, and without that a step is a call of the outermost module with the most parameters.
Modules without parameters (losses, transforms, metrics) and calls from within a backward pass begin none.
Blocks of ``rooflight.phase`` that hold a whole step each are the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import get_ident
from time import perf_counter_ns
from typing import Any, Final

from torch import is_grad_enabled, nn
from torch._C import _current_graph_task_id, _get_tracing_state
from torch._C._autograd import _get_sequence_nr
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import _global_forward_pre_hooks

from rooflight.records.account import Place
from rooflight.records.timeline import StepKind
from rooflight.sources.capture.run.callers import Caller, Modules, calling_line, calling_place, elements_of
from rooflight.sources.capture.run.pending import Block, Call, Undecided
from rooflight.sources.capture.run.quick import hasten
from rooflight.sources.capture.run.recording import Recorder
from rooflight.sources.capture.run.steps import Steps
from rooflight.sources.capture.run.waits import Waits
from rooflight.sources.capture.run.written import Written
from rooflight.sources.capture.time.window import Window

HOOK: Final = "rooflight"
_NAMED: Final = (StepKind.MODULE, StepKind.FUNCTION)  # of these kinds only what the user named is a step
_SIZES_AFTER: Final = 16  # steps: the size that takes longest so far is taken to be that of the run
_CALLS_OF_A_STEP: Final = 8
"""A recording that began with a call is given up after so many without a backward pass: they are no part of a step."""


class StepFinder:
    """One for a process; it follows the thread that steps. Times are of ``perf_counter_ns``."""

    def __init__(self, *, skip: int, only: StepKind | None = None, named: str = "") -> None:
        self.skip, self.only, self.named = skip, only, named
        self.recorder, self.waits, self.modules = Recorder(skip), Waits(), Modules()
        self.written = Written()
        self.window = Window(self.recorder)
        self.by_optimizer = self._steps_of(StepKind.OPTIMIZER)
        self.by_backward, self.by_function = self._steps_of(StepKind.BACKWARD), self._steps_of(StepKind.FUNCTION)
        self.optimizers: dict[Caller, int] = {}
        self.phases: dict[Caller, Steps] = {}
        self.backward, self.function = Caller("backward", Place()), Caller(named, Place())
        self.begun_by: type | None = None
        self.broken = ""
        self.losses = 0  # calls of modules without parameters
        self.hook: Callable[[nn.Module, Any], None] | None = None
        self.begun = self.nodes = self.backwards = self.elements = 0  # of the open step
        self._known_at_begin = 0, 0, 0
        self.running: list[int] = []  # ids of optimizers
        self.in_known_step = False  # a step whose backward passes are only counted
        self.thread: int | None = None
        self._model: nn.Module | None = None
        self._line = ""  # where a model's call began the open step
        self._numbers: dict[int, int] = {}  # id of an optimizer -> its number
        self._call: Call | None = None
        self._recorded_call = 0
        self._block: Block | None = None
        self._phase: Caller | None = None  # that may be the step: of those that hold some, it took longest
        self._undecided = Undecided()
        self._trains_in_eval = self._without_modules = self._knows_sizes = False
        self._models: set[int] = set()  # ids of modules that were trained
        self._beside = self._beside_each = False  # another was called before the step, before each of them

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
        if self.only in _NAMED:
            if self.only is StepKind.MODULE and type(module).__name__ == self.named:
                self._calls(module, args, now)
            return
        weights, undecided = self.modules.weights_of(module), self._undecided
        if not weights.elements:
            self.losses += 1
            return
        trainable = is_grad_enabled() and weights.trained
        if undecided.ended_by_backward:
            self._end_backward(now)
        if trainable and (module.training or self._trains_in_eval):
            self._models.add(id(module))
            self._trains(module, args, now)
        elif not self.begun and self._begins_beside(module):
            self._trains(module, args, now)
        elif not self.begun:
            if trainable and not undecided.with_gradients_since:
                undecided.with_gradients_since, undecided.by = now, type(module)
            self.waits.evaluates(now, counts=self.has_trained)
            if self.has_trained and not trainable:
                self.recorder.begin_evaluation(module, args)
            if weights.trained and not (trainable or module.training):
                self._trained.interrupt()
            self._calls(module, args, now)

    def _begins_beside(self, module: nn.Module) -> bool:
        """Whether a module that is not trained was called before each step: a teacher, or an encoder of images. The
        step begins with it, for it is work of every iteration.
        """
        is_beside = id(module) not in self._models
        self._beside |= is_beside
        return is_beside and self._beside_each and self.only is None

    def _trains(self, module: nn.Module, args: Any, now: int) -> None:
        begins = not self.begun
        if begins:
            self.waits.trains()
            self._open(now, module)
            self.elements = elements_of(args)
            self._look_at_sizes()
            self.written.follow(module)
            if not self.recorder.settled or len(self.optimizers) > 1:
                self._line = calling_line()
        if (begins or self.running) and not self.recorder.settled and self.has_trained:
            self._record(module, args)
        if self.by_optimizer.count:
            self._model = module if begins and not self.running else None
            self._look_away()
        else:
            self._calls(module, args, now)

    def _look_at_sizes(self) -> None:
        """Of steps of unequal inputs one is recorded anew, once it is known which size takes longest in sum."""
        steps, kept = self.by_optimizer, self.recorder.kept.get(StepKind.OPTIMIZER)
        if self._knows_sizes or steps.count < _SIZES_AFTER or not self.recorder.settled or not kept or kept.cycle > 1:
            return
        found = steps.of_the_longest_size(kept.place, self.elements)
        self._knows_sizes = found is not False
        if found is None:
            kept.whole = self.recorder.settled = False

    def _calls(self, module: nn.Module, args: Any, now: int) -> None:
        """A call that may itself be the step; the hook is off until it returns, so that its modules cost nothing."""
        self._look_away()
        recorder, modules, heaviest, recorded = self.recorder, self.modules, self.modules.heaviest, False
        number = modules.number_of(module)
        if modules.heaviest != heaviest:
            recorder.kept.pop(StepKind.MODULE, None)
        if number == modules.heaviest and not self.has_trained:
            place = modules.calls[number].count
            if not self.backwards and place >= self._recorded_call + _CALLS_OF_A_STEP:
                recorder.give_up()
            if recorder.wants(StepKind.MODULE, place):
                self._recorded_call, recorded = place, True
                recorder.begin(StepKind.MODULE, place, 1, module, args)
        self._call = Call(module, now, recorded, elements_of(args))
        module._forward_hooks[HOOK] = self.returned  # type: ignore[index]

    def returned(self, module: nn.Module, _args: Any, _result: Any) -> None:
        """Torch's hook after it."""
        now, call = perf_counter_ns(), self._call
        self._forget_call()
        if call is None:
            return
        number = self.modules.number_of(module)
        if not self.has_trained:
            self.recorder.ended()
        if call.recorded and number == self.modules.heaviest and not self.backwards:
            may_train = bool(self.begun) and is_grad_enabled() and self.only is None
            self.recorder.keep(StepKind.MODULE, so_far=may_train)
        self.modules.calls[number].add(call.begin, now, number, 0, 0, self.waits.known(now), "", call.elements)

    def _forget_call(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.module._forward_hooks.pop(HOOK, None)  # type: ignore[call-overload]
            self.watch()

    # -- backward passes

    def counts_backward(self, *, accumulates: bool) -> bool:
        """Whether it may end a step: ``backward`` does, and before any of those ``autograd.grad`` outside modules."""
        if accumulates:
            self._undecided.only_grads = False
        return accumulates or (self._undecided.only_grads and self._call is None and not self.by_optimizer.count)

    def backward_begins(self) -> None:
        """A backward pass, not one inside another."""
        if self.only in _NAMED or not self._mine():
            return
        now = perf_counter_ns()
        self._forget_call()
        if self._undecided.ended_by_backward:
            self._end_backward(now)
        if self.begun or self.running:
            return
        if self._undecided.with_gradients_since:
            self._begin_in_eval()
        else:
            self._without_modules = True
            self._open(self.waits.last_event)

    def backward_ended(self) -> None:
        """It returned; whether it ended a step shows later."""
        if self.only is StepKind.MODULE or not self._mine():
            return
        if not self.backward.where.line:
            last = ", the last before the weights change" if self.written.accumulates else ""
            self.backward = Caller(f"backward{last}", calling_place())
        self.backwards += 1
        self._undecided.backward_end = perf_counter_ns(), _get_sequence_nr()
        may_end = self.only is None and not self.by_optimizer.count
        if self.only is StepKind.BACKWARD or may_end:
            self._undecided.ended_by_backward = not self.running
            if self.only is None:
                self.written.backward_ended()
            self.watch()

    def _end_backward(self, now: int) -> None:
        """What follows a backward pass: without an optimizer it ended a step, with one it was a part of it. So it is
        where a script that writes its weights itself has not done so yet.
        """
        written = self.written.since_backward()
        if self.written.accumulates and not written:
            return
        self._undecided.ended_by_backward = False
        if self.written.began_to_accumulate:
            self._forget_backward()
            self.recorder.drop()
            self.begun, self.waits.last_event = 0, now
            return
        steps, recorder = self.by_backward, self.recorder
        self._add(steps, now, written)
        place, part = steps.place
        if not part:
            so_far = place <= self.skip and not self.only and not written
            recorder.keep(
                StepKind.BACKWARD, place - 1, so_far=so_far, known=steps.length is not None, whole=steps.whole
            )
            recorder.give_up(steps.count)
        self.begun = self.backwards = 0
        self.waits.last_event = now
        if self._without_modules:
            self._record()

    # -- optimizers

    def optimizer_begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Torch's hook before ``Optimizer.step``."""
        if self.only not in (None, StepKind.OPTIMIZER):
            return
        if get_ident() != self.thread:
            if self.by_optimizer.count:
                return
            self.thread = get_ident()
        now, key = perf_counter_ns(), id(optimizer)
        if key in self.running:  # an error ended that call
            self.running.clear()
        self.running.append(key)
        if len(self.running) > 1 or self.begun:
            return
        runs_model = len(args) > 1 or kwargs.get("closure") is not None
        if self._undecided.with_gradients_since and not runs_model:
            self._begin_in_eval()
        elif runs_model:
            self._open(now, optimizer)
        else:
            self._open(self.waits.last_event)

    def _begin_in_eval(self) -> None:
        """The model is trained in evaluation mode, as where its batch norms are frozen."""
        self._trains_in_eval, self.waits.evaluates_since = True, 0
        self._open(self._undecided.with_gradients_since, self._undecided.by)

    def optimizer_ended(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Torch's hook after ``Optimizer.step``."""
        if get_ident() != self.thread or not self.running:
            return
        self.running.pop()
        if self.running:
            return
        now, steps, undecided = perf_counter_ns(), self.by_optimizer, self._undecided
        number = self.number_of(optimizer)
        if not steps.count and self.by_backward.count and undecided.first is not None:
            self.begun, self.nodes, self._known_at_begin = undecided.first
            self.backwards += self.by_backward.count
            self.recorder.drop_later()
        self._add(steps, now, number)
        self._beside_each = self._beside and (self._beside_each or steps.count == 1)
        self._beside = undecided.ended_by_backward = False
        recorder = self.recorder
        place, part = steps.place
        if not part:
            recorder.keep(StepKind.OPTIMIZER, place - 1, known=steps.length is not None, whole=steps.whole)
        self.begun = self.backwards = undecided.with_gradients_since = 0
        self.waits.last_event = now
        self._forget_call()
        self.watch()
        found = recorder.records or recorder.broken or StepKind.OPTIMIZER in recorder.kept
        if self._without_modules or (steps.count > 1 and not found):  # as where an image is moved, not a model
            self._record()
        elif (
            recorder.settled and self._model is not None and self.hook is None and len(self.optimizers) == 1
            and (recorder.left is None or recorder.left.ends)
            and (self._knows_sizes or not steps.unequal)
        ):  # fmt: skip
            hasten(self, self._model, optimizer, HOOK)
            self.watch()

    def number_of(self, optimizer: Any) -> int:
        """Its number. Those of one class at one line are one: a script may make a new one for each epoch."""
        known = self._numbers.get(id(optimizer))
        if known is not None:
            return known
        caller = Caller(f"{type(optimizer).__name__}.step", calling_place())
        number = self.optimizers.setdefault(caller, len(self.optimizers))
        if number == len(self.optimizers) - 1:
            self.by_optimizer.length = None if number else 1
            self.recorder.settled, self.hook = False, None
        self._numbers[id(optimizer)] = number
        return number

    # -- loaders and checkpoints

    def loader_begins(self, data: object, workers: int = 0) -> int:
        """A loader with so many workers is asked for a batch of ``data``. Returns when, or 0 where that is not between
        steps.
        """
        now = perf_counter_ns()
        self._forget_call()
        self.recorder.keep_what_ended()
        if self._undecided.ended_by_backward:
            self._end_backward(now)
        return 0 if self.begun else self.waits.fetch(data, now, workers)

    def checkpoint_begins(self) -> int:
        """A file is saved. Returns when, or 0 within a step."""
        now = perf_counter_ns()
        if self._undecided.ended_by_backward:
            self._end_backward(now)
        return 0 if self.begun else now

    # -- a function or phases that the user named

    def function_begins(self) -> None:
        """The function that is the step is called."""
        if self._mine() and not self.begun:
            self._open(perf_counter_ns(), self)
            if not self.function.where.line:
                self.function = Caller(self.named, calling_place())
            place = self.by_function.count
            if self.recorder.wants(StepKind.FUNCTION, place):
                self.recorder.begin(StepKind.FUNCTION, place)

    def function_ended(self) -> None:
        """It returned, or raised."""
        if self._mine() and self.begun:
            now = perf_counter_ns()
            self._add(self.by_function, now, 0)
            self.recorder.keep(StepKind.FUNCTION)  # last: what runs elsewhere ends with it
            self.begun, self.waits.last_event = 0, now

    def phase_changes(self, name: str) -> None:
        """The script enters a phase, or leaves the outermost one: no name."""
        now = perf_counter_ns()
        if self.only is not None or self.thread not in (None, get_ident()) or bool(name) == (self._block is not None):
            return
        if self._undecided.ended_by_backward:
            self._end_backward(now)
        block, self._block = self._block, None
        if block is not None:
            self._leave_phase(block, now)
            return
        caller = next((each for each in self.phases if each.name == name), None) or Caller(name, calling_place())
        recorder, before, recorded = self.recorder, self.phases.get(caller), self.recorder.count
        if before is not None and not self.begun and before.total == max(each.total for each in self.phases.values()):
            self.waits.end_evaluation(now)
            if caller is not self._phase:
                self._phase = caller
                recorder.kept.pop(StepKind.PHASE, None)
            if recorder.wants(StepKind.PHASE, before.count):
                recorder.begin(StepKind.PHASE, before.count)
                now = perf_counter_ns()
        known = self.waits.known(now)
        self._block = Block(caller, now, _get_sequence_nr(), known, self._ended, recorded, bool(self.begun))

    def _leave_phase(self, block: Block, now: int) -> None:
        """A block that holds whole steps may be the step; one that holds none, where others are known, is not."""
        recorder, ended = self.recorder, self._ended
        if block.inside or self.begun or (0, 0) != ended == block.ended:
            recorder.drop(StepKind.PHASE)
            return
        recorder.keep(StepKind.PHASE)
        steps = self.phases.setdefault(block.caller, Steps())
        if recorder.count != block.recordings:
            recorder.taken[StepKind.PHASE].add(steps.count)
        calls, backwards = (after - before for after, before in zip(ended, block.ended, strict=True))
        steps.add(block.begin, now, calls, backwards, _get_sequence_nr() - block.nodes, block.known)

    @property
    def _ended(self) -> tuple[int, int]:
        """Calls that ended and may be steps, and the backward passes in them."""
        trained = self._trained
        steps = trained if trained.count else self.modules.calls.get(self.modules.heaviest, trained)
        return steps.count, steps.backwards

    # -- what they share

    def finish(self) -> None:
        """The script has ended."""
        self._forget_call()
        self._look_away()
        self.recorder.keep_what_ended()
        if self._undecided.ended_by_backward:  # what the script did after it is no part of it
            now, made = self._undecided.backward_end
            self.nodes += _get_sequence_nr() - made
            self._end_backward(now)
        self.recorder.drop()
        self.window.close()

    def leave(self) -> None:
        """Stop watching."""
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
        return bool(self._trained.count or self.written.accumulates)

    @property
    def _trained(self) -> Steps:
        return self.by_optimizer if self.by_optimizer.count else self.by_backward

    def _mine(self) -> bool:
        if self.thread is None:
            self.thread = get_ident()
        return self.thread == get_ident()

    def _open(self, begin: int, by: object = None) -> None:
        """A step begins, by a call of a module or optimizer, or where the one before ended."""
        self.recorder.keep_what_ended()
        self.waits.end_evaluation(begin)
        self._undecided.with_gradients_since = 0
        if by is not None and self._without_modules and not self.by_optimizer.count:
            self._forget_backward()
        self.begun, self.nodes, self.backwards, self._line = begin, _get_sequence_nr(), 0, ""
        self.elements = 0
        self._known_at_begin = self.waits.known(begin)
        self.begun_by = by if by is None or isinstance(by, type) else type(by)
        if self._undecided.first is None:
            self._undecided.first = begin, self.nodes, self._known_at_begin

    def _forget_backward(self) -> None:
        """Backward passes before a model is trained, as of a tensor that starts the device, ended no steps."""
        self._without_modules, self._undecided.first = False, None
        self.by_backward, self.backward = self._steps_of(StepKind.BACKWARD), Caller("backward", Place())
        self.recorder.drop(StepKind.BACKWARD)
        self.recorder.kept.pop(StepKind.BACKWARD, None)
        self.recorder.taken[StepKind.BACKWARD].clear()

    def _record(self, module: nn.Module | None = None, args: Any = ()) -> None:
        kind, steps, recorder = StepKind.OPTIMIZER, self._trained, self.recorder
        if steps is self.by_backward:
            kind = StepKind.BACKWARD
        elif steps.length is None and recorder.kept:
            return
        (place, part), cycle = steps.place, steps.length or 1
        if not part and recorder.wants(kind, place, cycle, whole=steps.whole):
            recorder.begin(kind, place, cycle, module, args)

    def _steps_of(self, kind: StepKind) -> Steps:
        steps = Steps()
        steps.ended = partial(self.window.opens, kind, steps)
        return steps

    def _add(self, steps: Steps, now: int, caller: int) -> None:
        begin = max(self.begun or self.waits.last_event, steps.last_end)
        made = _get_sequence_nr() - self.nodes
        steps.add(begin, now, caller, self.backwards, made, self._known_at_begin, self._line, self.elements)
        self.recorder.ended()
        if not (self.recorder.settled or steps.follow()):
            self.recorder.drop(StepKind.OPTIMIZER if steps is self.by_optimizer else StepKind.BACKWARD)
