"""Rules that families share: which tensors an op reads and writes, and how to register a table of simple ops.

Conventions of every family: one addition, multiplication, comparison or call of an elementary function (exp, log,
sqrt, tanh, erf, ...) is one FLOP per element, conversions of dtype are none. Bytes are distinct storage, each input
read once, each output written once. An op that updates a tensor in place reads and writes it, unless it overwrites
it (``copy_``, ``fill_``, ``normal_``); ``out=`` tensors are only written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rooflight.costs import registry
from rooflight.costs.cost import OpCost, Uncosted
from rooflight.costs.registry import Formula
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import UNSHARED, TensorSpec, distinct_bytes

_OUT_ARGUMENTS = (
    "out out0 out1 out2 out3 out4 out5 out6 grad_input grad_weight grad_bias output values indices max min max_values "
    "min_indices total_weight save_mean save_invstd L Q R U S V Vh LU LD P X M a tau pivots info sign logabsdet result "
    "eigenvalues eigenvectors solution residuals rank singular_values inverse hist bin_edges mantissa exponent "
    "is_target buffer reserve"
)
"""Arguments that torch's ``out=`` overloads write. Only aliases of an output are such: backward ops read an ``out``."""
_OUT_NAMES = frozenset(_OUT_ARGUMENTS.split())


def is_out(op: OpSignature, tensor: TensorSpec, name: str) -> bool:
    """Whether an input is there only to receive a result."""
    return name in _OUT_NAMES and tensor.storage != UNSHARED and tensor in op.outputs


def in_place(op: OpSignature) -> bool:
    """Whether the op updates its ``self``: ``aten::add_``, not ``aten::add``."""
    return op.name.endswith("_") and not op.name.endswith("__")


def sources(op: OpSignature, *unread: str) -> list[TensorSpec]:
    """The inputs that are read: all but ``out=`` tensors and the arguments named."""
    if not op.input_names:
        return list(op.inputs)
    return [
        tensor
        for tensor, name in zip(op.inputs, op.input_names, strict=True)
        if name not in unread and not is_out(op, tensor, name)
    ]


def read_bytes(op: OpSignature, *unread: str) -> int:
    """Distinct bytes of the inputs read, the arguments named left out."""
    return distinct_bytes(sources(op, *unread))


def further_bytes(op: OpSignature, first: int = 1) -> int:
    """Distinct bytes of the inputs read after the ``first`` few."""
    return distinct_bytes(sources(op)[first:])


def tensor_bytes(*tensors: TensorSpec | None) -> int:
    """Distinct bytes of the tensors that are there."""
    return distinct_bytes(tensor for tensor in tensors if tensor is not None)


def picked_bytes(tensor: TensorSpec, elements: int) -> int:
    """Bytes of ``elements`` elements picked from a tensor, which has no more than its distinct ones to give."""
    return min(elements, tensor.distinct) * tensor.item_bytes


def all_but_one(nbytes: int, tensor: TensorSpec) -> int:
    """What data can spare of so many bytes of a tensor: one element at least is read, or written."""
    return max(0, nbytes - tensor.item_bytes)


def may_repeat(indices: Iterable[TensorSpec]) -> bool:
    """Whether indices may name one element twice, as a mask cannot."""
    return any(index.numel > 1 and index.dtype not in ("bool", "uint8") for index in indices)


def moves(
    op: OpSignature, *, vector_flops: int = 0, unread: Iterable[str] = (), upper: bool = False, note: str = ""
) -> OpCost:
    """The cost of an op that reads its inputs once and writes its outputs once."""
    read, written = read_bytes(op, *unread), op.output_bytes
    return OpCost(vector_flops=vector_flops, bytes_read=read, bytes_written=written, upper=upper, note=note)


def largest(tensors: Iterable[TensorSpec]) -> int:
    """Elements of the largest tensor, 0 where there is none."""
    return max((tensor.numel for tensor in tensors), default=0)


def flags(op: OpSignature, name: str, default: tuple[bool, ...]) -> tuple[bool, ...]:
    """A list-of-bools setting such as ``output_mask``."""
    value = op.attribute(name)
    return tuple(bool(flag) for flag in value) if isinstance(value, tuple) else default


def integer(op: OpSignature, name: str, default: int) -> int:
    """An integer setting, ``default`` where it was not given or is None."""
    value = op.attribute(name)
    return value if isinstance(value, int) else default


def integers(op: OpSignature, name: str) -> tuple[int, ...]:
    """A list-of-ints setting, empty where it was not given; a single int is a list of one."""
    value = op.attribute(name)
    if isinstance(value, tuple):
        return tuple(int(each) for each in value)
    return (value,) if isinstance(value, int) else ()


def dims(op: OpSignature, rank: int, name: str = "dim") -> tuple[int, ...]:
    """The dimensions an op works along, all of them where it names none."""
    given = integers(op, name)
    return tuple(dim % rank for dim in given) if given and rank else tuple(range(rank))


def names(text: str, namespace: str = "aten") -> list[str]:
    """``"add _C::rms_norm"`` as ``["aten::add", "_C::rms_norm"]``."""
    return [name if "::" in name else f"{namespace}::{name}" for name in text.split()]


class Family:
    """Ops that have traits of ``registry.formula`` in common. ``@family("mm bmm")`` declares a formula of several of
    them, ``family.rows({copies: "clone cat"})`` a table of simple ones; names without a namespace are of ``aten``.
    """

    def __init__(self, error_group: str, **traits: Any) -> None:
        self.traits = {"error_group": error_group, **traits}

    def __call__(self, *ops: str, **traits: Any) -> Callable[[Formula], Formula]:
        """A decorator that registers a formula of the ``ops``, which have further or other ``traits``."""
        return registry.formula(*names(" ".join(ops)), **(self.traits | traits))

    def having(self, **traits: Any) -> Family:
        """Ops of the family that have further or other traits."""
        return Family(**(self.traits | traits))

    def rows(self, table: Mapping[Formula, str], namespace: str = "aten") -> None:
        """Register a table of formulas, each with the ops that it costs, separated by blanks."""
        for function, ops in table.items():
            self(*names(ops, namespace))(function)


def moving(flops: Callable[[OpSignature], int], *unread: str, upper: bool = False) -> Formula:
    """A formula: so many FLOPs, and everything read and written once but for the arguments named."""
    return lambda op: moves(op, vector_flops=flops(op), unread=unread, upper=upper)


def first_input(flops: int, *unread: str) -> Formula:
    """A formula: so many FLOPs for each element of the first input, everything read and written once."""
    return moving(lambda op: flops * op.inputs[0].numel, *unread)


def first_output(flops: int, *unread: str) -> Formula:
    """A formula: so many FLOPs for each element of the first result, everything read and written once."""
    return moving(lambda op: flops * op.outputs[0].numel, *unread)


def per_output(flops: int) -> Formula:
    """A formula: so many FLOPs for each element of the largest result, everything read and written once."""
    return moving(lambda op: flops * largest(op.outputs))


def per_input(flops: int) -> Formula:
    """A formula: so many FLOPs for each element of the largest input, everything read and written once."""
    return moving(lambda op: flops * largest(sources(op)))


def copies(op: OpSignature) -> OpCost:
    """Reads every input, writes every output, computes nothing."""
    return moves(op)


def overwrites(op: OpSignature) -> OpCost:
    """Reads the other inputs; what is overwritten, or lends only its shape, is not read."""
    return moves(op, unread=("self",))


def writes(op: OpSignature) -> OpCost:
    """Writes the outputs, reads nothing: inputs only lend their shape."""
    return OpCost(bytes_written=op.output_bytes)


def nothing(op: OpSignature) -> OpCost:  # noqa: ARG001
    """Touches no element: metadata only."""
    return OpCost()


def picking(op: OpSignature, elements: int, *, vector_flops: int = 0, upper: bool = False, note: str = "") -> OpCost:
    """The cost of an op that reads so many elements of its first input, where ``upper`` perhaps the same again and
    again, and the others whole; ``note`` says why that is not certain.
    """
    picked = picked_bytes(op.inputs[0], elements)
    return OpCost(
        vector_flops=vector_flops,
        bytes_read=further_bytes(op) + picked,
        bytes_written=op.output_bytes,
        avoidable_read=all_but_one(picked, op.inputs[0]) if upper else 0,
        upper=upper or bool(note),
        note=note,
    )


def picks(op: OpSignature) -> OpCost:
    """Reads no more of the first input than it writes, and the others whole."""
    return picking(op, op.outputs[0].numel)


def picks_alone(op: OpSignature) -> OpCost:
    """Reads no more of the first input than it writes; the others only lend their sizes."""
    return OpCost(bytes_read=picked_bytes(op.inputs[0], op.outputs[0].numel), bytes_written=op.output_bytes)


def uncosted(reason: str) -> Formula:
    """A formula for ops whose signature does not hold what they do."""
    return lambda op: Uncosted(reason)  # noqa: ARG005


def clamped_sum(start: int, count: int, top: int) -> int:
    """Sum of clamp(start + i, 0, top) over i in [0, count)."""

    def ramp(stop: int) -> int:
        """Sum of clamp(y, 0, top) over y < stop."""
        rising = max(0, min(stop, top))
        return rising * (rising - 1) // 2 + max(0, stop - top) * top

    return ramp(start + count) - ramp(start)
