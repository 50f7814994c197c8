"""Composite calls accounted as one op, regardless of the ops into which the host splits them.

While a recording is open, the composites of ``kernels`` are routed through this file (registrations on the dispatcher's
autograd keys, gone when the last recording ends): the ops that a call runs become children of one record, and so do the
ops of its backward, found by the sequence numbers of the autograd nodes that the call made. SDPA and recurrent
networks on the meta device, where values do not matter, are not decomposed at all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Any, ClassVar, Final, Self

import torch
from torch._C import _current_graph_task_id, _get_dispatch_stack_at, _len_torch_dispatch_stack
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)
from torch.utils.checkpoint import _StopRecomputationError

from rooflight.costs.registry import traits_of
from rooflight.records.signature import OpSignature
from rooflight.sources.capture.op_call import OpCall
from rooflight.sources.capture.record.constants import Constants
from rooflight.sources.capture.record.kernels import COMPOSITES, Composite, with_gradients
from rooflight.sources.capture.record.signatures import start_of, storage_of, tensors_in
from rooflight.sources.capture.record.tape import Tape

_AUTOGRAD_KEYS: Final = ("AutogradCPU", "AutogradCUDA", "AutogradXPU", "AutogradMeta")

_VIEWS: Final = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter, FakeTensor)

NO_SEQUENCE: Final = 2**64 - 1
"""Sequence number that torch gives to the nodes that accumulate gradients into leaves."""

_HOLE: Final = object()  # in place of a tensor

# Gradients that the autograd engine adds up when a tensor was used twice appear under the node that made the last one.
_ENGINE_ACCUMULATION: Final = torch.ops.aten.add.Tensor


class OnStack:
    """A mode that is put on one of torch's stacks of the current thread, and taken off at any place of it. Torch's own
    ``__enter__`` also sets process-wide flags, which overlapping threads would leave wrong.
    """

    push: ClassVar[Any] = staticmethod(_push_mode)
    pop: ClassVar[Any] = staticmethod(_pop_mode)
    modes: ClassVar[Any] = staticmethod(_get_current_dispatch_mode_stack)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Leave ``__torch_dispatch__`` unwrapped: torch's wrapper costs 1 µs per op, and nothing compiles meanwhile."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Do not run compiled functions eagerly because of this mode: where it must, the recorder does so."""
        return True

    def __enter__(self) -> Self:
        self.push(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.take_off()

    def take_off(self) -> None:
        """Take it off once, the innermost. Those above it stay, since a recording begun later may end later too."""
        above = []
        while (top := self.pop()) is not self:
            above.append(top)
        for other in reversed(above):
            self.push(other)

    def leave(self) -> None:
        """Take it off as often as it is on the stack: an interrupt may have left it twice."""
        while any(other is self for other in self.modes()):
            self.take_off()


class Source(OnStack, TorchDispatchMode):
    """The mode that records, for those to which it passes ops on, or which note ops beside it."""

    tape: Tape
    thread: int
    composites: Composites
    constants: Constants
    blind: int
    """While above 0, for instance after an error, ops run without being recorded."""
    here = True
    """Whether what runs now in its thread is its own."""
    context: int
    """Module, phase, direction, function and line of a forward op that runs now, by their number on the tape."""

    def context_now(self) -> int:
        """The context of the op that runs now, in a backward pass too."""
        raise NotImplementedError

    def is_foreign(self, kind: type) -> bool:
        """Whether a tensor class does its own dispatch, to ops on plain tensors that come back to this mode."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """Handle an error of the recorder itself."""
        raise NotImplementedError


@dataclass(slots=True)
class _Region:
    """The autograd nodes [start, end) that one call made, and the signature of its backward."""

    start: int
    end: int
    backward: OpSignature
    composite: Composite
    known: list[int]  # storages of the inputs of a stepwise composite's backward, gradients left out
    storages: int  # how many storages there were when the call returned


class Composites:
    """Bookkeeping of one recording's composite calls."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.active = False  # whether there is anything to do for each op
        self.calling: list[bool] = []  # not empty while a composite call is open
        self._regions: list[_Region] = []
        self._starts: list[int] = []
        self._open: _Region | None = None  # the region whose backward is running
        self._in_region = False  # whether the op being recorded belongs to it
        self._last: tuple[int, _Region | None] = (-1, None)
        self._born = 0  # storages from this number on were made in the region whose backward is running
        self._children: list[int] = []
        self._context = 0
        self._task = -1  # the backward pass that runs
        self._creates_graph: dict[int, bool] = {}  # by backward pass: whether it makes a graph of its own

    def call(self, composite: Composite, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a composite, and record its call."""
        return _call(composite, [self._source], args, kwargs)

    def note(self, composite: Composite, first: int, sequence: int, args: tuple[Any, ...], out: Any) -> None:
        """Write the record of a call that ran as the records since ``first``, its nodes since ``sequence``."""
        tape = self._source.tape
        op, backward = self._source.constants.with_mask(composite.describe(args, out), composite.mask(args))
        children = range(first, len(tape))
        inputs, outputs = tensors_in(args), tensors_in(out)
        parent = self._append(op, inputs, outputs)
        tape.adopt(children, parent)
        end = torch._C._autograd._get_sequence_nr()
        own_thread = get_ident() == self._source.thread  # sequence numbers of other threads count other nodes
        if own_thread and end > sequence and any(result.requires_grad for result in outputs):
            known = self._storages_of([*composite.saved(args), outputs[0]]) if composite.stepwise else []
            self._regions.append(_Region(sequence, end, backward, composite, known, len(tape.storage_bytes)))
            self._starts.append(sequence)
            self.active = True

    def note_meta(
        self, op: OpSignature, inputs: Sequence[Any], outputs: Sequence[Any], reserve: torch.Tensor | None
    ) -> None:
        """Write the record of a call on the meta device; ``reserve`` is memory that it keeps for its backward."""
        if reserve is not None:
            storage = reserve.untyped_storage()
            self._source.tape.new_storage(storage._cdata, storage.nbytes(), reserve)
        self._append(op, inputs, outputs, self._source.context_now())

    def note_meta_backward(self, op: OpSignature, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Write the record of the backward of such a call."""
        self._append(op, inputs, outputs, self._source.context_now())

    def before_forward_op(self) -> None:
        """Prepare for an op outside any backward pass."""
        if self._open is not None:
            self.close_backward()

    def before_backward_op(self, sequence: int) -> None:
        """Prepare for an op under the node with this sequence number."""
        task = _current_graph_task_id()
        if task != self._task:
            self._task = task
            self._creates_graph.setdefault(task, torch.is_grad_enabled())
        # a checkpoint runs its forward again, with gradients enabled, under the node that needs the result
        recomputes = torch.is_grad_enabled() and not self._creates_graph[self._task]
        if sequence == NO_SEQUENCE or recomputes:
            # gradients are accumulated in between, whenever one is ready; ops that a checkpoint runs again are forward
            self._in_region = False
            return
        if self._last[0] != sequence:
            self._last = (sequence, self._region_of(sequence))
        region = self._last[1]
        if self._open is not None and region is not self._open:
            self.close_backward()
        if region is not self._open:
            self._born = len(self._source.tape.storage_bytes)
        self._open = region
        self._in_region = region is not None

    def after_op(self, func: Any) -> None:
        """Account for an op of a backward pass: inside the backward of a composite it becomes a child."""
        if not self._in_region:
            return
        index = len(self._source.tape) - 1
        if func is _ENGINE_ACCUMULATION and not self._sums_parts():
            return
        if not self._children:
            self._context = self._source.tape.contexts[index]
        self._children.append(index)

    def _sums_parts(self) -> bool:
        """Whether the newest op, by which autograd adds gradients, is a part of what the backward computes."""
        region, tape = self._open, self._source.tape
        if region is None:
            return False
        inside = sum(number >= self._born for number in tape.touched[-3:-1])
        (op,) = tape.ops_since(len(tape) - 1)
        alike = [tensor.shape for tensor in region.backward.outputs].count(op.outputs[0].shape)
        if not region.composite.stepwise:  # two of three equal inputs of attention have their gradients added later
            return inside == 2 and alike == 1
        # a sum of an outside gradient and one of ours: of a slice of an input, unless an output has this shape
        return inside == 2 or (inside == 1 and not alike)

    def close_backward(self) -> None:
        """Account for the backward of a composite, now that its last op has run."""
        region, self._open, self._last, self._in_region = self._open, None, (-1, None), False
        children, self._children = self._children, []
        if region is None or not children:
            return
        tape = self._source.tape
        touched = tape.storages_of(children)
        outside = [storage for storage in touched.read if storage not in touched.written]
        op, reads, writes = region.backward, outside, list(touched.written)
        if region.composite.stepwise:
            arrived = [storage for storage in outside if storage >= region.storages]
            op, places = with_gradients(op, arrived, tape.storage_bytes)
            reads = [*places, *region.known]
            writes = _of_sizes([tensor.nbytes for tensor in op.outputs], touched.left, tape.storage_bytes) or writes
        tape.append(op, self._context, reads, writes)
        tape.note_settings(traits_of(op.name).float32)
        tape.adopt(children, tape.sink(children[-1] + 1))  # gradients that autograd has added since read its results

    def _region_of(self, sequence: int) -> _Region | None:
        index = bisect_right(self._starts, sequence) - 1
        if index < 0 or sequence >= self._regions[index].end:
            return None
        return self._regions[index]

    def _storages_of(self, tensors: Iterable[torch.Tensor]) -> list[int]:
        found = (storage_of(tensor) for tensor in tensors)
        return [self._source.tape.storage_ids[storage._cdata] for storage in found if storage is not None]

    def _append(
        self, op: OpSignature, inputs: Sequence[Any], outputs: Sequence[Any], context: int | None = None
    ) -> int:
        source, tape = self._source, self._source.tape
        place = source.context_now() if context is None else context
        reads: list[int] = []
        writes: list[int] = []
        starts: list[int] = []
        for tensors, found, known in ((inputs, reads, None), (outputs, writes, None if context is None else reads)):
            for tensor in tensors:
                if isinstance(tensor, torch.Tensor) and (number := tape.number_of(tensor, place, known)) is not None:
                    found.append(number)
                    starts.append(start_of(tensor))
        number = tape.append(op, place, reads, writes, starts)
        tape.note_settings(traits_of(op.name).float32)
        return number


def _of_sizes(sizes: Sequence[int], storages: Sequence[int], storage_bytes: Sequence[int]) -> list[int]:
    """A storage for each size; two sizes share one if there are not enough. Empty if a size has no storage."""
    by_size: dict[int, list[int]] = {}
    for storage in storages:
        by_size.setdefault(storage_bytes[storage], []).append(storage)
    found = [by_size[size] for size in sizes if size in by_size]
    return [fitting.pop(0) if len(fitting) > 1 else fitting[0] for fitting in found] if len(found) == len(sizes) else []


def decomposed(call: OpCall) -> Any:
    """Run the ops into which autograd splits a composite. ``op.decompose`` prefers Python code, which rounds
    differently. Below a mode torch does not follow views: under inference_mode, where ``linear`` arrives there whole,
    its view of a weight would forget that this requires gradients, and ``matmul`` would choose other ops.
    """
    split, args, kwargs = call.op._op_dk, call.args, call.kwargs
    if call.op is not torch.ops.aten.linear.default or not torch.is_inference_mode_enabled():
        return split(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded - _VIEWS):
        return split(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


@dataclass(frozen=True, slots=True)
class _MetaCall:
    composite: Composite
    args: tuple[Any, ...]
    results: tuple[torch.Tensor, ...]
    ops: tuple[OpSignature, OpSignature]


class _OnMeta(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _MetaCall, *tensors: torch.Tensor) -> Any:
        composite, args, results = call.composite, call.args, call.results
        op, ctx.backward_op = call.ops
        ctx.set_materialize_grads(False)
        ctx.composite, ctx.args = composite, _without_tensors(args)
        ctx.save_for_backward(*tensors, results[0])  # if ctx kept results itself, they would keep themselves alive
        ctx.reserve = None
        if any(ctx.needs_input_grad):
            with _unseen(tensors[0]):
                ctx.reserve = composite.reserve_on_meta(args)
        for source in open_sources():
            source.composites.note_meta(op, tensors, results, ctx.reserve)
        return results if len(results) > 1 else results[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        *tensors, out = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():
            results = _with_graph(ctx.composite.op, ctx.args, tensors, needed, grads)
        else:
            with _unseen(out):
                results = [
                    ctx.composite.gradient_on_meta(tensor) if wanted else None
                    for tensor, wanted in zip(tensors, needed, strict=True)
                ]
        arrived = [grad for grad in grads if grad is not None]
        op, places = ctx.backward_op, list(range(len(arrived)))
        if ctx.composite.stepwise:
            op, places = with_gradients(op, places, [grad.untyped_storage().nbytes() for grad in arrived])
        inputs = [arrived[place] for place in places] + [tensor for tensor in tensors if _has_no_values(tensor)] + [out]
        outputs = [result for result in results if result is not None]
        for source in open_sources():
            source.composites.note_meta_backward(op, inputs, outputs)
        return (None, *results)


def _without_tensors(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_without_tensors(item) for item in value)
    return _HOLE if isinstance(value, torch.Tensor) else value


def _with_tensors(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    if isinstance(value, tuple):
        return [_with_tensors(item, tensors) for item in value]
    return next(tensors) if value is _HOLE else value


def _with_graph(
    op: Any, args: tuple[Any, ...], tensors: Sequence[torch.Tensor], needed: Sequence[bool], grads: Sequence[Any]
) -> list[torch.Tensor | None]:
    """Gradients that have gradients themselves (``create_graph``): those of the decomposed call, not recorded."""
    with _calling(open_sources()), _unseen(tensors[0]):
        given = [tensor.view_as(tensor) if wanted else tensor for tensor, wanted in zip(tensors, needed, strict=True)]
        out = decomposed(OpCall(op, tuple(_with_tensors(args, iter(given))), {}))
        pairs = [pair for pair in zip(tensors_in(out), grads, strict=True) if pair[1] is not None]
        wanted = [tensor for tensor, flag in zip(given, needed, strict=True) if flag]
        outs, given_grads = zip(*pairs, strict=True)
        found = iter(torch.autograd.grad(outs, wanted, given_grads, create_graph=True, allow_unused=True))
    return [next(found) if flag else None for flag in needed]


def open_sources() -> list[Source]:
    """The recordings of what runs now, outermost first; torch passes the stack on to its backward threads."""
    modes = (_get_dispatch_stack_at(index) for index in range(_len_torch_dispatch_stack()))
    return [mode for mode in modes if isinstance(mode, Source) and mode.here]


def _route(composite: Composite, *args: Any, **kwargs: Any) -> Any:
    sources, tensors = open_sources(), tensors_in(args)
    if not sources and any(type(value) not in _PLAIN for value in tensors):
        return decomposed(OpCall(composite.op, args, kwargs))
    if any(source.is_foreign(type(value)) for source in sources for value in tensors):
        return decomposed(OpCall(composite.op, args, kwargs))
    return _call(composite, sources, args, kwargs)


def call_unrecorded(call: OpCall) -> Any:
    """Run a composite on fake tensors that arrives whole, as under inference_mode, while nothing is recorded."""
    return _call(COMPOSITE_OPS[call.op], [], call.args, call.kwargs)


COMPOSITE_OPS: Final = {composite.op: composite for composite in COMPOSITES}


def _call(composite: Composite, sources: list[Source], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = composite.arguments(args, kwargs)
    tensors = tensors_in(given)
    if any(tensor.is_nested for tensor in tensors):  # nested tensors have kernels of their own
        return decomposed(OpCall(composite.op, args, kwargs))
    if not composite.applies(given) or any(source.composites.calling for source in sources):
        return decomposed(OpCall(composite.op, args, kwargs))  # part of a call that is already accounted for
    call = _call_on_meta(composite, sources, given, tensors)
    if call is not None:
        apply: Any = _OnMeta.apply
        return apply(call, *tensors)
    sequence = torch._C._autograd._get_sequence_nr()
    starts = [len(source.tape) for source in sources]
    stopped: Exception | None = None
    with _calling(sources):
        try:
            out = decomposed(OpCall(composite.op, args, kwargs))
        except _StopRecomputationError as error:  # a checkpoint has all that it needs before the call has ended
            if composite.on_meta is None:
                raise
            with _unseen(tensors[0]):
                stopped, results = error, composite.on_meta(given)
                out = results[0] if results and len(results) == 1 else results
    for source, first in zip(sources, starts, strict=True):
        source.composites.note(composite, first, sequence, given, out)
    if stopped is not None:
        raise stopped
    return out


@contextmanager
def _calling(sources: Sequence[Source]) -> Iterator[None]:
    """Account for what runs as part of one call. One mark for all, so that no interrupt takes it off some."""
    mark = [True]
    try:
        for source in sources:
            source.composites.calling = mark
        yield
    finally:
        mark.clear()


def _has_no_values(tensor: torch.Tensor) -> bool:
    return tensor.is_meta or isinstance(tensor, FakeTensor)


@contextmanager
def _unseen(tensor: torch.Tensor) -> Iterator[None]:
    """Work on tensors like this one that no mode sees."""
    if isinstance(tensor, FakeTensor):
        with _disable_current_modes(), tensor.fake_mode:
            yield
    else:
        with torch._C._DisableTorchDispatch():
            yield


def _call_on_meta(
    composite: Composite, sources: Sequence[Source], args: tuple[Any, ...], tensors: Sequence[torch.Tensor]
) -> _MetaCall | None:
    if composite.on_meta is None or not _has_no_values(tensors[0]) or any(type(each) not in _PLAIN for each in tensors):
        return None
    if torch._C._functorch.peek_interpreter_stack() is not None:  # torch.func does not take such an autograd function
        return None
    wants = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    with _unseen(tensors[0]):  # the allocation is part of the call, not an op of the program
        results = composite.on_meta(args)
        if results is None:
            return None
        probes = tuple([result.detach().requires_grad_(wants) for result in results])
        ops = composite.describe(args, probes if len(probes) > 1 else probes[0])
        for source in sources[:1]:
            ops = source.constants.with_mask(ops, composite.mask(args))
    return _MetaCall(composite, args, results, ops)


_ROUTES: Final = tuple(
    (composite.op.name(), key, partial(_route, composite)) for composite in COMPOSITES for key in _AUTOGRAD_KEYS
)
_library: Any = None  # the object that torch.library.Library wraps; its bookkeeping would take as long again
_always = False


def route_composites(*, always: bool = False) -> None:
    """Route composites through this file, if they are not; ``always``: for the rest of the process."""
    global _library, _always
    _always |= always
    if _library is None:
        _library = torch._C._dispatch_library("IMPL", "aten", "", __file__, 0)
        for name, key, route in _ROUTES:
            _library.impl(name, key, route, False)


def unroute_composites() -> None:
    """Leave the dispatcher as it was before ``route_composites``."""
    global _library
    if _library is not None and not _always:
        _library.reset()
        _library = None
