"""Hears what a script does, by torch's hooks, and tells its ``StepFinder``: events of the thread that steps.

Calls from within a backward pass, of compiled code or while a model is traced are not told. Once a step is known and
recorded, its model and its optimizer are heard by hooks that take a third of the time.
"""

from __future__ import annotations

from collections.abc import Callable
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
from rooflight.sources.capture.run.events import Ear, Weights, Writes
from rooflight.sources.capture.run.finder import StepFinder

HOOK: Final = "rooflight"
_OF_ANY_THREAD: Final = (events.Fetches, events.Fetched, events.Saves, events.Saved, events.PhaseChanges)
"""Such an event does not say that its thread is the one that steps."""


class Listening(Ear):
    """The ear of a finder in the process of the script."""

    def __init__(self, *, skip: int, only: StepKind | None = None, named: str = "") -> None:
        self.hook: Callable[[nn.Module, Any], None] | None = None
        self._weights = _Weights()
        super().__init__()
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

    def moment(self) -> tuple[int, int]:
        """Now."""
        return perf_counter_ns(), _get_sequence_nr()

    def slow_down(self) -> None:
        """Hear all again."""
        self.hook = None

    def starts_anew(self) -> None:
        """In a child that was forked: what happened before is the parent's."""
        self.hook, self._weights, self.writes = None, _Weights(), Writes()
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

    def tell(self, kind: Any, *facts: Any) -> int:
        """An event with these facts happens, which is not told where another thread steps; what the finder makes of it.
        The line that runs is told where the event has one.
        """
        finder = self.finder
        if finder.thread is None and kind not in _OF_ANY_THREAD:
            finder.thread = get_ident()
        if finder.thread not in (None, get_ident()):
            return 0
        where = {"where": calling_place()} if "where" in kind._fields else {}
        return finder.fold(kind(*self.moment(), *facts, **where))

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
