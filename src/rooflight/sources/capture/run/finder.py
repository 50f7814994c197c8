"""Tells where the steps of a script begin and end: folds what it did (``events``) into rows of numbers (``Steps``).

A step ends when the outermost ``Optimizer.step`` returns; it begins at the first call, with gradients on, of a module
in training mode after the one before, or where the optimizer's call begins if it runs the model itself. Without an
optimizer a backward pass ends it, and without that a step is a call of the outermost module with the most parameters.
Modules without parameters (losses, transforms, metrics) begin none.
Blocks of ``rooflight.phase`` that hold a whole step each are the steps.

Nothing here looks at torch, a clock or a thread: of the same events the same steps are found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, cast

from rooflight.records.account import NO_PLACE
from rooflight.records.timeline import StepKind
from rooflight.sources.capture.run import events
from rooflight.sources.capture.run.events import Called, Caller, Ear, Event
from rooflight.sources.capture.run.pending import Block, Call, Modules, Undecided
from rooflight.sources.capture.run.recording import Recorder
from rooflight.sources.capture.run.steps import Steps
from rooflight.sources.capture.run.waits import Waits
from rooflight.sources.capture.time.window import Window

_NAMED: Final = (StepKind.MODULE, StepKind.FUNCTION)  # of these kinds only what the user named is a step
_SIZES_AFTER: Final = 16  # steps: the size that takes longest so far is taken to be that of the run
_CALLS_OF_A_STEP: Final = 8
"""A recording that began with a call is given up after so many without a backward pass: they are no part of a step."""


class StepFinder:
    """One for a process; ``fold`` takes what the thread that steps does. ``thread`` is that thread."""

    def __init__(
        self, *, skip: int, only: StepKind | None = None, named: str = "", began: int = 0,
        recorder: Recorder | None = None, ear: Ear | None = None,
    ) -> None:  # fmt: skip
        self.skip, self.only, self.named, self.ear = skip, only, named, ear or Ear()
        self.recorder, self.waits, self.modules = recorder or Recorder(skip), Waits(began), Modules()
        self.window = Window(self.recorder)
        self.by_optimizer = self._steps_of(StepKind.OPTIMIZER)
        self.by_backward, self.by_function = self._steps_of(StepKind.BACKWARD), self._steps_of(StepKind.FUNCTION)
        self.optimizers: dict[Caller, int] = {}
        self.phases: dict[Caller, Steps] = {}
        self.backward, self.function = Caller("backward", NO_PLACE), Caller(named, NO_PLACE)
        self.begins = "the end of the one before"  # what the newest step began with
        self.broken, self.losses = "", 0  # why the watching ended; calls of modules without parameters
        self.begun = self.nodes = self.backwards = self.elements = 0  # of the open step
        self.thread: int | None = None
        self.running: list[int] = []  # ids of optimizers
        self.numbers: dict[int, int] = {}  # id of an optimizer -> its number
        self.in_known_step = False  # a step whose backward passes are only counted
        self._at = self._made = 0  # of the newest event
        self._known_at_begin = 0, 0, 0
        self._model, self._hastened = None, False
        self._line = ""  # where a model's call began the open step
        self._call, self._recorded_call = cast("Call | None", None), 0
        self._block: Block | None = None
        self._phase: Caller | None = None  # that may be the step: of those that hold some, it took longest
        self._undecided = Undecided()
        self._trains_in_eval = self._without_modules = self._knows_sizes = False
        self._models: set[int] = set()  # modules that were trained
        self._beside = self._beside_each = False  # another was called before the step, before each of them
        self._folds: dict[type, Callable[[Any], int | None]] = {
            events.Called: self._called, events.Returned: self._returned,
            events.BackwardBegins: self._backward_begins, events.BackwardEnds: self._backward_ended,
            events.OptimizerBegins: self._optimizer_begins, events.OptimizerEnds: self._optimizer_ended,
            events.Fetches: self._fetches, events.Saves: self._saves, events.PhaseChanges: self._phase_changes,
            events.Fetched: lambda event: self.waits.fetched(event.begun, event.at),
            events.Saved: lambda event: self.waits.saved(event.begun, event.at),
            events.FunctionBegins: self._function_begins, events.FunctionEnds: self._function_ended,
        }  # fmt: skip

    def fold(self, event: Event) -> int:
        """Take note of an event. Of one that fetches or saves: when that began, 0 where it is a part of something."""
        self._at, self._made = event.at, event.nodes
        return self._folds[type(event)](event) or 0

    @property
    def wants_line(self) -> bool:
        """Whether the line that calls a model is to be told: one that may begin a step."""
        begins = self._undecided.ended_by_backward or not self.begun
        return begins and (not self.recorder.settled or len(self.optimizers) > 1)

    # -- modules

    def _called(self, event: Called) -> None:
        self.recorder.keep_what_ended()
        if self.only in _NAMED:
            if self.only is StepKind.MODULE and event.kind == self.named:
                self._calls(event)
            return
        undecided = self._undecided
        if not event.weights.elements:
            self.losses += 1
            return
        trainable = event.grads and event.weights.trained
        self._end_what_waits()
        if trainable and (event.training or self._trains_in_eval):
            self._models.add(event.number)
            self._trains(event)
        elif not self.begun and self._begins_beside(event):
            self._trains(event)
        elif not self.begun:
            if trainable and not undecided.with_gradients_since:
                undecided.with_gradients_since, undecided.by = event.at, event.kind
            self.waits.evaluates(event.at, counts=self.has_trained)
            if self.has_trained and not trainable:
                self.recorder.begin_evaluation(event.module, event.args)
            if event.weights.trained and not (trainable or event.training):
                self._trained.interrupt()
            self._calls(event)

    def _begins_beside(self, event: Called) -> bool:
        """Whether a module that is not trained was called before each step: a teacher, or an encoder of images. The
        step begins with it, for it is work of every iteration.
        """
        is_beside = event.number not in self._models
        self._beside |= is_beside
        return is_beside and self._beside_each and self.only is None

    def _trains(self, event: Called) -> None:
        begins = not self.begun
        if begins:
            self.waits.trains()
            self._open(event.at, f"the first call of {event.kind} with gradients on")
            self.elements = event.size
            self._look_at_sizes()
            self.ear.writes.follow(event.module)
            self._line = event.line
        if (begins or self.running) and not self.recorder.settled and self.has_trained:
            self._record(event.module, event.args)
        if self.by_optimizer.count:
            self._model = event.module if begins and not self.running else None
            self.ear.look_away()
        else:
            self._calls(event)

    def _look_at_sizes(self) -> None:
        """Of steps of unequal inputs one is recorded anew, once it is known which size takes longest in sum."""
        steps, kept = self.by_optimizer, self.recorder.kept.get(StepKind.OPTIMIZER)
        if self._knows_sizes or steps.count < _SIZES_AFTER or not self.recorder.settled or not kept or kept.cycle > 1:
            return
        found = steps.of_the_longest_size(kept.place, self.elements)
        self._knows_sizes = found is not False
        if found is None:
            kept.whole = self.recorder.settled = False

    def _calls(self, event: Called) -> None:
        """A call that may itself be the step; nothing is heard until it returns, so that its modules cost nothing."""
        self.ear.look_away()
        recorder, modules, recorded = self.recorder, self.modules, False
        if modules.note(event):
            recorder.kept.pop(StepKind.MODULE, None)
        if event.number == modules.heaviest and not self.has_trained:
            place = modules.calls[event.number].count
            if not self.backwards and place >= self._recorded_call + _CALLS_OF_A_STEP:
                recorder.give_up()
            if recorder.wants(StepKind.MODULE, place):
                self._recorded_call, recorded = place, True
                recorder.begin(StepKind.MODULE, place, 1, event.module, event.args)
        self._call = Call(event, recorded)
        self.ear.await_return(event.module)

    def _returned(self, event: events.Returned) -> None:
        call = self._call
        self._forget_call()
        if call is None:
            return
        number, begin = call.event.number, call.event.at
        if not self.has_trained:
            self.recorder.ended()
        if call.recorded and number == self.modules.heaviest and not self.backwards:
            may_train = bool(self.begun) and event.grads and self.only is None
            self.recorder.keep(StepKind.MODULE, so_far=may_train)
        known = self.waits.known(event.at)
        self.modules.calls[number].add(begin, event.at, number, 0, 0, known, "", call.event.size)

    def _forget_call(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            self.ear.forget(call.event.module)

    # -- backward passes

    def counts_backward(self, *, accumulates: bool) -> bool:
        """Whether it may end a step: ``backward`` does, and before any of those ``autograd.grad`` outside modules. One
        within a known step is only counted.
        """
        if accumulates:
            self._undecided.only_grads = False
        counts = accumulates or (self._undecided.only_grads and self._call is None and not self.by_optimizer.count)
        if counts and self.in_known_step:
            self.backwards += 1
        return counts and not self.in_known_step

    def _backward_begins(self, _: events.BackwardBegins) -> None:
        if self.only in _NAMED:
            return
        self._forget_call()
        self._end_what_waits()
        if self.begun or self.running:
            return
        if self._undecided.with_gradients_since:
            self._begin_in_eval()
        else:
            self._without_modules = True
            self._open(self.waits.last_event)

    def _backward_ended(self, event: events.BackwardEnds) -> None:
        if self.only is StepKind.MODULE:
            return
        if not self.backward.where.line:
            last = ", the last before the weights change" if self.ear.writes.accumulates else ""
            self.backward = Caller(f"backward{last}", event.where)
        self.backwards += 1
        self._undecided.backward_end = event.at, event.nodes
        may_end = self.only is None and not self.by_optimizer.count
        if self.only is StepKind.BACKWARD or may_end:
            self._undecided.ended_by_backward = not self.running
            if self.only is None:
                self.ear.writes.backward_ended()
            self.ear.watch()

    def _end_what_waits(self) -> None:
        if self._undecided.ended_by_backward:
            self._end_backward()

    def _end_backward(self) -> None:
        """What follows a backward pass: without an optimizer it ended a step, with one it was a part of it. So it is
        where a script that writes its weights itself has not done so yet.
        """
        if not (written := self.ear.writes.since_backward()) and self.ear.writes.accumulates:
            return
        now, self._undecided.ended_by_backward = self._at, False
        if self.ear.writes.began_to_accumulate:
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

    def _optimizer_begins(self, event: events.OptimizerBegins) -> None:
        if self.only not in (None, StepKind.OPTIMIZER):
            return
        if event.who in self.running:  # an error ended that call
            self.running.clear()
        self.running.append(event.who)
        if len(self.running) > 1 or self.begun:
            return
        if self._undecided.with_gradients_since and not event.runs_model:
            self._begin_in_eval()
        elif event.runs_model:
            self._open(event.at, f"the call of {event.kind}.step, which runs the model")
        else:
            self._open(self.waits.last_event)

    def _begin_in_eval(self) -> None:
        """The model is trained in evaluation mode, as where its batch norms are frozen."""
        self._trains_in_eval, self.waits.evaluates_since = True, 0
        undecided = self._undecided
        self._open(undecided.with_gradients_since, f"the first call of {undecided.by} with gradients on")

    def _optimizer_ended(self, event: events.OptimizerEnds) -> None:
        if not self.running:
            return
        self.running.pop()
        if self.running:
            return
        now, steps, undecided = event.at, self.by_optimizer, self._undecided
        number = self._number_of(event)
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
        self.ear.watch()
        found = recorder.records or recorder.broken or StepKind.OPTIMIZER in recorder.kept
        if self._without_modules or (steps.count > 1 and not found):  # as where an image is moved, not a model
            self._record()
        elif (
            recorder.settled and self._model is not None and not self._hastened and len(self.optimizers) == 1
            and (recorder.left is None or recorder.left.ends)
            and (self._knows_sizes or not steps.unequal)
        ):  # fmt: skip
            self._hastened = True
            self.ear.hasten(self._model, event.optimizer)
            self.ear.watch()

    def _number_of(self, event: events.OptimizerEnds) -> int:
        """Its number. Those of one class at one line are one: a script may make a new one for each epoch."""
        known = self.numbers.get(event.who)
        if known is not None:
            return known
        number = self.optimizers.setdefault(Caller(f"{event.kind}.step", event.where), len(self.optimizers))
        if number == len(self.optimizers) - 1:
            self.by_optimizer.length = None if number else 1
            self.recorder.settled = self._hastened = False
            self.ear.slow_down()
        self.numbers[event.who] = number
        return number

    def known_step_begins(self, at: int, nodes: int, size: int) -> None:
        """A step of the model and the optimizer that ``Ear.hasten`` was told of."""
        self.begun, self.nodes, self.backwards, self.elements, self.in_known_step = at, nodes, 0, size, True

    def known_step_ended(self, at: int, nodes: int, number: int) -> None:
        """It ended, by the optimizer of this number."""
        waits, made = self.waits, nodes - self.nodes
        known = waits.loader, waits.evaluation, waits.checkpoint
        self.by_optimizer.add(self.begun, at, number, self.backwards, made, known, "", self.elements)
        self.begun, waits.last_event, self.in_known_step = 0, at, False

    # -- loaders and checkpoints

    def _fetches(self, event: events.Fetches) -> int:
        self._forget_call()
        self.recorder.keep_what_ended()
        self._end_what_waits()
        return 0 if self.begun else self.waits.fetch(event.data, event.at, event.workers)

    def _saves(self, event: events.Saves) -> int:
        self._end_what_waits()
        return 0 if self.begun else event.at

    # -- a function or phases that the user named

    def _function_begins(self, event: events.FunctionBegins) -> None:
        if not self.begun:
            self._open(event.at)
            if not self.function.where.line:
                self.function = Caller(self.named, event.where)
            place = self.by_function.count
            if self.recorder.wants(StepKind.FUNCTION, place):
                self.recorder.begin(StepKind.FUNCTION, place)

    def _function_ended(self, event: events.FunctionEnds) -> None:
        if self.begun:
            self._add(self.by_function, event.at, 0)
            self.recorder.keep(StepKind.FUNCTION)  # last: what runs elsewhere ends with it
            self.begun, self.waits.last_event = 0, event.at

    def _phase_changes(self, event: events.PhaseChanges) -> None:
        if self.only is not None or bool(event.name) == (self._block is not None):
            return
        self._end_what_waits()
        block, self._block = self._block, None
        if block is not None:
            self._leave_phase(block, event)
            return
        known = next((each for each in self.phases if each.name == event.name), None)
        caller, now, made = known or Caller(event.name, event.where), event.at, event.nodes
        recorder, before, recorded = self.recorder, self.phases.get(caller), self.recorder.count
        if before is not None and not self.begun and before.total == max(each.total for each in self.phases.values()):
            self.waits.end_evaluation(now)
            if caller is not self._phase:
                self._phase = caller
                recorder.kept.pop(StepKind.PHASE, None)
            if recorder.wants(StepKind.PHASE, before.count):
                recorder.begin(StepKind.PHASE, before.count)
                now, made = self.ear.moment() or (now, made)
        waited = self.waits.known(now)
        self._block = Block(caller, now, made, waited, self._ended, recorded, bool(self.begun))

    def _leave_phase(self, block: Block, event: events.PhaseChanges) -> None:
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
        steps.add(block.begin, event.at, calls, backwards, event.nodes - block.nodes, block.known)

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
        self.ear.look_away()
        self.recorder.keep_what_ended()
        if self._undecided.ended_by_backward:  # what the script did after it is no part of it
            now, made = self._undecided.backward_end
            _, made_by_now = self.ear.moment() or (0, self._made)
            self.nodes += made_by_now - made
            self._at, self._made = now, made_by_now
            self._end_backward()
        self.recorder.drop()
        self.window.close()

    def leave(self) -> None:
        """Stop watching."""
        self.ear.look_away()
        self.recorder.drop()

    def starts_anew(self, began: int) -> None:
        """What happened before is another's."""
        self.leave()
        StepFinder.__init__(self, skip=self.skip, only=self.only, named=self.named, began=began, ear=self.ear)

    @property
    def has_trained(self) -> bool:
        """Whether an optimizer stepped, or a backward pass ended a step."""
        return bool(self._trained.count or self.ear.writes.accumulates)

    @property
    def _trained(self) -> Steps:
        return self.by_optimizer if self.by_optimizer.count else self.by_backward

    def _open(self, begin: int, by: str = "") -> None:
        """A step begins, by a call of a module or optimizer, or where the one before ended."""
        self.recorder.keep_what_ended()
        self.waits.end_evaluation(begin)
        self._undecided.with_gradients_since = 0
        if by and self._without_modules and not self.by_optimizer.count:
            self._forget_backward()
        self.begun, self.nodes, self.backwards, self._line = begin, self._made, 0, ""
        self.elements = 0
        self._known_at_begin = self.waits.known(begin)
        self.begins = by or "the end of the one before"
        if self._undecided.first is None:
            self._undecided.first = begin, self.nodes, self._known_at_begin

    def _forget_backward(self) -> None:
        """Backward passes before a model is trained, as of a tensor that starts the device, ended no steps."""
        self._without_modules, self._undecided.first = False, None
        self.by_backward, self.backward = self._steps_of(StepKind.BACKWARD), Caller("backward", NO_PLACE)
        self.recorder.drop(StepKind.BACKWARD)
        self.recorder.kept.pop(StepKind.BACKWARD, None)
        self.recorder.taken[StepKind.BACKWARD].clear()

    def _record(self, module: Any = None, args: Any = ()) -> None:
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
        made = self._made - self.nodes
        steps.add(begin, now, caller, self.backwards, made, self._known_at_begin, self._line, self.elements)
        self.recorder.ended()
        if not (self.recorder.settled or steps.follow()):
            self.recorder.drop(StepKind.OPTIMIZER if steps is self.by_optimizer else StepKind.BACKWARD)


def steps_of(
    heard: Iterable[Event], recorder: Recorder, *, only: StepKind | None = None, named: str = "", ear: Ear | None = None
) -> StepFinder:
    """What is found of a script that did this, and nothing else."""
    finder = StepFinder(skip=recorder.skip, only=only, named=named, recorder=recorder, ear=ear)
    for event in heard:
        finder.fold(event)
    finder.finish()
    return finder
