"""Hears what a script does, by torch's hooks, and tells its ``StepFinder``: events of the thread that steps.

Calls from within a backward pass, of compiled code or while a model is traced are not told. Once a step is known and
recorded, its model and its optimizer are heard by hooks that take a third of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from threading import get_ident
from time import perf_counter_ns
from typing import Any, Final
from weakref import ref

from torch import is_grad_enabled, nn
from torch._C import _current_graph_task_id, _get_tracing_state
from torch._C._autograd import _get_sequence_nr
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import _global_forward_pre_hooks
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.optim import optimizer as optimizers

from rooflight.records.account import NO_PLACE
from rooflight.records.timeline import StepKind
from rooflight.sources.capture.run import events
from rooflight.sources.capture.run.callers import calling_line, calling_place, elements_of
from rooflight.sources.capture.run.events import Ear, Weights
from rooflight.sources.capture.run.finder import StepFinder

HOOK: Final = "rooflight"


class Listening(Ear):
    """The ear of a finder in the process of the script."""

    def __init__(self, *, skip: int, only: StepKind | None = None, named: str = "") -> None:
        self.hook: Callable[[nn.Module, Any], None] | None = None
        self._weights = _Weights()
        self._written = Written()
        self.finder = StepFinder(skip=skip, only=only, named=named, began=perf_counter_ns(), ear=self)

    # -- what the finder tells and asks

    def watch(self) -> None:
        """Notice calls of modules from here on."""
        _global_forward_pre_hooks[HOOK] = self.hook or self.called  # type: ignore[index]

    def look_away(self) -> None:
        """Notice none."""
        _global_forward_pre_hooks.pop(HOOK, None)  # type: ignore[call-overload]

    def await_return(self, module: Any) -> None:
        """Notice when the call of the module returns."""
        module._forward_hooks[HOOK] = self.returned

    def forget(self, module: Any) -> None:
        """Notice other calls again."""
        module._forward_hooks.pop(HOOK, None)
        self.watch()

    def written(self) -> int:
        """As ``Written`` tells."""
        return self._written.since_backward()

    def follow(self, model: Any) -> None:
        """Look at its weights, too."""
        self._written.follow(model)

    def sees_backward(self) -> None:
        """Look at the weights."""
        self._written.backward_ended()

    @property
    def accumulates(self) -> bool:  # type: ignore[override]
        """Of ``Written``."""
        return self._written.accumulates

    @property
    def began_to_accumulate(self) -> bool:  # type: ignore[override]
        """Of ``Written``."""
        return self._written.began_to_accumulate

    def moment(self) -> tuple[int, int]:
        """Now."""
        return perf_counter_ns(), _get_sequence_nr()

    def slow_down(self) -> None:
        """Hear all again."""
        self.hook = None

    def starts_anew(self) -> None:
        """In a child that was forked: what happened before is the parent's."""
        self.hook, self._weights, self._written = None, _Weights(), Written()
        self.finder.starts_anew(perf_counter_ns())
        self.watch()

    # -- what torch's hooks tell

    def called(self, module: nn.Module, args: Any) -> None:
        """Torch's hook before each outermost call of a module."""
        if is_dynamo_compiling() or not self._mine() or _current_graph_task_id() != -1 or _get_tracing_state():
            return
        now, finder = perf_counter_ns(), self.finder
        number, weights = self._weights.of(module)
        matters = bool(weights.elements) or finder.only is not None
        grads, is_new = is_grad_enabled(), matters and number not in finder.modules.calls
        line = calling_line() if grads and weights.trained and finder.wants_line else ""
        event = events.Called(
            at=now, nodes=_get_sequence_nr(), number=number, kind=type(module).__name__, weights=weights, grads=grads,
            training=module.training, size=elements_of(args) if matters else 0, line=line,
            where=calling_place() if is_new else NO_PLACE, module=module, args=args,
        )  # fmt: skip
        finder.fold(event)

    def returned(self, _module: nn.Module, _args: Any, _result: Any) -> None:
        """Torch's hook after the call that is waited for."""
        self.finder.fold(events.Returned(*self.moment(), is_grad_enabled()))

    def counts_backward(self, *, accumulates: bool) -> bool:
        """Whether a backward pass is to be told."""
        return self.finder.counts_backward(accumulates=accumulates)

    def backward_begins(self) -> None:
        """A backward pass, not one inside another."""
        if self._mine():
            self.finder.fold(events.BackwardBegins(*self.moment()))

    def backward_ended(self) -> None:
        """It returned."""
        if self._mine():
            where = NO_PLACE if self.finder.backward.where.line else calling_place()
            self.finder.fold(events.BackwardEnds(*self.moment(), where))

    def optimizer_begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Torch's hook before ``Optimizer.step``. The thread that steps first is the one."""
        finder = self.finder
        if finder.only not in (None, StepKind.OPTIMIZER) or (self._elsewhere() and finder.by_optimizer.count):
            return
        finder.thread = get_ident()
        runs_model = len(args) > 1 or kwargs.get("closure") is not None
        finder.fold(events.OptimizerBegins(*self.moment(), id(optimizer), type(optimizer).__name__, runs_model))

    def optimizer_ended(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Torch's hook after ``Optimizer.step``."""
        if self._elsewhere():
            return
        at, nodes = self.moment()
        where = NO_PLACE if id(optimizer) in self.finder.numbers else calling_place()
        kind = type(optimizer).__name__
        self.finder.fold(events.OptimizerEnds(at, nodes, id(optimizer), kind, where, optimizer))

    def loader_begins(self, data: object, workers: int = 0) -> int:
        """A loader with so many workers is asked for a batch of ``data``. Returns when, or 0 where that is not between
        steps.
        """
        return self.finder.fold(events.Fetches(*self.moment(), id(data), workers))

    def loader_ended(self, begin: int) -> None:
        """It has it."""
        self.finder.fold(events.Fetched(*self.moment(), begin))

    def epoch_begins(self, data: object, batch: object) -> None:
        """The loader's first ``batch`` of an epoch."""
        self.finder.waits.begins_epoch(id(data), batch)

    def checkpoint_begins(self) -> int:
        """A file is saved. Returns when, or 0 within a step."""
        return self.finder.fold(events.Saves(*self.moment()))

    def checkpoint_ended(self, begin: int) -> None:
        """It is written."""
        self.finder.fold(events.Saved(*self.moment(), begin))

    def function_begins(self) -> None:
        """The function that is the step is called."""
        if self._mine():
            where = NO_PLACE if self.finder.function.where.line else calling_place()
            self.finder.fold(events.FunctionBegins(*self.moment(), where))

    def function_ended(self) -> None:
        """It returned, or raised."""
        if self._mine():
            self.finder.fold(events.FunctionEnds(*self.moment()))

    def phase_changes(self, name: str) -> None:
        """The script enters a phase, or leaves the outermost one: no name."""
        if self.finder.thread is None or not self._elsewhere():
            is_new = name and not any(each.name == name for each in self.finder.phases)
            self.finder.fold(events.PhaseChanges(*self.moment(), name, calling_place() if is_new else NO_PLACE))

    def _mine(self) -> bool:
        if self.finder.thread is None:
            self.finder.thread = get_ident()
        return self.finder.thread == get_ident()

    def _elsewhere(self) -> bool:
        return get_ident() != self.finder.thread

    # -- a step that is known

    def hasten(self, model: nn.Module, optimizer: Any) -> None:
        """Hear the model and the optimizer of every step by quicker hooks; anything else goes the slow way."""
        finder, thread, hooks = self.finder, get_ident(), _global_forward_pre_hooks
        key, number, running = id(optimizer), finder.numbers[id(optimizer)], finder.running
        slowly_called, slowly_begins, slowly_ended = self.called, self.optimizer_begins, self.optimizer_ended

        def called(module: nn.Module, args: Any) -> None:
            if is_dynamo_compiling():
                return
            if (
                module is model
                and not (finder.begun or finder.waits.evaluates_since or finder.waits.other_data_since)
                and module.training
                and is_grad_enabled()
                and _current_graph_task_id() == -1
                and get_ident() == thread
            ):
                hooks.pop(HOOK, None)  # type: ignore[call-overload]
                finder.known_step_begins(perf_counter_ns(), _get_sequence_nr(), elements_of(args))
            else:
                slowly_called(module, args)

        def begins(each: Any, args: Any, kwargs: Any) -> None:
            if each is optimizer and finder.in_known_step and not running and get_ident() == thread:
                running.append(key)
            else:
                slowly_begins(each, args, kwargs)

        def ended(each: Any, args: Any, kwargs: Any) -> None:
            if each is optimizer and finder.in_known_step and len(running) == 1 and get_ident() == thread:
                running.pop()
                finder.known_step_ended(perf_counter_ns(), _get_sequence_nr(), number)
                hooks[HOOK] = called  # type: ignore[index]
            else:
                slowly_ended(each, args, kwargs)

        self.hook = called
        _replace(optimizers._global_optimizer_pre_hooks, slowly_begins, begins)
        _replace(optimizers._global_optimizer_post_hooks, slowly_ended, ended)


def _replace(hooks: Any, old: Callable[..., Any], new: Callable[..., Any]) -> None:
    for number, hook in hooks.items():
        if hook is old:
            hooks[number] = new


class _Weights:
    """Of modules, each with a number."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[ref[nn.Module], int, Weights]] = {}  # by id
        self._seen = 0

    def of(self, module: nn.Module) -> tuple[int, Weights]:
        """The number of a module, and its weights; those of a lazy one are not known yet."""
        found = self._known.get(id(module))
        if found is None or found[0]() is not module:
            parameters = list(module.parameters())
            lazy = any(isinstance(each, (UninitializedParameter, UninitializedBuffer)) for each in parameters)
            elements = 1 if lazy else sum(each.numel() for each in parameters)
            found = ref(module), self._seen, Weights(elements, any(each.requires_grad for each in parameters))
            self._seen += 1
            if not lazy:
                self._known[id(module)] = found
        return found[1:]


class Written:
    """A weight counts as written where it, or its gradient, is another one or was changed in place. What is written
    through ``.data`` does not show; a script of which nothing shows is as if it wrote after each backward pass.
    """

    def __init__(self) -> None:
        self.accumulates = self.began_to_accumulate = False
        self._sets: list[Collection[int]] = [()]  # by number: the places of the weights that were written together
        self._models: list[ref[nn.Module]] = []
        self._after: dict[int, tuple[int, int, int]] = {}
        self._kept_its_gradients = False

    def follow(self, model: nn.Module) -> None:
        """It is trained."""
        if not any(each() is model for each in self._models):
            self._models.append(ref(model))

    def backward_ended(self) -> None:
        """See how the weights and gradients are."""
        self._after = dict(self._states())

    def since_backward(self) -> int:
        """The number of the set of weights that were written since then; 0: none. Of a script that writes them after
        some backward passes only, the passes before were parts of a step.
        """
        now, self.began_to_accumulate = dict(self._states()), False
        found = frozenset(place for place, state in self._after.items() if now.get(place) != state)
        if not found:
            self._kept_its_gradients |= bool(self._after)
            return 0
        if self._kept_its_gradients and not self.accumulates:
            self.accumulates = self.began_to_accumulate = True
        if found not in self._sets:
            self._sets.append(found)
        return self._sets.index(found)

    def _states(self) -> Iterator[tuple[int, tuple[int, int, int]]]:
        weights = (each for model in self._models if (it := model()) is not None for each in it.parameters())
        for place, weight in enumerate(weights):
            if (gradient := weight.grad) is not None and not weight.is_inference():
                yield place, (id(gradient), gradient._version, weight._version)
