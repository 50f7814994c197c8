"""SpanTimer: how long each module of a running program takes, forward and backward, without recording its ops.

Time is cut at *marks*: where a module begins or ends, where the backward pass reaches the first autograd node that a
module made, where an optimizer steps and where a phase changes. Each stretch belongs to the mark before it, so the
parts sum to the whole, however calls nest, repeat or are run again by a checkpoint.

A mark on the host reads its clock. A mark on CUDA records an event on the current stream; the events are read once the
device has passed them, so nothing waits. Such a span includes the time in which the device was idle.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Any, Final

import torch
from torch import nn
from torch._C import _current_graph_task_id
from torch._dynamo.eval_frame import OptimizedModule
from torch.autograd import Variable
from torch.compiler import disable
from torch.compiler import is_dynamo_compiling as is_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import unserializable_hook

from rooflight.records.record import Direction
from rooflight.sources.capture.phases import current_phase, subscribe, unsubscribe, with_closure_inside
from rooflight.sources.capture.record.modules import module_name
from rooflight.sources.capture.time.marks import CudaMarks, HostMarks
from rooflight.sources.capture.time.timed_calls import Around, compiled_code, watch_calls

_OUTSIDE: Final = 0
_OPTIMIZER: Final = 1
_FIRST_MODULE: Final = 2

_Tensor: Final = torch.Tensor
_OUR_HOOK: Final = -1  # torch numbers its handles from 0

_MOST_PHASES: Final = 256
_MORE_PHASES: Final = "(more phases)"
_MOST_EVENTS: Final = 4096
_MOST_ITEMS: Final = 64
_DEEPEST: Final = 4


@dataclass(frozen=True, slots=True)
class Place:
    """A part of the program that takes time. The empty module path is outside all modules."""

    phase: str
    module: str
    direction: Direction


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Seconds by place, between two cuts. ``events`` are the calls with the shapes of their arguments, the backward
    passes, the optimizer steps and the phases; two steps with equal events did the same work.
    """

    by_number: Mapping[int, float]  # the timer's own number of a place, which is faster to look up
    places: Mapping[int, Place]
    events: tuple[Any, ...]

    @property
    def seconds(self) -> dict[Place, float]:
        """Seconds by place."""
        return {self.places[number]: seconds for number, seconds in self.by_number.items()}

    @property
    def wall_s(self) -> float:
        """The seconds of all places together."""
        return sum(self.by_number.values())


class SpanTimer:
    """Marks the modules of ``models`` (by the prefix of their names) while attached.

    ``paths`` are the qualified names of the modules it times: all of them except those inside a compiled one, whose
    time is part of the compiled module's. Its hooks never raise: an error goes to ``on_error``. Only the thread that
    attaches is timed, and on CUDA the threads that run its backward pass.
    """

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        on_error: Callable[[Exception], None],
        marks: HostMarks | CudaMarks | None = None,
    ) -> None:
        self._on_error = on_error
        self._modules: list[tuple[str, nn.Module, bool]] = []  # path, module, whether it is a root
        seen: set[int] = set()
        for prefix, model in models.items():
            for path, module in _timed_modules(model, prefix):
                if id(module) not in seen:
                    seen.add(id(module))
                    self._modules.append((path, module, module is model))
        self.paths = tuple(path for path, _, _ in self._modules)
        self._stride = _FIRST_MODULE + 2 * len(self._modules)
        self.on_cuda = any(parameter.is_cuda for model in models.values() for parameter in model.parameters())
        self._marks = marks or (CudaMarks() if self.on_cuda else HostMarks())
        self._handles: list[Any] = []
        self._thread = 0
        self._stack: list[int] = []
        self._phases: dict[str, int] = {}
        self._places: dict[int, Place] = {}  # by key
        self._base = 0
        self._in_backward = False
        self._before_backward = _OUTSIDE
        self._before_steps: list[int] = []  # for each open Optimizer.step: the key that it interrupted
        self._newest: dict[int, int] = {}  # by thread: sequence number of the newest autograd node that has a mark
        self._events: list[Any] = []
        self.last_events: tuple[Any, ...] = ()  # of the step cut last
        self._backward_hooks = [self._backward_hook(place) for place in range(self._stride)]

    @property
    def attached(self) -> bool:
        """Whether the hooks are in place."""
        return bool(self._handles)

    @property
    def has_phases(self) -> bool:
        """Whether any named phase was met."""
        return any(self._phases)

    def attach(self) -> None:
        """Register the hooks and start the clock. Raises RuntimeError if they are in place."""
        if self._handles:
            raise RuntimeError("already attached: detach() first")
        self._thread = get_ident()
        self._marks.start(self._stride)
        for number, (_, module, is_root) in enumerate(self._modules):
            # prepended: torch calls leave even if a hook before enter raised
            enter, leave = self._enter_hook(number), self._leave_hook(number)
            if compiled_code(module) is not None:
                self._handles.append(watch_calls(module, _between(module, enter, leave)))  # hooks run inside it
                continue
            self._handles.append(module.register_forward_pre_hook(enter, prepend=True, with_kwargs=is_root))
            self._handles.append(module.register_forward_hook(leave, always_call=True))
        # a compiled step would run them inside its code, and warn about the functions that they call
        self._handles.append(register_optimizer_step_pre_hook(disable(self._before_optimizer)))
        self._handles.append(register_optimizer_step_post_hook(disable(self._after_optimizer)))
        self._set_phase(current_phase())
        subscribe(self._set_phase)
        self._reset()

    def detach(self) -> None:
        """Take the hooks out again. Does nothing if they are not in place."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        unsubscribe(self._set_phase)
        self._reset()

    def cut(self) -> Callable[[], Spans | None]:
        """End a step here and begin the next. Returns a function that returns the step's spans, or None while the
        device has not come that far: call it again later.
        """
        self.last_events = events = tuple(self._events)
        self._reset()
        read = self._marks.cut(self._base)

        def spans() -> Spans | None:
            found = read()
            if found is None:
                return None
            seconds: dict[int, float] = {}
            for key, length in found:
                if key not in self._places:
                    self._places[key] = self._place(key)
                seconds[key] = seconds.get(key, 0.0) + length * 1e-9
            return Spans(by_number=seconds, places=self._places, events=events)

        return spans

    def _reset(self) -> None:
        self._stack.clear()
        self._newest.clear()
        self._events.clear()
        self._events.append(current_phase())
        self._before_steps.clear()
        self._in_backward = False

    def _place(self, key: int) -> Place:
        phase, place = divmod(key, self._stride)
        name = list(self._phases)[phase]
        if place < _FIRST_MODULE:
            return Place(name, "", Direction.OPTIMIZER if place == _OPTIMIZER else Direction.FORWARD)
        number, backward = divmod(place - _FIRST_MODULE, 2)
        return Place(name, self.paths[number], Direction.BACKWARD if backward else Direction.FORWARD)

    # -- hooks: every module call pays for them, so they are closures over all they need ------------------------------

    def _enter_hook(self, number: int) -> Callable[..., None]:
        forward = _FIRST_MODULE + 2 * number
        stack, thread, mark = self._stack, self._thread, self._marks.mark
        on_cuda, stride, backward_hooks, newest = self.on_cuda, self._stride, self._backward_hooks, self._newest

        def enter(module: nn.Module, args: Any, kwargs: Any = None) -> None:
            if is_compiling():
                return
            try:
                ident = get_ident()
                if ident != thread and not on_cuda:
                    return
                caller = mark(self._base + forward) % stride
                if not stack:
                    caller = self._begin_call((number, module.training), (args, kwargs), caller)
                if args and isinstance(given := args[0], _Tensor):
                    # ops of the caller since the last mark belong to the caller in the backward pass too
                    node = given.grad_fn
                    if node is not None and (sequence := node._sequence_nr()) > newest.get(ident, -1):
                        newest[ident] = sequence
                        _call_before(given, node, backward_hooks[caller if caller < _FIRST_MODULE else caller | 1])
                stack.append(caller)
            except Exception as error:
                self._on_error(error)

        return enter

    def _leave_hook(self, number: int) -> Callable[..., None]:
        stack, thread, mark = self._stack, self._thread, self._marks.mark
        on_cuda, newest, begin_backward = (
            self.on_cuda,
            self._newest,
            self._backward_hooks[_FIRST_MODULE + 2 * number + 1],
        )

        def leave(_module: nn.Module, _args: Any, output: Any) -> None:
            if is_compiling():
                return
            try:
                ident = get_ident()
                if ident != thread and not on_cuda:
                    return
                mark(self._base + (stack.pop() if stack else _OUTSIDE))
                tensor = output if isinstance(output, _Tensor) else _first_tensor(output)
                node = None if tensor is None else tensor.grad_fn
                if node is not None and (sequence := node._sequence_nr()) > newest.get(ident, -1):
                    newest[ident] = sequence
                    _call_before(tensor, node, begin_backward)
            except Exception as error:
                self._on_error(error)

        return leave

    def _begin_call(self, module: tuple[int, bool], given: Any, caller: int) -> int:
        if self._in_backward and _current_graph_task_id() == -1:  # it raised
            self._in_backward = False
            caller = self._before_backward
        if not self._in_backward:
            self._note((*module, torch.is_grad_enabled(), look_of(given)))
        return caller

    def _backward_hook(self, place: int) -> Callable[[Any], None]:
        mark = self._marks.mark

        def begin(_gradients: Any) -> None:
            try:
                if self._handles and (self.on_cuda or get_ident() == self._thread):
                    if not self._in_backward:
                        self._begin_backward()
                    mark(self._base + place)
            except Exception as error:
                self._on_error(error)

        return unserializable_hook(begin)  # type: ignore[no-any-return]

    def _begin_backward(self) -> None:
        self._before_backward = self._marks.mark(self._base) % self._stride
        self._in_backward = True
        engine: Any = Variable._execution_engine
        engine.queue_callback(self._end_backward)

    def _end_backward(self) -> None:
        try:
            if self._in_backward:
                self._in_backward = False
                self._marks.mark(self._base + self._before_backward)
                self._note("backward")
        except Exception as error:
            self._on_error(error)

    def _before_optimizer(self, _optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            if get_ident() == self._thread:
                self._before_steps.append(self._marks.mark(self._base + _OPTIMIZER) % self._stride)
                return with_closure_inside(args, kwargs, self._in_closure)
        except Exception as error:
            self._on_error(error)
        return None

    @contextmanager
    def _in_closure(self) -> Iterator[None]:
        before = self._marks.mark(self._base + _OUTSIDE) % self._stride
        try:
            yield
        finally:
            self._marks.mark(self._base + before)

    def _after_optimizer(self, *_: Any) -> None:
        try:
            if get_ident() == self._thread:
                self._marks.mark(self._base + (self._before_steps.pop() if self._before_steps else _OUTSIDE))
                self._note("optimizer")
        except Exception as error:
            self._on_error(error)

    def _set_phase(self, name: str) -> None:
        try:
            if name not in self._phases and len(self._phases) >= _MOST_PHASES:  # names with the step's number in them
                name = _MORE_PHASES
            self._base = self._phases.setdefault(name, len(self._phases)) * self._stride
            self._marks.reserve(self._base + self._stride)
            place = self._marks.mark(self._base) % self._stride
            if place:
                self._marks.mark(self._base + place)
            self._note(name)
        except Exception as error:
            self._on_error(error)

    def _note(self, event: Any) -> None:
        if len(self._events) < _MOST_EVENTS:
            self._events.append(event)


def _timed_modules(model: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """The modules outside compiled code, with their names. Hooks inside it would not be called, or would break it."""
    inner = model._orig_mod if isinstance(model, OptimizedModule) else model
    yield prefix or type(inner).__name__, model
    if inner is not model or compiled_code(model) is not None:
        return
    for name, child in model.named_children():
        yield from _timed_modules(child, module_name(prefix, name))


def _between(module: nn.Module, enter: Callable[..., None], leave: Callable[..., None]) -> Around:
    def around(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = None
        enter(module, args, kwargs)
        try:
            output = call(*args, **kwargs)
        finally:
            leave(module, args, output)
        return output

    return around


def _first_tensor(output: Any) -> Any:
    """Of a result that may be a tuple, a list, or a dict of transformers."""
    values = output.values() if isinstance(output, dict) else output if isinstance(output, list | tuple) else ()
    return next((value for value in values if isinstance(value, _Tensor)), None)


def _call_before(tensor: Any, node: Any, hook: Callable[[Any], None]) -> None:
    """As ``tensor.register_hook(hook)``, without the handle, which takes longer to make than all the rest."""
    if type(tensor) is _Tensor and tensor._backward_hooks is None:
        tensor._backward_hooks = OrderedDict(((_OUR_HOOK, hook),))
        node._register_hook_dict(tensor)
    else:
        node.register_prehook(hook)


def look_of(value: Any, depth: int = 0) -> Any:
    """A hashable value that is equal for calls with the same shapes. It has the shape and dtype of a tensor, the value
    of a number or string, the items of a list, tuple or dict, the length of a cache of keys and values; of anything
    else only the type.
    """
    if isinstance(value, torch.Tensor):
        # a nested tensor without a shape still has a number of parts
        shape = value.size(0) if value.is_nested and value.layout is torch.strided else tuple(value.shape)
        return (shape, value.dtype)
    if value is None or isinstance(value, bool | int | str):
        return value
    if depth < _DEEPEST and isinstance(value, list | tuple):
        return tuple(look_of(item, depth + 1) for item in value[:_MOST_ITEMS])
    if depth < _DEEPEST and isinstance(value, dict):
        return tuple((str(key), look_of(item, depth + 1)) for key, item in list(value.items())[:_MOST_ITEMS])
    return (type(value), _length(value)) if hasattr(type(value), "get_seq_length") else type(value)


def _length(cache: Any) -> int | None:
    """None for a cache of fixed size: its length is a tensor, and reading it would wait for the device."""
    try:
        length = cache.get_seq_length()
    except Exception:
        return None
    return length if isinstance(length, int) else None
