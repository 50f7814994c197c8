"""The SOL estimator's ``OpType``, ``TensorShape`` and ``OpRecord``: an operation written down by hand, from its shapes.

They are views: a record is costed by the formulas of ``rooflight.costs`` and bounded by ``rooflight.roofline``, as a
recorded operation is. Nothing here needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf, prod

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.costs.registry import cost_of
from rooflight.front.device import current_device, find_device
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.hardware.network.groups import RankGroup
from rooflight.records.dtypes import dtype_name, item_bytes
from rooflight.records.quantity import count_of
from rooflight.records.signature import AttributeValue, OpSignature
from rooflight.records.tensor import TensorSpec
from rooflight.roofline.bound import Bound, bound_of


class OpType(Enum):
    """Kinds of operation. The value is the op that costs it, by torch's name."""

    LINEAR = "aten::linear"
    MATMUL = "aten::matmul"
    MM = "aten::mm"
    BMM = "aten::bmm"
    ATTENTION = "aten::scaled_dot_product_attention"
    EMBEDDING = "aten::embedding"
    SOFTMAX = "aten::softmax"
    LOG_SOFTMAX = "aten::log_softmax"
    LAYER_NORM = "aten::layer_norm"
    RMS_NORM = "aten::rms_norm"
    GELU = "aten::gelu"
    SILU = "aten::silu"
    ADD = "aten::add"
    MUL = "aten::mul"
    DIV = "aten::div"
    EXP = "aten::exp"
    LOG = "aten::log"
    SUM = "aten::sum"
    MEAN = "aten::mean"
    MAX = "aten::amax"
    MIN = "aten::amin"
    ALLREDUCE = "_c10d_functional::all_reduce"
    ALLGATHER = "_c10d_functional::all_gather_into_tensor"
    REDUCE_SCATTER = "_c10d_functional::reduce_scatter_tensor"
    ALLTOALL = "_c10d_functional::all_to_all_single"
    BROADCAST = "_c10d_functional::broadcast"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of its tensors, in the order in which a record has them; a bias or mask at the end may be left out."""
        return _ARGUMENTS.get(self, ("input",) if self in COLLECTIVES else ("self",))


COLLECTIVES = (OpType.ALLREDUCE, OpType.ALLGATHER, OpType.REDUCE_SCATTER, OpType.ALLTOALL, OpType.BROADCAST)
"""What needs to know how many ranks take part."""

_PAIR = ("self", "other")
_ARGUMENTS = {
    OpType.MATMUL: _PAIR,
    OpType.ADD: _PAIR,
    OpType.MUL: _PAIR,
    OpType.DIV: _PAIR,
    OpType.LINEAR: ("input", "weight", "bias"),
    OpType.MM: ("self", "mat2"),
    OpType.BMM: ("self", "mat2"),
    OpType.ATTENTION: ("query", "key", "value", "attn_mask"),
    OpType.EMBEDDING: ("weight", "indices"),
    OpType.LAYER_NORM: ("input", "weight", "bias"),
    OpType.RMS_NORM: ("input", "weight"),
}


@dataclass(frozen=True, slots=True)
class TensorShape:
    """Sizes and dtype of a contiguous tensor. Raises ValueError for a negative size and an unknown dtype."""

    dims: tuple[int, ...]
    dtype: str = "bfloat16"  # or "bf16": torch's name is kept

    def __post_init__(self) -> None:
        dims = tuple(self.dims)
        if any(size < 0 for size in dims):
            raise ValueError(f"a tensor cannot have the shape {list(dims)}: sizes are 0 or more")
        object.__setattr__(self, "dims", dims)
        object.__setattr__(self, "dtype", dtype_name(self.dtype))
        item_bytes(self.dtype)  # refuses one of unknown size

    @property
    def numel(self) -> int:
        """Elements."""
        return prod(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.spec.nbytes

    @property
    def spec(self) -> TensorSpec:
        """The tensor as records hold it."""
        return TensorSpec(self.dims, self.dtype)


@dataclass(frozen=True, slots=True)
class OpRecord:
    """One operation: its kind, the shapes of its inputs in the order of ``op_type.arguments``, and of its outputs.

    ``causal`` is attention's, ``ranks`` a collective's: how many take part. Raises ValueError for more or fewer inputs
    than the kind has, for no output, and for a collective without ranks::

        x, weight, y = TensorShape((16, 64)), TensorShape((8, 64)), TensorShape((16, 8))
        record = OpRecord(OpType.LINEAR, (x, weight), (y,))
        record.flops  # 2 * 16 * 8 * 64
        record.bound("H100-SXM5-80GB").limiter
    """

    op_type: OpType
    input_shapes: tuple[TensorShape, ...]
    output_shapes: tuple[TensorShape, ...]
    name: str = ""  # of the module that ran it
    causal: bool = False
    ranks: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_shapes", tuple(self.input_shapes))  # lists are taken too
        object.__setattr__(self, "output_shapes", tuple(self.output_shapes))
        names = self.op_type.arguments
        if not 1 <= len(self.input_shapes) <= len(names):
            raise ValueError(
                f"{self.op_type.name} takes {', '.join(names)}, not {count_of(len(self.input_shapes), 'tensor')}"
            )
        if not self.output_shapes:
            raise ValueError(f"{self.op_type.name}: give the shape of what it returns")
        if self.op_type in COLLECTIVES and not (self.ranks and self.ranks > 0):
            raise ValueError(f"{self.op_type.name}: give the number of ranks that take part")

    @property
    def signature(self) -> OpSignature:
        """The operation as a recording would note it."""
        attributes: tuple[tuple[str, AttributeValue], ...] = ()
        if self.ranks:
            attributes = RankGroup(size=self.ranks).attributes
        if self.causal:
            attributes = (*attributes, ("is_causal", True))
        return OpSignature(
            name=self.op_type.value,
            inputs=tuple(shape.spec for shape in self.input_shapes),
            input_names=self.op_type.arguments[: len(self.input_shapes)],
            outputs=tuple(shape.spec for shape in self.output_shapes),
            attributes=attributes,
        )

    @property
    def cost(self) -> OpCost:
        """What it must do. Raises ValueError for shapes that do not belong together."""
        cost = cost_of(self.signature)
        if isinstance(cost, Uncosted):
            raise ValueError(f"{self.op_type.name} of these shapes has no cost: {cost.reason}")
        return cost

    @property
    def flops(self) -> int:
        """FLOPs on matrix and vector units together; one multiply-add is 2."""
        return self.cost.matrix_flops + self.cost.vector_flops

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written."""
        return self.cost.bytes_moved

    @property
    def arithmetic_intensity(self) -> float:
        """FLOPs per byte moved; infinite where nothing is moved."""
        return self.flops / self.bytes_moved if self.bytes_moved else inf

    def bound(self, device: DeviceSpec | str | None = None) -> Bound:
        """The least time it takes on a device, and what limits it; None takes the device at hand."""
        return bound_of(self.cost, find_device(device))


def get_current_device_spec() -> DeviceSpec:
    """The device torch would use here, with its roofs, as ``rooflight.current_device``."""
    return current_device()
