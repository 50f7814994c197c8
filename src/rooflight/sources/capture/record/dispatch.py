"""DispatchSource: a torch dispatch mode that records every operation on the tape."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from sys import _getframe
from threading import get_ident
from time import perf_counter_ns
from typing import Any

import torch
from torch._C import _current_autograd_node, _current_graph_task_id
from torch._C import _dispatch_has_kernel_for_dispatch_key as has_kernel
from torch._C._autograd import _get_sequence_nr
from torch._subclasses.fake_tensor import FakeTensor

from rooflight.records.record import Direction
from rooflight.sources.capture.lines import NO_LINE
from rooflight.sources.capture.op_call import OpCall
from rooflight.sources.capture.phases import with_closure_inside
from rooflight.sources.capture.record.composites import COMPOSITE_OPS, NO_SEQUENCE, Composites, Source, decomposed
from rooflight.sources.capture.record.constants import known_constants
from rooflight.sources.capture.record.meta_results import remembering
from rooflight.sources.capture.record.readers import Reader, reader_of
from rooflight.sources.capture.record.schemas import schema_of
from rooflight.sources.capture.record.tape import Tape

_DEVICE = torch.ops.prim.device.default
_NO_MODULE = -2
_FORWARD, _BACKWARD, _OPTIMIZER = map(int, Direction)  # plain ints hash faster
_PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor})
_DEVICE_KEYS = ("CPU", "CUDA", "XPU", "Meta", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
_QUESTIONS = frozenset(
    {
        "aten::_has_same_storage_numel",
        "aten::dim",
        "aten::is_contiguous",
        "aten::is_non_overlapping_and_dense",
        "aten::is_same_size",
        "aten::is_strides_like_format",
        "aten::numel",
        "aten::size",
        "aten::storage_offset",
        "aten::stride",
    }
)

Handler = Callable[..., Any]
_Place = tuple[int, int, int]  # numbers of a module, a torch function and a line


def _note_nothing(_args: Any, _kwargs: Any, _out: Any, _context: int) -> None:
    """The reader of an op for which no other could be made."""


class DispatchSource(Source):
    """Records each op below autograd: forward, backward, optimizer and collectives alike.

    It belongs to the thread that enters it; torch passes it on to the backward threads that it starts. Ops on tensor
    subclasses (DTensor) are passed on, so that the ops on their local parts are recorded.
    """

    supports_higher_order_operators = True

    def __init__(self, tape: Tape, *, timed: bool = False, on_error: Callable[[Exception], None] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tape = tape
        self.timed = timed
        self._on_error = on_error
        self.blind = 0  # while above 0, for instance after an error, ops run without being recorded
        self.thread = get_ident()
        self.compiled = False  # whether a compiled function was called, whose original code ran
        self.composites = Composites(self)
        self.constants = known_constants()
        self.module = 0
        self.phase = 0
        self.function = 0
        self.line = NO_LINE
        self._steps: list[tuple[int, int]] = []  # module and graph task that called each open Optimizer.step
        self._marks: list[bool] = []  # for each open mark of the profiler: whether it is that of an Optimizer.step
        self.parameter_modules: dict[int, int] = {}  # id of a parameter -> number of the module that owns it
        # By id of an op, which lives as long as torch: the function that runs it and its reader, or its handler and
        # None. The op itself as a key would be hashed in Python.
        self._ops: dict[int, tuple[Handler, Reader | None]] = {}
        self.context = 0
        self._place_contexts: dict[_Place, int] = {}  # in this phase and direction
        self._backward_contexts: dict[_Place, int] = {}
        self._backward_sequence = -1  # autograd node of the last op, for which the context is known
        self._backward_context = 0
        # The n-th autograd node that a thread makes has the number n: from each of these on they are made at a place.
        self._mark_sequences = [0]
        self._mark_places: list[_Place] = [(0, 0, NO_LINE)]
        self._made = 0  # how many nodes there were at the last op
        self._foreign: dict[type, bool] = {}
        self._scalar_reader: Reader | None = None

    def __torch_dispatch__(
        self, func: Any, types: tuple[type, ...], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.blind:
            return func(*args, **(kwargs or {}))
        for kind in types:
            if kind not in _PLAIN_TENSORS and self.is_foreign(kind):
                return NotImplemented
        run, read = self._ops.get(id(func)) or self._meet(func, args)
        if read is None:
            return run(OpCall(func, args, kwargs or {}))
        timed, composites = self.timed, self.composites
        start_ns = perf_counter_ns() if timed else 0
        out = run(*args, **kwargs) if kwargs else run(*args)
        end_ns = perf_counter_ns() if timed else 0
        before = len(self.tape) if timed else 0
        try:
            if _current_graph_task_id() == -1:
                if composites.active:
                    composites.before_forward_op()
                read(args, kwargs, out, self._context_of_forward())
            else:
                node: Any = _current_autograd_node()
                if node is None or composites.active or node._sequence_nr() != self._backward_sequence:
                    read(args, kwargs, out, self._context_of_backward(node))
                else:
                    read(args, kwargs, out, self._backward_context)
                if composites.active:
                    composites.after_op(func)
            if timed and len(self.tape) > before:
                self.tape.add_time(len(self.tape) - 1, start_ns, end_ns)
        except Exception as error:
            self.fail(error)
        return out

    def _meet(self, func: Any, args: tuple[Any, ...]) -> tuple[Handler, Reader | None]:
        handler = _special_handler(func)
        if handler is not None:
            known: tuple[Handler, Reader | None] = getattr(self, handler), None
        else:
            run = getattr(func, "_op", func)  # as OpOverload.__call__ does, without its Python frame
            if args and isinstance(args[0], torch.Tensor) and args[0].is_meta:
                run = remembering(func, run)
            try:
                schema = schema_of(func)
                known = run, self.constants.around(func, schema, self.tape, reader_of(schema, self.tape))
            except Exception as error:
                self.fail(error)
                return run, _note_nothing
        self._ops[id(func)] = known
        return known

    def fail(self, error: Exception) -> None:
        """Handle an error of the recorder itself: it is raised in the program unless ``on_error`` takes it."""
        if self._on_error is None:
            raise error
        self.blind += 1  # torch puts this mode back after the op, so it cannot be taken out here
        self._on_error(error)

    # -- where in the program we are ---------------------------------------------------------------------------------

    def update_context(self) -> None:
        """Take note that phase or optimizer state changed."""
        self._place_contexts.clear()
        self._backward_contexts.clear()
        self.context = self._context_at((self.module, self.function, self.line))
        self._backward_sequence = -1

    def _direction(self) -> int:
        # a module that runs inside Optimizer.step runs forward, for the closure that some optimizers are given
        return _OPTIMIZER if self._steps and self._steps[-1][0] == self.module else _FORWARD

    def set_phase(self, name: str) -> None:
        """Begin the phase of this name, or continue it after one inside it has ended."""
        self.phase = self.tape.phase(name)
        self.update_context()

    def before_step(self, _optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A hook before ``Optimizer.step``. Ops of its closure do not count as the optimizer's."""
        mine = get_ident() == self.thread and self.here
        return with_closure_inside(args, kwargs, self._in_closure) if mine else None

    @contextmanager
    def _in_closure(self) -> Iterator[None]:
        self._steps.append((_NO_MODULE, _NO_MODULE))
        self.update_context()
        try:
            yield
        finally:
            self._steps.pop()
            self.update_context()

    def move(self, module: int, function: int) -> None:
        """Begin the module and torch function of these numbers, or continue them after one that they called returned;
        0: none.
        """
        self.module, self.function = module, function
        self._backward_sequence = -1  # while a node recomputes a module, that calls others
        if get_ident() == self.thread:  # each thread counts its own nodes
            self._made = _get_sequence_nr()
        self._mark()

    def _mark(self) -> None:
        """The autograd nodes that were made since the last op or move belong to the place that is now."""
        place = self.module, self.function, self.line
        if get_ident() == self.thread:
            self._mark_sequences.append(self._made)
            self._mark_places.append(place)
        self.context = self._context_at(place)

    def _context_at(self, place: _Place) -> int:
        context = self._place_contexts.get(place)
        if context is None:
            module, function, line = place
            context = self.tape.context(module, self.phase, self._direction(), function, line)
            self._place_contexts[place] = context
        return context

    def _context_of_forward(self) -> int:
        line = self.tape.lines.running(_getframe(1))
        if line != self.line:
            self.line = line
            self._mark()
        self._made = _get_sequence_nr()
        return self.context

    def _context_of_backward(self, node: Any) -> int:
        if node is None:
            return self._backward_context_of(self.module, self.function, self.line)
        sequence = node._sequence_nr()
        if self.composites.active:
            self.composites.before_backward_op(sequence)
        if sequence == self._backward_sequence:
            return self._backward_context
        if self._steps and self._steps[-1][1] == _current_graph_task_id():  # a hook updates weights during backward
            return self.context
        module, function = self.module, self.function  # not 0 inside backward: checkpointing recomputes a module
        line = self.tape.lines.running(_getframe(1))
        if not module:
            if sequence == NO_SEQUENCE:  # a gradient is added to that of a parameter
                return self._backward_context_of(self.parameter_modules.get(id(node.variable), 0), function, line)
            module, made_by, called_at = self._mark_places[bisect_right(self._mark_sequences, sequence) - 1]
            function, line = function or made_by, line or called_at
        self._backward_sequence = sequence
        self._backward_context = self._backward_context_of(module, function, line)
        return self._backward_context

    def _backward_context_of(self, module: int, function: int, line: int = NO_LINE) -> int:
        place = module, function, line
        context = self._backward_contexts.get(place)
        if context is None:
            context = self.tape.context(module, self.phase, _BACKWARD, function, line)
            self._backward_contexts[place] = context
        return context

    # -- ops that are not simply run and noted -------------------------------------------------------------------------

    def context_now(self) -> int:
        """The context of the op that runs now."""
        in_backward = _current_graph_task_id() != -1
        return self._context_of_backward(_current_autograd_node()) if in_backward else self._context_of_forward()

    def _run_unseen(self, call: OpCall) -> Any:
        if call.op is _DEVICE and isinstance(call.args[0], FakeTensor):  # C++ asks several times for each op
            return call.args[0].device
        return call.run()

    def _run_decomposed(self, call: OpCall) -> Any:
        """Run the parts of a composite. Under inference_mode it arrives here whole; with autograd its parts arrive."""
        if any(tensor.is_nested for tensor in call.tensors):  # these have kernels of their own
            out = call.run()
            reader_of(schema_of(call.op), self.tape)(call.args, call.kwargs, out, self.context_now())
            return out
        with self:
            return decomposed(call)

    def _run_control_flow(self, call: OpCall) -> Any:

        def watched(function: Handler) -> Handler:
            def run(*inner_args: Any, **inner_kwargs: Any) -> Any:
                with self:
                    return function(*inner_args, **inner_kwargs)

            return run

        watch = [watched(arg) if callable(arg) and not isinstance(arg, torch.Tensor) else arg for arg in call.args]
        return call.op(*watch, **call.kwargs)

    def _run_mark(self, call: OpCall) -> Any:
        """Run a mark of the profiler: where Optimizer.step begins and, even if it raises, ends."""
        if "enter" in call.op._schema.name:
            stepping = str(call.args[0]).startswith("Optimizer.step#")
            self._marks.append(stepping)
            if stepping:
                self._steps.append((self.module, _current_graph_task_id()))
                self.update_context()
        elif self._marks and self._marks.pop():
            self._steps.pop()
            self.update_context()
        return call.run()

    def _run_composite(self, call: OpCall) -> Any:
        with self:
            return self.composites.call(COMPOSITE_OPS[call.op], call.args, call.kwargs)

    def _read_scalar(self, call: OpCall) -> Any:
        """``.item()``. On the meta device there is no value: return True or 1, as for a mask that hides nothing."""
        tensor = call.args[0]
        if isinstance(tensor, FakeTensor) or tensor.device.type != "meta":
            out = call.run()
        else:
            out = True if tensor.dtype is torch.bool else 1.0 if tensor.dtype.is_floating_point else 1
        if self._scalar_reader is None:
            self._scalar_reader = reader_of(schema_of(call.op), self.tape)
        self._scalar_reader(call.args, call.kwargs, out, self.context_now())
        return out

    def is_foreign(self, kind: type) -> bool:
        """Whether a tensor class does its own dispatch, to ops on plain tensors that come back to this mode."""
        known = self._foreign.get(kind)
        if known is None:
            dispatch = getattr(kind, "__torch_dispatch__", None)
            known = dispatch is not None and dispatch is not torch._C._disabled_torch_dispatch_impl
            known = known and not issubclass(kind, FakeTensor)
            self._foreign[kind] = known
        return known


@cache
def _special_handler(func: Any) -> str | None:
    if func in COMPOSITE_OPS:
        return "_run_composite"
    if func is torch.ops.aten._local_scalar_dense.default:
        return "_read_scalar"
    if isinstance(func, torch._ops.HigherOrderOperator):
        return None if func.name().startswith("flex_attention") else "_run_control_flow"
    if not isinstance(func, torch._ops.OpOverload):
        return None
    if func.namespace == "profiler":
        return "_run_mark"
    name = func._schema.name
    computes_nothing = name.startswith(("prim::", "aten::sym_")) or name in _QUESTIONS
    return "_run_unseen" if computes_nothing else "_run_decomposed" if is_composite(func) else None


def computes(func: Any) -> bool:
    """Whether a call of it is recorded: it is no question about a tensor, and no mark of the profiler."""
    return _special_handler(func) not in ("_run_unseen", "_run_mark")


def is_composite(func: torch._ops.OpOverload) -> bool:
    """Whether autograd would split an op into others, because the op has no kernel for a device."""
    name = func.name()
    if not torch._C._dispatch_has_kernel(name):
        return False
    return has_kernel(name, "CompositeImplicitAutograd") and not any(has_kernel(name, key) for key in _DEVICE_KEYS)
