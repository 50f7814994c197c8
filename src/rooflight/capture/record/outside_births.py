"""OutsideBirths: tensors over memory that torch did not allocate, and which of them a kernel made during the recording.

``torch.from_numpy``, DLPack and ``from_blob`` of an extension make a tensor without an allocation that the dispatcher
sees. Such a storage cannot be resized: that tells it from all others. It is an input if

- it was first seen outside modules, their backward pass and optimizers, or the outermost module was given it, or no
  tensor at all;
- or it is an attribute of a module that runs, or the program still holds it, other than in what the module returned,
  when that has returned: it was there before, or is a constant that was made once.

Everything else over such memory is a kernel's result.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch._C import _current_graph_task_id
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from rooflight.capture.record.signatures import spec_of
from rooflight.records.assembly import Place
from rooflight.records.record import Direction
from rooflight.records.tensor import TensorSpec

_CLOSED: Final = (str, bytes, int, float, type, ModuleType, FunctionType, GeneratorType, nn.Module)
_DEPTH: Final = 5
"""How deep tensors are looked for in what a call was given or gives."""
_MOST: Final = 10_000
"""How many values are looked at there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """A storage first seen when there were ``before`` records, and where in the program. ``tensors`` are the one seen
    and the one of which it is a view.
    """

    storage: int
    before: int
    place: Place
    tensor: TensorSpec
    memory: weakref.ref[torch.UntypedStorage]
    tensors: tuple[weakref.ref[torch.Tensor], ...]


class OutsideBirths:
    """What one recording knows of them."""

    def __init__(self) -> None:
        self.found: list[Birth] = []  # made by a kernel that nobody saw
        self.open_modules: Sequence[tuple[nn.Module, int]] = ()  # the calls that run, outermost first
        self.consumed: set[int] = set()  # storages that a module returned or autograd keeps, be they read or not
        self._pending: dict[int, Birth] = {}

    def may_be_one(self, memory: torch.UntypedStorage, place: Place, *, made: bool) -> bool:
        """Whether a storage that is first seen at a place may be a kernel's result; ``made``: it was made just now."""
        if _current_graph_task_id() == -1:
            inside = bool(self.open_modules) or place.direction == Direction.OPTIMIZER
            return inside and not self._is_state(memory)
        leaf = getattr(torch._C._current_autograd_node(), "variable", None)
        if leaf is not None and leaf.grad is not None and _address(leaf.grad) == memory._cdata:
            return False  # a gradient is added to it
        return bool(place.module or made) and not self._is_state(memory)

    def add(
        self, memory: torch.UntypedStorage, tensor: torch.Tensor, *, storage: int, before: int, place: Place
    ) -> None:
        """A storage that may be a kernel's result got its number."""
        spec, seen = spec_of(tensor), (tensor, tensor._base)
        self._pending[storage] = Birth(
            storage=storage,
            before=before,
            place=place,
            tensor=TensorSpec(spec.shape, spec.dtype),
            memory=weakref.ref(memory),
            tensors=tuple(weakref.ref(each) for each in seen if each is not None),
        )

    def read(self, storage: int, memory: torch.UntypedStorage) -> None:
        """An op reads a storage that was seen before. It is no result if it has become a parameter by now."""
        if storage in self._pending and self._is_state(memory):
            del self._pending[storage]

    def settle(self, given: Any, output: Any) -> None:
        """Decide on those whose answer is known when the outermost module returns ``output``."""
        if not self._pending:
            return
        inputs, results = ({_address(tensor) for tensor in plain_tensors(value)} for value in (given, output))
        for birth in list(self._pending.values()):
            memory = birth.memory()
            address = None if memory is None else memory._cdata
            is_gradient = birth.place.direction != Direction.FORWARD
            if address not in inputs and (inputs or is_gradient):
                if address is None or address in results:
                    self.found.append(birth)
                elif torch.is_grad_enabled() or is_gradient:
                    continue  # the program holds it, or autograd: known when the backward pass has run
            del self._pending[birth.storage]

    def finish(self) -> None:
        """Decide on all seen so far: the recording ends."""
        held = _held(self._pending.values()) if self._pending else ()
        self.found += [birth for birth in self._pending.values() if birth.storage not in held]
        self.consumed.update(birth.storage for birth in self._pending.values() if birth.memory() is not None)
        self._pending.clear()

    def _is_state(self, memory: torch.UntypedStorage) -> bool:
        """Whether a storage is that of an attribute of a module that runs, or in the memory of its arrays."""
        start = memory.data_ptr()
        for module, _ in self.open_modules:
            for value in (*module._parameters.values(), *module._buffers.values(), *vars(module).values()):
                if isinstance(value, torch.Tensor) and _address(value) == memory._cdata:
                    return True
                if isinstance(value, np.ndarray) and 0 <= start - value.ctypes.data < value.nbytes:
                    return True
        return False


def foreign_memory(value: Any) -> torch.UntypedStorage | None:
    """The storage of a tensor, if torch did not allocate it."""
    try:
        memory: torch.UntypedStorage = value.untyped_storage()
        return None if memory.resizable() else memory
    except (NotImplementedError, RuntimeError):
        return None


def may_be_foreign(value: Any) -> bool:
    """Whether torch may not have allocated the memory of a tensor in what a module returns: a quick first look."""
    kind = type(value)
    if kind is torch.Tensor:
        return foreign_memory(value) is not None
    if kind is tuple:
        return any(item is not None and may_be_foreign(item) for item in value)
    return value is not None


def plain_tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in what a call takes or gives, without those that wrap others: containers and objects with attributes
    are opened, modules not.
    """
    seen: set[int] = set()
    level: list[Any] = [value]
    for _ in range(_DEPTH):
        following: list[Any] = []
        for item in level:
            if item is None or isinstance(item, _CLOSED) or id(item) in seen:
                continue
            if len(seen) >= _MOST:
                return
            seen.add(id(item))
            if not isinstance(item, torch.Tensor):
                following += _inside(item)
            elif not is_traceable_wrapper_subclass(item):
                yield item
        level = following


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset):
        return value
    named = (getattr(value, "__dict__", ()), getattr(value, "__slots__", ()))
    return [getattr(value, name, None) for names in named for name in names]


def _address(tensor: torch.Tensor) -> int | None:
    try:
        with torch._C.DisableTorchFunction():
            return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def _held(births: Iterable[Birth]) -> set[int]:
    """The storages of tensors that something other than autograd and functions that run holds."""
    seen = [(each(), birth.storage) for birth in births for each in birth.tensors]
    numbers = {id(tensor): storage for tensor, storage in seen if tensor is not None}
    alive = [tensor for tensor, _ in seen if tensor is not None]
    ours = {id(alive), *map(id, seen)}
    holders = gc.get_referrers(*alive) if alive else ()
    return {
        numbers[id(value)]
        for holder in holders
        if id(holder) not in ours and not isinstance(holder, FrameType)
        for value in gc.get_referents(holder)
        if id(value) in numbers
    }
