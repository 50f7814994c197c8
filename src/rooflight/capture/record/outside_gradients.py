"""OutsideGradients: gradients that kernels outside the dispatcher make, in memory that torch did not allocate.

The op that reads such a gradient first belongs to another module than the kernel. So if a module made a tensor in that
way, hooks on the autograd functions behind what it returns look at the gradients when these have run.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import wraps
from threading import Lock
from typing import Any, Final

import torch
from torch.autograd.function import BackwardCFunction

from rooflight.capture.record.composites import open_sources
from rooflight.capture.record.dispatch import DispatchSource
from rooflight.capture.record.outside_births import foreign_parts, is_plain, plain_tensors

_CPP_FUNCTION: Final = "CppFunction"
_MOST_NODES: Final = 64
"""How many autograd nodes behind a module's results are looked at."""


class OutsideGradients:
    """The autograd functions of one recording that may return such gradients."""

    def __init__(self, source: DispatchSource) -> None:
        self._source = source
        self._hooked: set[int] = set()  # sequence numbers of nodes

    def hook(self, output: Any, module: int) -> None:
        """Look, in backward, at the gradients of the autograd functions behind what a module returns; ``module`` is its
        number.
        """
        to_do = [tensor.grad_fn for tensor in plain_tensors(output)]
        seen: set[Any] = set()
        while to_do and len(seen) < _MOST_NODES:
            node: Any = to_do.pop()
            if node is None or node in seen or node._sequence_nr() in self._hooked:
                continue
            seen.add(node)
            if isinstance(node, BackwardCFunction) or type(node).__name__ == _CPP_FUNCTION:
                self._hooked.add(node._sequence_nr())
                node.register_hook(_looking(weakref.ref(self), module))
            to_do += [following for following, _ in node.next_functions]

    def add(self, made: Sequence[Any], given: Sequence[Any], module: int) -> None:
        """An autograd function has turned gradients of its results into those of its inputs."""
        source = self._source
        if source not in open_sources():
            return
        try:
            passed_on = {memory._cdata for _, memory in foreign_parts(given)}
            context = source._backward_context_of(module, 0)
            for tensor, memory in foreign_parts(made):
                if memory._cdata not in passed_on:
                    source.tape.foreign_storage(memory, tensor, context)
        except Exception as error:
            source.fail(error)


def _looking(gradients: weakref.ref[OutsideGradients], module: int) -> Any:
    """A hook of a node, which does nothing once the recording is gone."""

    def look(inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        if (living := gradients()) is not None:
            living.add(inputs, outputs, module)

    return look


_lock = Lock()
_open: set[DispatchSource] = set()


def watch_exports(source: DispatchSource) -> None:
    """Begin to take note."""
    with _lock:
        _open.add(source)
        torch.Tensor.numpy = _numpy  # type: ignore[method-assign, assignment]


def stop_watching_exports(source: DispatchSource) -> None:
    """Undo ``watch_exports``; the last recording to do so takes the attribute away, which torch has in a base class."""
    with _lock:
        _open.discard(source)
        if not _open and "numpy" in torch.Tensor.__dict__:
            del torch.Tensor.numpy


@wraps(torch._C.TensorBase.numpy)
def _numpy(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if is_plain(self):
        for source in open_sources():
            try:
                source.tape.exported(self)
            except Exception as error:
                source.fail(error)
    return torch._C.TensorBase.numpy(self, *args, **kwargs)
