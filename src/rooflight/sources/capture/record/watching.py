"""Watch: the operations of a call as a pattern, at half the cost of a recording and without Dynamo's import."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from hashlib import blake2b
from itertools import count
from typing import Any, Final

import torch
from torch._C import _current_graph_task_id
from torch._C import _storage_id as storage_id  # type: ignore[attr-defined]
from torch.utils._python_dispatch import TorchDispatchMode

from rooflight.sources.capture.record.composites import OnStack
from rooflight.sources.capture.record.schemas import ArgumentKind, OpSchema, schema_of
from rooflight.sources.capture.record.signatures import CallKey, key_former

_SETTINGS: Final = (ArgumentKind.TENSORS, ArgumentKind.ATTRIBUTE, ArgumentKind.GROUP, ArgumentKind.FACTOR)
_SIZES: Final = re.compile(r"SymInt\S* (\w+)")
_MOST_KEYS: Final = 1 << 14
_UNKNOWN: Final = -2
_BORN_BELOW: Final = {"aten::lift_fresh", "aten::lift"}
"""Ops of ``torch.tensor`` on what it has allocated without an op: new memory, whatever was there before."""

_numbers: dict[CallKey, tuple[int, int]] = {}
"""Of each key seen in this process: a number, and one that keys of other sizes share."""
_free: dict[CallKey, int] = {}
_count = count()  # numbers are never used again, even where keys are forgotten


class Watch(OnStack, TorchDispatchMode):
    """Notes which operations run in a ``with`` block in this thread, backward passes included, and how they are wired:
    of each operand, which earlier result or which memory from outside it is.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []
        self.backward = False
        self._exact, self._shape_free = array("q"), array("q")
        self._wiring = array("q")
        self._memory: dict[int, int] = {}
        self._ops: dict[int, Any] = {}
        self._next = count().__next__  # of memory

    def __len__(self) -> int:
        return len(self._exact)

    def digests(self) -> tuple[bytes, bytes]:
        """Equal for two watches of this process that saw the same operations wired alike; the second: but for sizes."""
        exact, free = (
            blake2b(column.tobytes() + self._wiring.tobytes(), digest_size=16).digest()
            for column in (self._exact, self._shape_free)
        )
        return exact, free

    def __torch_dispatch__(
        self, func: Any, types: tuple[type, ...], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **kwargs) if kwargs else func(*args)
        try:
            form = self._ops.get(id(func))
            if form is None:
                form = self._meet(func)
            former, sized, born = form
            key, given, made = former(args, kwargs, out)
            self._note(sized, key, [] if born else given, made)
        except Exception:  # whatever is odd about this call: it is like every other such call of the op
            self._exact.append(_UNKNOWN)
            self._shape_free.append(_UNKNOWN)
        return out

    def _meet(self, func: Any) -> Any:
        schema = schema_of(func)
        self.names.append(schema.name)
        form = self._ops[id(func)] = key_former(schema), _sized(func, schema), schema.name in _BORN_BELOW
        return form

    def _note(self, sized: Sequence[bool], key: CallKey, given: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        if _current_graph_task_id() != -1:
            self.backward = True
        numbers = _numbers.get(key)
        if numbers is None:
            numbers = _interned(key, sized)
        memory, wire, new = self._memory, self._wiring.append, self._next
        self._exact.append(numbers[0])
        self._shape_free.append(numbers[1])
        wire(-1)
        read: list[int] = []
        for tensor in given:
            address = storage_id(tensor)
            number = memory.get(address)
            if number is None:
                number = memory[address] = new()
            read.append(number)
        self._wiring.extend(read)
        for tensor in made:
            address = storage_id(tensor)
            number = memory.get(address)
            if number is None or number not in read:  # just allocated, whatever was at its address before
                number = memory[address] = new()
            wire(number)


def _sized(func: Any, schema: OpSchema) -> tuple[bool, ...]:
    sizes = set(_SIZES.findall(str(func._schema)))  # the types of its arguments have int instead
    return tuple(name in sizes for name, kind in zip(schema.names, schema.kinds, strict=True) if kind in _SETTINGS)


def _interned(key: CallKey, sized: Sequence[bool]) -> tuple[int, int]:
    if len(_numbers) >= _MOST_KEYS:
        _numbers.clear()
        _free.clear()
    form = tuple([_shape_free(part, sized if place == 1 else ()) for place, part in enumerate(key)])
    return _numbers.setdefault(key, (next(_count), _free.setdefault(form, next(_count))))


def _shape_free(part: Any, sized: Sequence[bool]) -> Any:
    if isinstance(part, torch.Size):
        return len(part)
    if not isinstance(part, tuple):
        return part
    return tuple([None if size else setting for setting, size in zip(part, sized, strict=False)])
