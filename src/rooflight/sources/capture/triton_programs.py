"""What a Triton kernel does, counted by its own code: some of its programs run in Python on blocks that have shapes and
no values. Loads, stores and products of blocks are counted; loops and branches of sizes and program numbers are taken
as they are.

A branch that depends on what was loaded has no answer: such a kernel is not counted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import ModuleType, SimpleNamespace
from typing import Any, Final

_MOST_PROGRAMS: Final = 32  # that run, of those of a launch
_running: Final[list[_Count]] = []


class UnknownError(Exception):
    """What a kernel does depends on values."""


@dataclass(slots=True)
class _Count:
    program: tuple[int, ...]
    grid: tuple[int, ...]
    flops: int = 0
    read: dict[int, int] = field(default_factory=dict)  # bytes by the number of a pointer
    written: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Work:
    """Of one launch: FLOPs of products, and bytes read and written by pointer, no more than each has."""

    flops: int
    read: tuple[tuple[int, int], ...]
    written: tuple[tuple[int, int], ...]


class Dtype:
    """A dtype, and what kernels ask of one."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.primitive_bitwidth = name, size * 8
        self.element_ty = self.scalar = self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dtype) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __getattr__(self, name: str) -> Callable[..., bool]:
        if not name.startswith("is_"):
            raise AttributeError(name)
        return lambda *_: name.removeprefix("is_") in self.name


_SIZES: Final = {
    "int1": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "float8e4nv": 1, "float8e5": 1, "float8e4b15": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
DTYPES: Final = {name: Dtype(name, size) for name, size in _SIZES.items()}
_OF_TORCH: Final = {"float8_e4m3fn": "float8e4nv", "float8_e5m2": "float8e5", "bool": "int1"}


def dtype_of(name: str) -> Dtype:
    """That of a tensor, by torch's name."""
    return DTYPES.get(_OF_TORCH.get(name, name), DTYPES["float32"])


class Block:
    """A block of values, or of pointers into the argument ``pointer``, of which only the shape is known."""

    def __init__(self, shape: Sequence[int] = (), dtype: Dtype = DTYPES["int32"], pointer: int | None = None) -> None:
        self.shape, self.dtype, self.pointer = tuple(shape), dtype, pointer

    numel = property(lambda self: prod(self.shape))
    T = property(lambda self: self.with_shape(self.shape[::-1]))
    type = property(lambda self: self.dtype)

    def with_shape(self, shape: Sequence[int]) -> Block:
        """The same, shaped otherwise."""
        return Block(shape, self.dtype, self.pointer)

    def __getitem__(self, key: Any) -> Block:
        left, shape = list(self.shape), []
        for each in key if isinstance(key, tuple) else (key,):
            shape.append(1 if each is None else left.pop(0))
        return self.with_shape([*shape, *left])

    def to(self, dtype: Any, *_: Any, **__: Any) -> Block:
        """Of another dtype."""
        return Block(self.shape, dtype if isinstance(dtype, Dtype) else self.dtype)

    cast = to

    def __bool__(self) -> bool:
        raise UnknownError

    __index__ = __int__ = __float__ = __bool__

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: getattr(LANGUAGE, name)(self, *args, **kwargs)


def _together(*values: Any, **_: Any) -> Any:
    """What an op makes of blocks and numbers: a block of their common shape."""
    blocks = [each for each in values if isinstance(each, Block)]
    rank = max((len(each.shape) for each in blocks), default=0)
    padded = [(1,) * (rank - len(each.shape)) + each.shape for each in blocks]
    pointer = next((each.pointer for each in blocks if each.pointer is not None), None)
    dtypes = sorted((each.dtype for each in blocks), key=lambda each: ("float" in each.name, each.primitive_bitwidth))
    dtype = next((each.dtype for each in blocks if each.pointer is not None), (dtypes or [DTYPES["int32"]])[-1])
    return Block([max(sizes) for sizes in zip(*padded, strict=True)], dtype, pointer)


_OPERATORS: Final = (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "and",
    "rand", "or", "ror", "xor", "rxor", "lshift", "rshift", "eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "invert",
)  # fmt: skip
for _name in _OPERATORS:
    setattr(Block, f"__{_name}__", _together)
Block.__hash__ = object.__hash__  # type: ignore[method-assign]


def _load(pointer: Any, *args: Any, **_: Any) -> Any:
    if isinstance(pointer, Descriptor):
        return pointer.load(*args)
    _add(_running[-1].read, pointer)
    return Block(pointer.shape, pointer.dtype)


def _store(pointer: Any, *args: Any, **_: Any) -> Any:
    if isinstance(pointer, Descriptor):
        return pointer.store(*args)
    _add(_running[-1].written, pointer)
    return Block(pointer.shape, pointer.dtype)


def _add(count: dict[int, int], block: Block) -> None:
    if block.pointer is None:
        raise UnknownError
    count[block.pointer] = count.get(block.pointer, 0) + block.numel * block.dtype.primitive_bitwidth // 8


def _dot(a: Block, b: Block, acc: Any = None, *_: Any, **__: Any) -> Block:
    shape = (*a.shape[:-1], b.shape[-1])
    _running[-1].flops += 2 * prod(shape) * a.shape[-1]
    return Block(shape, acc.dtype if isinstance(acc, Block) else DTYPES["float32"])


def _reduced(block: Any, axis: int | None = None, *_: Any, keep_dims: bool = False, **__: Any) -> Any:
    if axis is None:
        return Block((), block.dtype)
    shape = list(block.shape)
    shape[axis : axis % len(shape) + 1] = [1] if keep_dims else []
    return Block(shape, block.dtype)


def _swizzle2d(i: int, j: int, size_i: int, size_j: int, size_g: int) -> tuple[int, int]:
    group, place = divmod(i * size_j + j, size_g * size_j)
    first = group * size_g
    height = min(size_i - first, size_g)
    return first + place % height, place // height


def _least(*values: Any, **_: Any) -> Any:
    return min(values) if all(isinstance(each, int | float) for each in values) else _together(*values)


def _most(*values: Any, **_: Any) -> Any:
    return max(values) if all(isinstance(each, int | float) for each in values) else _together(*values)


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _shaped(shape: Any, dtype: Any = DTYPES["float32"]) -> Block:
    return Block(shape if isinstance(shape, list | tuple) else [shape], dtype)


class Descriptor:
    """A tensor that is moved block by block: ``TensorDescriptor``, and what kernels make of pointers."""

    def __init__(self, base: Any, shape: Any = (), strides: Any = (), block_shape: Any = (), **_: Any) -> None:
        self.base, self.shape, self.strides, self.block_shape = base, shape, strides, tuple(block_shape)

    @classmethod
    def from_tensor(cls, tensor: Any, block_shape: Any, *_: Any) -> Descriptor:
        """As Triton makes one."""
        return cls(tensor, tensor.shape, tensor.stride(), block_shape)

    @property
    def dtype(self) -> Any:
        """That of its elements."""
        return self.base.dtype

    def _block(self) -> Block:
        return Block(self.block_shape, self.base.dtype, self.base.pointer)

    def load(self, *_: Any) -> Block:
        """A block of it."""
        return Block(_load(self._block()).shape, self.base.dtype)

    def store(self, *_: Any) -> None:
        """A block of it is written."""
        _store(self._block())


def _language() -> ModuleType:
    made = ModuleType("triton.language")
    made.__getattr__ = lambda name: _refuse(name) if name.startswith("__") else _together  # type: ignore[method-assign]
    vars(made).update(DTYPES)
    vars(made).update(
        constexpr=lambda value: value, program_id=lambda axis=0: _running[-1].program[axis],
        num_programs=lambda axis=0: _running[-1].grid[axis], cdiv=_cdiv, swizzle2d=_swizzle2d, load=_load, store=_store,
        dot=_dot, arange=lambda first, last: Block([last - first]), zeros=_shaped, zeros_like=lambda each: each,
        full=lambda shape, _value, dtype: _shaped(shape, dtype), minimum=_least, maximum=_most, atomic_add=_store,
        range=lambda *args, **_: range(*args), static_range=lambda *args, **_: range(*args),
        trans=lambda each, *_: each.T, cast=lambda each, to, **_: each.to(to),
        multiple_of=lambda each, _: each, max_contiguous=lambda each, _: each, assume=lambda _: None,
        static_assert=lambda *_: None, debug_barrier=lambda: None, make_tensor_descriptor=Descriptor,
        permute=lambda each, *dims: each.with_shape([each.shape[dim] for dim in _flat(dims)]),
        reshape=lambda each, *shape, **_: each.with_shape(_flat(shape)),
        broadcast_to=lambda each, *shape: each.with_shape(_flat(shape)),
        expand_dims=lambda each, axis: each[(slice(None),) * axis + (None,)],
        split=lambda each: (each.with_shape(each.shape[:-1]),) * 2, join=lambda a, _: a.with_shape([*a.shape, 2]),
        cat=lambda a, b, **_: a.with_shape([a.shape[0] + b.shape[0], *a.shape[1:]]),
        **dict.fromkeys(("sum", "max", "min", "argmax", "argmin", "reduce", "xor_sum"), _reduced),
        view=lambda each, *shape: each.with_shape(_flat(shape)),
        math=SimpleNamespace(**dict.fromkeys(("exp", "log", "rsqrt", "sqrt", "tanh", "erf", "max", "min"), _together)),
    )  # fmt: skip
    return made


def _refuse(name: str) -> Any:
    raise AttributeError(name)


def _flat(given: Sequence[Any]) -> list[int]:
    return list(given[0]) if len(given) == 1 and isinstance(given[0], list | tuple) else list(given)


LANGUAGE: Final = _language()


def work_of(function: Callable[..., Any], given: Mapping[str, Any], grid: Sequence[int], sizes: Sequence[int]) -> Work:
    """What a launch of ``grid`` programs does. ``given`` are its arguments, with a ``Block`` for each pointer, into a
    tensor of the ``sizes`` (bytes) at its number. Raises UnknownError where that depends on values.
    """
    grid = tuple(grid) + (1,) * (3 - len(grid))
    programs = prod(grid)
    ran = min(programs, _MOST_PROGRAMS)
    flops, read, written = 0, dict[int, int](), dict[int, int]()
    for number in range(ran):
        place = (2 * number + 1) * programs // (2 * ran)
        x, y, z = place % grid[0], place // grid[0] % grid[1], place // (grid[0] * grid[1])
        _running.append(_Count((x, y, z), grid))
        try:
            function(**given)
        except (UnknownError, AttributeError, TypeError, ValueError, IndexError, KeyError) as error:
            raise UnknownError(str(error)) from error
        finally:
            count = _running.pop()
        flops += count.flops
        for total, one in ((read, count.read), (written, count.written)):
            for pointer, moved in one.items():
                total[pointer] = total.get(pointer, 0) + moved
    scale = programs / max(1, ran)

    def least(total: dict[int, int]) -> tuple[tuple[int, int], ...]:
        return tuple(sorted((at, min(sizes[at], round(moved * scale))) for at, moved in total.items()))

    return Work(round(flops * scale), least(read), least(written))


def names_of(function: Callable[..., Any]) -> list[str]:
    """The parameters of a kernel."""
    return list(inspect.signature(function).parameters)
