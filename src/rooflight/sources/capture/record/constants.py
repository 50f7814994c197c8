"""Constants: tensors that a program makes of shapes and numbers alone, and which scores they hide where they mask some.

On meta no tensor has values, and elsewhere those of a mask may be data. So the ops that make a constant are noted, and
run on the CPU if it masks scores. A module's buffer is what it holds, if it holds something. What a mask hides becomes
an attribute of the op that it is given to.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from math import prod
from typing import Any, Final, NamedTuple, TypeVar

import torch
from torch._C import _storage_id  # type: ignore[attr-defined]
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from rooflight.records.signature import HIDDEN, LENGTHS, ZEROED, AttributeValue, OpSignature
from rooflight.sources.capture.record.masks import FLEX, LOWEST, hidden_by_blocks, may_pad, padded, plainly
from rooflight.sources.capture.record.schemas import OpSchema, known_int, schema_of
from rooflight.sources.capture.record.signatures import storage_of, tensors_in
from rooflight.sources.capture.record.tape import Tape


def _names(text: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in text.split())


_SHAPED: Final = _names("ones_like zeros_like full_like new_ones new_zeros new_full empty_like new_empty")
"""These take of a tensor only its shape and dtype."""

_MAKING: Final = _SHAPED | _names(
    "empty arange ones zeros full scalar_tensor eye linspace tril triu tril_ triu_ tril_indices triu_indices "
    "eq ne lt le gt ge logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not "
    "__and__ __or__ __xor__ logical_not_ bitwise_not_ bitwise_and_ bitwise_or_ add sub rsub mul div add_ sub_ mul_ "
    "floor_divide remainder neg abs pow minimum maximum clamp where masked_fill masked_fill_ fill_ zero_ copy_ "
    "clone _to_copy cat stack repeat cumsum index index_select any all"
)
_MASKING: Final = _names("masked_fill masked_fill_ where add add_ sub sub_")

_MOST_ELEMENTS: Final = 1 << 26  # of a constant that is made again to look at it, or of a part of it
_MOST_PARTS: Final = 1 << 5
_BY_ELEMENT: Final = _names(
    "eq ne lt le gt ge logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not "
    "__and__ __or__ __xor__ add sub mul where masked_fill clone _to_copy"
)
"""Of these, rows of the result are made of the same rows of what they are given."""

_Attributes = tuple[tuple[str, AttributeValue], ...]
_Found = TypeVar("_Found")


class _View(NamedTuple):
    """A tensor of a constant's storage, or of any storage if only its shape matters."""

    made: _Made | None
    dtype: torch.dtype
    shape: Sequence[int]
    strides: Sequence[int]
    start: int = 0

    def values(self, *, distinct: bool = False) -> torch.Tensor:
        """Its elements; ``distinct``: an expanded dimension is one long."""
        if self.made is None:
            return torch.empty(self.shape, dtype=self.dtype, device="cpu")
        flat = self.made.values()
        if flat.dtype is not self.dtype:
            raise _UnknownError
        pairs = zip(self.shape, self.strides, strict=True)
        shape = [min(size, 1) if distinct and not stride else size for size, stride in pairs]
        return flat.as_strided(shape, self.strides, self.start)

    def rows(self, first: int, end: int) -> torch.Tensor:
        """These rows of a matrix that all of a batch shares, made of no more than the same rows of what makes it."""
        made, rows = self.made, self.shape[-2] if len(self.shape) > 1 else 1
        result = None if made is None else made.result
        if rows == 1 or made is None or result is None or prod(result.shape) <= _MOST_ELEMENTS:
            values = self.values(distinct=True)
            return values if rows == 1 else values[..., first:end, :]
        itself = (*self.shape[-2:], *self.strides[-2:], self.start) == (*result.shape[-2:], *result.strides[-2:], 0)
        if not itself or made.func._schema.name not in _BY_ELEMENT or prod(result.shape[:-2]) > 1:
            raise _UnknownError
        given = [each.rows(first, end) if isinstance(each, _View) else each for each in made.args]
        out: torch.Tensor = getattr(made.func, "_op", made.func)(*given, **_filled(made.kwargs))
        return out


@dataclass(slots=True, eq=False)
class _Made:
    """What a storage holds: the result of an op, or what it writes into an argument; without an op, a buffer's."""

    func: Any = None
    args: Any = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    result: _View | None = None
    buffer: tuple[torch.Tensor, int] | None = None
    hides: dict[tuple[object, ...], _Attributes] = field(default_factory=dict)

    def values(self) -> torch.Tensor:
        """All of the storage, made again."""
        if self.buffer is not None:
            tensor, version = self.buffer
            busy = tensor.is_cuda and torch.cuda.is_current_stream_capturing()
            if busy or _version(tensor) != version:
                raise _UnknownError
            held: torch.Tensor = _flat(tensor.detach()).cpu()
            return held
        run: Callable[..., torch.Tensor] = getattr(self.func, "_op", self.func)
        if self.result is None:  # in place
            made: torch.Tensor = self.args[0].made.values().clone()
            run(self.args[0]._replace(made=_Made(buffer=(made, _version(made)))).values(), *_filled(self.args[1:]))
            return made
        if prod(self.result.shape) > _MOST_ELEMENTS:
            raise _UnknownError
        out = run(*_filled(self.args), **_filled(self.kwargs))
        if out.stride() != self.result.strides or out.shape != self.result.shape:
            raise _UnknownError
        return _flat(out)


_of_fakes: Final[list[Callable[[torch.Tensor], torch.Tensor | None]]] = [lambda _: None]


def know_fakes(values: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
    """What fake tensors hold is told by ``values`` from here on, None where it is not known."""
    _of_fakes[0] = values


class _UnknownError(Exception):
    """What a tensor holds is not known."""


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)


def _filled(value: Any) -> Any:
    if isinstance(value, _View):
        return value.values()
    if isinstance(value, dict):
        return {key: _filled(each) for key, each in value.items()}
    return type(value)(map(_filled, value)) if isinstance(value, list | tuple) else value


class Constants:
    """The constants of one recording; ``before``: those that are known already."""

    def __init__(self, before: Constants | None = None) -> None:
        known = before._made.items() if before is not None else ()
        # by address of the storage
        self._made: dict[int, tuple[weakref.ref[torch.UntypedStorage], _Made]] = {
            address: made for address, made in known if made[0]() is not None
        }

    def clear(self) -> None:
        """Forget all."""
        self._made.clear()

    def hold(self, buffers: Iterable[torch.Tensor | None]) -> None:
        """Let the buffers of a module be constants where they have values."""
        for buffer in buffers:
            if (
                buffer is not None
                and type(buffer) in (torch.Tensor, torch.nn.Buffer)
                and buffer.dim() > 1
                and not buffer.is_meta
            ):
                self._keep(buffer, _Made(buffer=(buffer, _version(buffer))))

    def around(self, func: Any, schema: OpSchema, tape: Tape, reader: Callable[..., None]) -> Callable[..., None]:
        """The function to call instead of the reader of an op on ``tape``."""
        if schema.name.startswith(FLEX):
            return self._around_blocks(tape, reader)
        if {"cum_seq_q", "cum_seq_k"} <= set(schema.names):
            return self._around_sequences(schema, tape, reader)
        makes, masks = schema.name in _MAKING, schema.name in _MASKING
        if not (makes or schema.mutated) or not schema.names:
            return reader
        always = schema.name in _SHAPED or schema.mutated not in ((), (0,))

        def read(args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any, context: int) -> None:
            met = any(map(self._is_made, args[:3]))
            hidden = self._hidden(schema, args, kwargs or {}) if masks and (met or may_pad(args)) else ()
            reader(args, kwargs, out, context)
            if hidden:
                tape.refine(hidden)
            if met or always or not args or not isinstance(args[0], torch.Tensor):
                self.note(func, schema, args, kwargs or {}, out)

        return read

    def _around_blocks(self, tape: Tape, reader: Callable[..., None]) -> Callable[..., None]:
        def read(args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any, context: int) -> None:
            reader(args, kwargs, out, context)
            fake = isinstance(args[0], FakeTensor)  # the mode that knows its values is to see what the mask computes
            with nullcontext() if fake else plainly():
                if hidden := hidden_by_blocks(args, self._count):
                    tape.refine(hidden)

        return read

    def _around_sequences(self, schema: OpSchema, tape: Tape, reader: Callable[..., None]) -> Callable[..., None]:
        def read(args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any, context: int) -> None:
            reader(args, kwargs, out, context)
            given = dict(zip(schema.names, schema.positional(args, kwargs or {}), strict=True))
            ends = [given["cum_seq_q"], given["cum_seq_k"]]
            known = [self._count(each) for each in ends if each is not None and each.numel() > 1]
            if len(known) == 2 and known[0] is not None and known[1] is not None:
                pairs = torch.stack([each.diff().long() for each in known if each is not None], 1)
                tape.refine(((LENGTHS, tuple(pairs[pairs.any(1)].flatten().tolist())),))

        return read

    def note(self, func: Any, schema: OpSchema, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """An op has run: what it wrote is constant if all is that it read."""
        made = self._constant(func, schema, args, kwargs, out) if schema.name in _MAKING else None
        if made is not None:
            self._keep(args[0] if schema.mutated else out, made)
        elif self._made:
            for index in schema.mutated:
                for tensor in filter(self._is_made, tensors_in(schema.positional(args, kwargs)[index])):
                    del self._made[_storage_id(tensor)]

    def with_mask(self, ops: tuple[OpSignature, OpSignature], mask: Any) -> tuple[OpSignature, OpSignature]:
        """A call of attention that was given ``mask``, and its backward, with what that hides."""
        if not isinstance(mask, torch.Tensor):
            return ops
        view = self._view(mask) if self._made else None
        hidden = padded(mask, _is_low) if view is None else _hides(view, HIDDEN, _is_low, (_is_low,))
        return (_refined(ops[0], hidden), _refined(ops[1], hidden)) if hidden else ops

    def _count(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The elements of a tensor of a block mask, which has values or is constant; None of others."""
        if isinstance(tensor, FakeTensor):
            known: torch.Tensor | None = _of_fakes[0](tensor)
            return known
        if not tensor.is_meta:
            return None if tensor.is_cuda and torch.cuda.is_current_stream_capturing() else tensor.detach().cpu()
        view = self._view(tensor)
        return None if view is None else _looked_at(view.values)

    def _keep(self, tensor: torch.Tensor, made: _Made) -> None:
        storage = storage_of(tensor)
        if storage is not None:
            self._made[storage._cdata] = weakref.ref(storage), made

    def _is_made(self, value: Any) -> bool:
        try:
            address = _storage_id(value) if isinstance(value, torch.Tensor) else 0
        except (RuntimeError, NotImplementedError):  # another layout
            return False
        known = self._made.get(address)
        if known is not None and known[0]() is None:  # another storage is there now
            del self._made[address]
            return False
        return known is not None

    def _view(self, tensor: torch.Tensor) -> _View | None:
        if not self._is_made(tensor) or tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
            return None
        start = known_int(tensor.storage_offset())
        return _View(self._made[_storage_id(tensor)][1], tensor.dtype, tensor.shape, tensor.stride(), start)

    def _constant(
        self, func: Any, schema: OpSchema, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> _Made | None:
        def taken(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                view = self._view(value)
                if view is None and schema.name in _SHAPED:
                    return _View(None, value.dtype, tuple(value.shape), ())
                if view is None:
                    raise _UnknownError
                return view
            return type(value)(map(taken, value)) if type(value) in (list, tuple) else value

        in_place = schema.mutated == (0,) and not kwargs
        if not isinstance(out, torch.Tensor) or (schema.mutated and not in_place):
            return None
        try:
            given = taken(args)
            settings = {name: torch.device("cpu") if name == "device" else taken(kwargs[name]) for name in kwargs}
        except _UnknownError:
            return None
        result = None if schema.mutated else _View(None, out.dtype, tuple(out.shape), out.stride())
        return _Made(func, given, settings, result)

    def _hidden(self, schema: OpSchema, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Attributes:
        """What an op hides of the scores that it is given, as attributes; empty where that is not known."""
        first, second, third = (*schema.positional(args, kwargs), None)[:3]
        how: tuple[object, ...] = ()
        scores, mask = first, second
        of: Callable[[torch.Tensor], torch.Tensor] = _is_true
        if schema.name.startswith("aten::masked_fill"):
            fill = self._number(third)
        elif schema.name == "aten::where":
            fill, mask, scores, of = self._number(third), first, second, _is_false
            if fill is None:
                fill, scores, of = self._number(second), third, _is_true
            how = (of,)
        else:
            fill, factor = float("-inf"), float(third or 0) * (-1 if "sub" in schema.name else 1)
            if self._is_made(first):
                scores, mask, factor = second, first, 1.0
            if abs(factor) != 1:  # an optimizer's step
                return ()
            of = _lowered(factor)
            how = (factor,)
        if not isinstance(mask, torch.Tensor) or fill is None or self._is_made(scores):
            return ()
        if not (isinstance(scores, torch.Tensor) and scores.is_floating_point()):
            return ()  # positions, not scores
        view = self._view(mask)
        if view is None:
            return padded(mask, of) if fill <= LOWEST else ()
        if fill == 0:
            return _hides(view, ZEROED, of, how)
        return _hides(view, HIDDEN, of if fill <= LOWEST else torch.zeros_like, (*how, fill <= LOWEST))

    def _number(self, value: Any) -> float | None:
        """The one number that a fill is, or that all elements of it are at most where that hides; None of others."""
        if not isinstance(value, torch.Tensor):
            return float(value) if isinstance(value, int | float) else None
        if value.dim() == 0 and value.device.type == "cpu" and type(value) is torch.Tensor:
            with plainly():
                return float(value)
        view = self._view(value)
        found = None if view is None else _looked_at(lambda: view.values(distinct=True))
        if found is None or not found.numel() or found.is_complex():
            return None
        lowest, highest = float(found.min()), float(found.max())
        return highest if lowest == highest or highest <= LOWEST else None


@lru_cache(maxsize=1 << 12)
def _refined(op: OpSignature, attributes: _Attributes) -> OpSignature:
    """One object for equal ones, since a tape knows a signature by its identity."""
    return replace(op, attributes=(*op.attributes, *attributes))


def _is_low(tensor: torch.Tensor) -> torch.Tensor:
    return ~tensor if tensor.dtype is torch.bool else tensor <= LOWEST


def _is_true(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bool()


@lru_cache(maxsize=1 << 8)
def _lowered(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """One object for equal factors: what a mask hides is remembered by it."""
    return partial(_is_lowered, factor)


def _is_lowered(factor: float, tensor: torch.Tensor) -> torch.Tensor:
    return tensor * factor <= LOWEST


def _is_false(tensor: torch.Tensor) -> torch.Tensor:
    return ~tensor.bool()


def _checksum(counts: torch.Tensor) -> int:
    weights = torch.arange(1, len(counts) + 1, device="cpu") * 2654435761 % (1 << 31)  # Knuth's multiplicative hash
    return int((counts * weights % (1 << 31)).sum())


def _hides(view: _View, name: str, of: Callable[[torch.Tensor], torch.Tensor], how: tuple[object, ...]) -> _Attributes:
    """Of a mask [..., queries, keys]: pairs hidden, all pairs, keys hidden from all queries, all keys. ``of`` maps it
    to what it hides, and equal ``how`` and ``name`` mean that it does so alike.
    """
    assert view.made is not None
    key = name, how, tuple(view.shape), tuple(view.strides), view.start
    if key not in view.made.hides:
        counted = _looked_at(lambda: _counts(view, of))
        found: _Attributes = ()
        if counted is not None and counted[0].numel() and counted[1].numel():
            with plainly():
                by_query, by_key = counted
                which = _checksum(by_key) + 4 * _checksum(by_query)
                hidden_keys = int((by_key == len(by_query)).sum())
                counts = int(by_key.sum()), len(by_query) * len(by_key), hidden_keys, len(by_key), which
            found = ((name, counts),)
        view.made.hides[key] = found
    return view.made.hides[key]


def _counts(view: _View, of: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """By query how many keys are hidden, and by key from how many queries; a large mask is looked at part by part."""
    elements = prod(size if stride else 1 for size, stride in zip(view.shape, view.strides, strict=True))
    parts = [view.values(distinct=True)] if elements <= _MOST_ELEMENTS else _parts(view, elements)
    by_query, by_key = [], torch.zeros((), dtype=torch.int64)
    for part in parts:
        found = of(part)
        pairs = found.reshape(-1, found.shape[-1] if found.dim() else 1)
        by_query.append(pairs.sum(1))
        by_key = by_key + pairs.sum(0)
    return torch.cat(by_query), by_key


def _parts(view: _View, elements: int) -> Iterator[torch.Tensor]:
    if elements > _MOST_ELEMENTS * _MOST_PARTS:
        raise _UnknownError
    rows = view.shape[-2]
    step = max(1, _MOST_ELEMENTS * rows // elements)
    for first in range(0, rows, step):
        yield view.rows(first, min(first + step, rows))


def _looked_at(look: Callable[[], _Found]) -> _Found | None:
    try:
        with plainly():
            return look()
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, _UnknownError):
        return None


_noted = Constants()
"""What ``noting_constants`` saw: of a storage that is still there, until the next one."""


def known_constants() -> Constants:
    """The constants of a recording that begins."""
    return Constants(_noted)


class _Noting(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(func, torch._ops.OpOverload):
            _noted.note(func, schema_of(func), args, kwargs or {}, out)
        return out


@contextmanager
def noting_constants() -> Iterator[None]:
    """Note the constants that are made in the block, as a model's buffers on meta, for recordings after it."""
    _noted.clear()
    with _Noting():
        yield
