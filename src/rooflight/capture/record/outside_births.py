"""OutsideBirths: tensors over memory that torch did not allocate, and which of them a kernel made during the recording.

``torch.from_numpy``, DLPack and ``from_blob`` of an extension make a tensor without an allocation that the dispatcher
sees. Such a storage cannot be resized: that tells it from all others. Most are data: read from a file, sent by
a worker of a data loader, kept by the program. One is taken for a kernel's result only if all of this is true:

- it was first seen while a module, or an autograd function, ran that was given tensors, or in the backward pass of one;
- it is none of what that call was given, of the parameters, buffers and attributes of the modules that ran, or memory
  of another tensor;
- when the outermost module has returned, it is gone, or nothing but the result holds it. What is kept is a constant.
"""

from __future__ import annotations

import gc
import sys
import warnings
import weakref
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from inspect import CO_OPTIMIZED
from mmap import mmap
from pathlib import Path
from types import FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any, Final

import torch
from torch import nn
from torch._C import _current_graph_task_id
from torch.autograd.function import BackwardCFunction, Function
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from rooflight.capture.record.signatures import spec_of
from rooflight.records.assembly import Place
from rooflight.records.tensor import TensorSpec

_MODULE_CALL: Final = nn.Module._call_impl.__code__
_FUNCTION_CALLS: Final = frozenset(
    {
        Function.apply.__func__.__code__,  # type: ignore[attr-defined]
        BackwardCFunction.apply.__code__,
    }
)
_NOT_THE_PROGRAM: Final = (_MODULE_CALL.co_filename, str(Path(__file__).parent))
_INTERFACES: Final = ("__array_interface__", "__cuda_array_interface__")
_BUFFERS: Final = (bytearray, memoryview, array, mmap)
_CLOSED: Final = (str, bytes, int, float, type, ModuleType, nn.Module)
_DEPTH: Final = 5
"""How deep tensors are looked for in what a call was given or gives."""
_TRUSTED: Final = 3
"""From so many tensors of a module on that nothing else held, the next are not looked for: a search takes 0.1 s."""
_MOST: Final = 10_000
"""How many values are looked at there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """A storage first seen when there were ``before`` records, and where in the program. ``made``: it was certainly
    made there.
    """

    storage: int
    before: int
    place: Place
    tensor: TensorSpec
    memory: weakref.ref[torch.UntypedStorage]
    made: bool


class OutsideBirths:
    """What one recording knows of them."""

    __slots__ = ("_pending", "_released", "_unshared", "consumed", "found", "makers", "open_modules", "unread")

    def __init__(self) -> None:
        self.found: list[Birth] = []  # made by a kernel that nobody saw
        self.open_modules: Sequence[tuple[nn.Module, int]] = ()  # the calls that run, outermost first
        self.makers: set[int] = set()  # numbers of modules that may have made one in forward
        self.unread: set[int] = set()  # storages that no recorded op has read yet
        self.consumed: set[int] = set()  # those that a module returned or autograd keeps, be they read or not
        self._pending: dict[int, Birth] = {}
        self._released: Counter[int] = Counter()  # by number of a module, how many of its tensors nothing else held
        self._unshared: set[type] = set()  # classes of modules that were seen to give memory of their own

    def may_be_one(self, memory: torch.UntypedStorage, module: int, *, made: bool) -> bool:
        """Whether a storage that is seen for the first time may be a kernel's result. ``module`` is the number of where
        it is seen; ``made``: it is certain that it has been made just now.
        """
        calls, around = self._calls()
        in_backward = _current_graph_task_id() != -1
        if not (calls or (in_backward and module)):
            return False
        if in_backward and not (module or made):  # it may have been saved in forward
            return False
        given, tensors = _holds([value for call in calls for value in (call.get("args"), call.get("kwargs"))], memory)
        if given or not (tensors or in_backward):
            return False
        stood: list[Any] = [around, *self._attributes()]
        if in_backward:  # a gradient is added to that of a parameter
            parameter = getattr(torch._C._current_autograd_node(), "variable", None)
            stood.append(parameter.grad if parameter is not None else None)
        return not _holds(stood, memory)[0]

    def shared_with(self, memory: torch.UntypedStorage) -> torch.Tensor | None:
        """A tensor of another storage in the same memory, as ``from_numpy(x.numpy())`` has."""
        kind = type(self.open_modules[-1][0]) if self.open_modules else type(None)
        if kind in self._unshared:
            return None
        address = memory.data_ptr()
        for tensor, storage in _live_tensors():
            if storage._cdata != memory._cdata and _is_inside(address, storage):
                return tensor
        self._unshared.add(kind)
        return None

    def add(
        self,
        memory: torch.UntypedStorage,
        tensor: torch.Tensor,
        *,
        storage: int,
        before: int,
        place: Place,
        made: bool,
    ) -> None:
        """A storage that may be a kernel's result got its number."""
        birth = Birth(
            storage=storage,
            before=before,
            place=place,
            tensor=TensorSpec(spec_of(tensor).shape, spec_of(tensor).dtype),
            memory=weakref.ref(memory),
            made=made,
        )
        self._pending[storage] = birth
        self.makers.add(place.module)
        self.unread.add(storage)

    def first_read(self, storage: int, memory: torch.UntypedStorage) -> None:
        """An op reads a storage that was seen before. It is no result if a module that runs holds it by now."""
        self.unread.discard(storage)
        if storage in self._pending and _holds(self._attributes(), memory)[0]:
            del self._pending[storage]

    def settle(self, output: Any = None) -> None:
        """Decide on those seen so far: the outermost module returns ``output``, or the recording ends."""
        if not self._pending:
            return
        pending, self._pending = list(self._pending.values()), {}
        self.unread.clear()
        alive = [birth for birth in pending if birth.memory() is not None]
        doubtful = [birth for birth in alive if self._released[birth.place.module] < _TRUSTED]
        kept = _kept_elsewhere(doubtful, output)
        self._released.update(birth.place.module for birth in doubtful if birth.storage not in kept)
        self.consumed.update(birth.storage for birth in alive)
        self.found += [birth for birth in pending if birth.storage not in kept]

    def _attributes(self) -> list[Any]:
        """What the modules that run hold, and what their code names."""
        return [value for module, _ in self.open_modules for value in (vars(module), type(module).forward)]

    def _calls(self) -> tuple[list[Mapping[str, Any]], list[Any]]:
        """The local variables of the calls of modules and autograd functions that run, innermost first; and the data in
        the variables around the functions that run, global or not.
        """
        outermost = self.open_modules[0][0] if self.open_modules else None
        frame: FrameType | None = sys._getframe(1)
        found: list[Mapping[str, Any]] = []
        around: list[Any] = []
        while frame is not None:
            code = frame.f_code
            is_module = code is _MODULE_CALL
            if code in _FUNCTION_CALLS or (is_module and outermost is not None):
                found.append(_variables(frame))
                if is_module and found[-1]["self"] is outermost:
                    break
            elif not code.co_filename.startswith(_NOT_THE_PROGRAM):
                if code.co_freevars:
                    variables = _variables(frame)
                    around += [variables.get(name) for name in code.co_freevars]
                around += [frame.f_globals.get(name) for name in code.co_names]
            frame = frame.f_back
        return found, [value for value in around if _is_data(value)]


def foreign_memory(value: Any) -> torch.UntypedStorage | None:
    """The storage of a tensor, if torch did not allocate it."""
    try:
        memory: torch.UntypedStorage = value.untyped_storage()
        return None if memory.resizable() else memory
    except (NotImplementedError, RuntimeError):
        return None


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor has memory of its own, and is no wrapper around others."""
    return not is_traceable_wrapper_subclass(tensor)


def may_be_foreign(value: Any) -> bool:
    """Whether torch may not have allocated the memory of a tensor in what a module returns: a quick first look."""
    kind = type(value)
    if kind is torch.Tensor:
        return foreign_memory(value) is not None
    if kind is tuple:
        return any(item is not None and may_be_foreign(item) for item in value)
    return value is not None


def plain_tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in what a call takes or gives, without those that wrap others."""
    return (item for item in _values_in([value]) if isinstance(item, torch.Tensor) and is_plain(item))


def foreign_parts(value: Any) -> Iterator[tuple[torch.Tensor, torch.UntypedStorage]]:
    """Those of ``plain_tensors`` whose memory torch did not allocate."""
    for item in plain_tensors(value):
        memory = foreign_memory(item)
        if memory is not None:
            yield item, memory


def _holds(values: Iterable[Any], memory: torch.UntypedStorage) -> tuple[bool, int]:
    """Whether a storage, or its memory, is in some values; and how many tensors are."""
    address, tensors = memory.data_ptr(), 0
    for item in _values_in(values):
        if isinstance(item, torch.Tensor):
            tensors += 1
            storage = _storage_of(item)
            if storage is not None and (storage._cdata == memory._cdata or _is_inside(address, storage)):
                return True, tensors
        elif _is_inside_array(address, item):
            return True, tensors
    return False, tensors


def _is_inside_array(address: int, item: Any) -> bool:
    """Whether an address is in the memory of an array of numpy, CuPy or the like, or of a buffer."""
    for name in _INTERFACES:
        if hasattr(type(item), name):
            start = int(getattr(item, name)["data"][0])
            return start <= address < start + max(int(getattr(item, "nbytes", 0)), 1)
    if isinstance(item, _BUFFERS) and len(item):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it may be read-only
            return _is_inside(address, torch.frombuffer(item, dtype=torch.uint8).untyped_storage())
    return False


def _around(function: FunctionType) -> list[Any]:
    """The variables around a function that it uses, global or not."""
    values = [function.__globals__.get(name) for name in function.__code__.co_names]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty
            values.append(cell.cell_contents)
    return values


def _is_data(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, *_BUFFERS)) or any(hasattr(type(value), name) for name in _INTERFACES)


def _values_in(values: Iterable[Any]) -> Iterator[Any]:
    """What some values hold: containers and objects with attributes opened, modules not."""
    seen: set[int] = set()
    level: list[Any] = list(values)
    for _ in range(_DEPTH):
        following: list[Any] = []
        for value in level:
            if value is None or isinstance(value, _CLOSED) or id(value) in seen:
                continue
            if len(seen) >= _MOST:
                return
            seen.add(id(value))
            yield value
            following += _inside(value)
        level = following


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, torch.Tensor | GeneratorType):
        return ()
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, FunctionType):
        return _around(value)
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if is_dataclass(value):
        return [getattr(value, name, None) for name in value.__dataclass_fields__]
    return list(getattr(value, "__dict__", {}).values())


def _is_inside(address: int, storage: torch.UntypedStorage) -> bool:
    try:
        start = storage.data_ptr() if storage.device.type != "meta" else 0
    except RuntimeError:  # there is none
        return False
    return bool(start) and start <= address < start + storage.nbytes()


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    try:
        with torch._C.DisableTorchFunction():
            return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def _live_tensors() -> list[tuple[torch.Tensor, torch.UntypedStorage]]:
    kinds = {torch.Tensor}
    new = list(kinds)
    while new:
        new = [kind for each in new for kind in type.__subclasses__(each) if kind not in kinds]
        kinds.update(new)
    tensors = [item for item in gc.get_objects() if type(item) in kinds]
    return [(tensor, storage) for tensor in tensors if (storage := _storage_of(tensor)) is not None]


def _kept_elsewhere(births: Sequence[Birth], output: Any) -> set[int]:
    """Of the storages that are still there, those that something other than an output and autograd holds."""
    if not births:
        return set()
    numbers = {memory._cdata: birth.storage for birth in births if (memory := birth.memory()) is not None}
    held = {id(tensor): (tensor, storage._cdata) for tensor, storage in _live_tensors() if storage._cdata in numbers}
    tensors = [tensor for tensor, _ in held.values()]
    ours = {id(held), id(tensors), *map(id, held.values())}
    for value in _values_in([output]):
        ours.add(id(value))
        if hasattr(value, "__dict__"):
            ours.add(id(vars(value)))
    kept: set[int] = set()
    if gc.get_freeze_count():  # objects from before are out of sight
        seen = {numbers[address] for _, address in held.values()}
        kept = {birth.storage for birth in births if not birth.made and birth.storage not in seen}
    for frame in _frames():
        if frame.f_code is _MODULE_CALL:  # its result is a variable of a function inside it too
            ours.update(map(id, getattr(_variables(frame).get("inner"), "__closure__", None) or ()))
    for holder in gc.get_referrers(*tensors) if tensors else ():
        if id(holder) not in ours and not isinstance(holder, FrameType):
            kept |= {numbers[held[id(value)][1]] for value in gc.get_referents(holder) if id(value) in held}
    for frame in _frames():
        if not frame.f_code.co_filename.startswith(_NOT_THE_PROGRAM):
            kept |= {numbers[held[id(value)][1]] for value in _variables(frame).values() if id(value) in held}
    return kept


def _frames() -> Iterator[FrameType]:
    for frame in sys._current_frames().values():
        each: FrameType | None = frame
        while each is not None:
            yield each
            each = each.f_back


def _variables(frame: FrameType) -> dict[str, Any]:
    """The local variables of a frame. Before Python 3.13 it keeps the answer, and so the tensors in it."""
    snapshot = frame.f_locals
    variables = dict(snapshot)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & CO_OPTIMIZED:
        snapshot.clear()
    return variables
