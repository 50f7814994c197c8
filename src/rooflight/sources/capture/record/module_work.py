"""ModuleWorks: records of the ops that modules of known classes ran outside the dispatcher.

When a module whose class has a formula (``costs.modules``) returns, the ops that follow from its shapes are compared
with those recorded while it ran, and the missing ones are added to the tape. Hooks on the autograd nodes of its own
functions do the same for its backward pass.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, Final

import torch
from torch import nn
from torch._C import _current_graph_task_id
from torch._C._autograd import _get_sequence_nr
from torch.autograd.function import BackwardCFunction

from rooflight.costs.modules import ModuleCall, ModuleFormula, ModuleOp, Operand, formula_for, missing
from rooflight.records.signature import FAILED_MODULE, UNSEEN, OpSignature
from rooflight.records.tensor import TensorSpec
from rooflight.sources.capture.record.composites import NO_SEQUENCE, open_sources
from rooflight.sources.capture.record.dispatch import DispatchSource
from rooflight.sources.capture.record.signatures import spec_of, tensors_in

_CPP_FUNCTION: Final = "CppFunction"
"""The name that torch gives to the nodes of autograd functions written in C++."""


@dataclass(slots=True)
class _Open:
    module: nn.Module
    number: int
    first: int
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Backward:
    """The facts of a call that are needed when its backward pass has run; they contain no tensor."""

    number: int
    ops: Sequence[ModuleOp]
    outputs: frozenset[Operand]
    gradients: Sequence[tuple[Operand, Operand]]
    storages: Mapping[Operand, int]


class ModuleWorks:
    """The calls of one recording's modules of known classes."""

    def __init__(self, source: DispatchSource) -> None:
        self._source = source
        self.formulas: dict[int, ModuleFormula] = {}  # by number of the module
        self._by_class: dict[type, ModuleFormula | None] = {}
        self._open: list[_Open] = []
        self._complete: set[tuple[Any, ...]] = set()  # kinds of calls all ops of which were recorded
        self._ops: dict[OpSignature, OpSignature] = {}

    def learn(self, module: nn.Module, number: int) -> None:
        """Note the number of a module."""
        kind = type(module)
        if kind not in self._by_class:
            self._by_class[kind] = formula_for(kind)
        formula = self._by_class[kind]
        if formula is not None:
            self.formulas[number] = formula

    def enter(self, module: nn.Module, number: int) -> None:
        """Begin a call of a module that has a formula."""
        self._open.append(_Open(module, number, len(self._source.tape), _get_sequence_nr()))

    def leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """End a call of such a module, and add the ops that nobody saw. ``output`` is None if it raised."""
        place = next((place for place in range(len(self._open) - 1, -1, -1) if self._open[place].module is module), -1)
        if place < 0:
            return
        opened = self._open[place]
        del self._open[place:]
        if output is not None:
            self._account(opened, args, kwargs, output)

    def _account(self, opened: _Open, args: Any, kwargs: Any, output: Any) -> None:
        tape = self._source.tape
        outputs = tensors_in(output)
        kind = (
            opened.number,
            tape.signatures[opened.first :].tobytes(),
            *((tensor.shape, tensor.dtype, tensor.requires_grad) for tensor in outputs[:1]),
        )
        if kind in self._complete:
            return
        call, storages = _describe(self._source, opened.module, args, kwargs, outputs)
        nodes = _own_nodes(outputs, opened.sequence)
        context = self._context_of(opened.number)
        try:
            work = self.formulas[opened.number](call)
            absent = missing(work.forward, tape.ops_since(opened.first)) if work is not None else []
        except Exception as error:  # the formula may be the user's
            self._note_failure(context, call, storages, error)
            return
        if not absent and not nodes:
            self._complete.add(kind)
        if work is None:
            return
        self._add(absent, storages, context)
        if nodes and work.backward:
            backward = _Backward(
                number=opened.number,
                ops=work.backward,
                outputs=frozenset(call.outputs),
                gradients=tuple(call.gradients),
                storages=storages,
            )
            _hook_backward(nodes, weakref.ref(self), backward)

    def _context_of(self, module: int) -> int:
        source = self._source
        if _current_graph_task_id() != -1:
            return source._backward_context_of(module, source.function, source.line)
        if source.composites.active:
            source.composites.before_forward_op()
        return source.tape.context(module, source.phase, 0, source.function, source.line)

    def _add(self, ops: Iterable[ModuleOp], storages: dict[Operand, int], context: int) -> None:
        for op in ops:
            read, written = (
                list(dict.fromkeys(self._storage_of(operand, storages) for operand in operands))
                for operands in (op.inputs.values(), op.outputs)
            )
            self._source.tape.append(self._interned(op.signature), context, read, written)

    def _interned(self, op: OpSignature) -> OpSignature:
        return self._ops.setdefault(op, op)

    def _storage_of(self, operand: Operand, storages: dict[Operand, int]) -> int:
        """The number of an operand's storage; memory that no recorded op touched has one of its own, of no bytes."""
        number = storages.get(operand.origin)
        if number is None:
            number = self._source.tape.new_storage(-1 - id(operand.origin), 0, operand)
            storages[operand.origin] = number
        return number

    def _note_failure(self, context: int, call: ModuleCall, storages: dict[Operand, int], error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        op = OpSignature(
            name=FAILED_MODULE,
            outputs=tuple(operand.tensor for operand in call.outputs),
            attributes=(("reason", reason), UNSEEN),
        )
        written = [self._storage_of(operand, storages) for operand in call.outputs]
        self._source.tape.append(self._interned(op), context, (), written)

    def add_backward(self, backward: _Backward, first: int, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Account for a backward pass whose records began with number ``first``, given the gradients of the inputs and
        of the outputs.
        """
        source = self._source
        if source not in open_sources():
            return
        try:
            absent = missing(backward.ops, source.tape.ops_since(first))
            if absent:
                storages = {**backward.storages, **_gradient_storages(source, backward, inputs, outputs)}
                self._add(absent, storages, source._backward_context_of(backward.number, 0))
        except Exception as error:
            source.fail(error)

    @property
    def records(self) -> int:
        """How many records there are so far."""
        return len(self._source.tape)


def _describe(
    source: DispatchSource, module: nn.Module, args: Any, kwargs: Mapping[str, Any], outputs: Sequence[torch.Tensor]
) -> tuple[ModuleCall, dict[Operand, int]]:
    storages: dict[Operand, int] = {}
    known: dict[int, Operand] = {}

    def operand(tensor: torch.Tensor) -> Operand:
        if id(tensor) not in known:
            spec = spec_of(tensor)
            made = known[id(tensor)] = Operand(TensorSpec(spec.shape, spec.dtype), requires_grad=tensor.requires_grad)
            number = source.tape.number_of(tensor, source.context_now())
            if number is not None:
                storages[made] = number
        return known[id(tensor)]

    def taken(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return operand(value)
        return [taken(item) for item in value] if isinstance(value, list | tuple) else value

    given = _named(module, args, kwargs)
    call = ModuleCall(
        module=module,
        arguments={name: taken(value) for name, value in given.items()},
        inputs=tuple(operand(tensor) for value in given.values() for tensor in tensors_in(value)),
        outputs=tuple(operand(tensor) for tensor in outputs),
        parameters={name: operand(parameter) for name, parameter in module.named_parameters()},
    )
    return call, storages


def _named(module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return dict(signature(module.forward).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        return {**{str(place): value for place, value in enumerate(args)}, **kwargs}


def _own_nodes(outputs: Iterable[torch.Tensor], start: int) -> list[Any]:
    seen: set[Any] = set()
    found: dict[int, Any] = {}
    to_do = [tensor.grad_fn for tensor in outputs]
    while to_do:
        node: Any = to_do.pop()
        if node is None or node in seen or not start <= node._sequence_nr() < NO_SEQUENCE:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction) or type(node).__name__ == _CPP_FUNCTION:
            found[node._sequence_nr()] = node
        to_do += [following for following, _ in node.next_functions]
    return [found[number] for number in sorted(found, reverse=True)]


def _hook_backward(nodes: Sequence[Any], works: weakref.ref[ModuleWorks], backward: _Backward) -> None:
    first = [0]

    def before(_grads: Any) -> None:
        if (living := works()) is not None:
            first[0] = living.records

    def after(inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        if (living := works()) is not None:
            living.add_backward(backward, first[0], inputs, outputs)

    nodes[0].register_prehook(before)
    nodes[-1].register_hook(after)


def _gradient_storages(
    source: DispatchSource, backward: _Backward, inputs: Sequence[Any], outputs: Sequence[Any]
) -> dict[Operand, int]:
    found: dict[Operand, int] = {}
    for tensors, of_outputs in ((outputs, True), (inputs, False)):
        left = [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
        for origin, gradient in backward.gradients:
            if (origin in backward.outputs) is not of_outputs:
                continue
            place = next((at for at, tensor in enumerate(left) if tuple(tensor.shape) == origin.shape), None)
            if place is not None:
                number = source.tape.number_of(left.pop(place), source.context_now())
                if number is not None:
                    found[gradient] = number
    return found
