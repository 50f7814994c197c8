"""What a part of an op's result needs of its inputs: the least that a kernel which computes only this part reads.

A part of a tensor is indices along one dimension, of all of the others, and a number of elements anywhere. Every rule
gives elements that are needed for sure, perhaps not all of them: a bound may be too low, never too high.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from rooflight.costs.cost import Needs
from rooflight.costs.families.convolution import is_transposed
from rooflight.costs.families.recurrent import weights_by_layer
from rooflight.costs.rules import dims, integer, integers, names
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec
from rooflight.roofline.fusion.parts import Axis

_LABELLED: Final = frozenset(names("nll_loss_forward nll_loss2d_forward nll_loss nll_loss2d nll_loss_nd"))
_CONCATENATED: Final = frozenset(names("cat concat concatenate"))
_STACKED: Final = frozenset(names("stack _stack"))


class Wanted(NamedTuple):
    """Elements of a tensor: the indices ``axis``, and how many there are at least, these included. Of every line along
    the dimension ``line`` at least one element is among them, it is not known which.
    """

    axis: Axis | None = None
    elements: int = 0
    line: int | None = None


class Demand(NamedTuple):
    """A part of one of an op's results: ``place`` of the result, ``wanted`` of it, and ``reads``, how many elements of
    each input the op reads for all of it.
    """

    op: OpSignature
    needs: Needs
    place: int
    wanted: Wanted
    reads: tuple[int, ...]

    @property
    def out(self) -> TensorSpec:
        """The result."""
        return self.op.outputs[self.place]


def all_of(tensor: TensorSpec) -> Wanted:
    """All elements of a tensor."""
    return Wanted(_whole(tensor), tensor.numel)


def _whole(tensor: TensorSpec) -> Axis:
    return Axis(0, 0, tensor.shape[0] if tensor.shape else 1)


def line_picked(op: OpSignature, place: int) -> int | None:
    """The dimension of an input along which an op picks elements, some of every line; None where it is not known to."""
    if place or not op.inputs:
        return None
    shape, index = op.inputs[0].shape, op.input("index")
    if op.name in _LABELLED:
        return min(1, len(shape) - 1)
    if op.name != "aten::gather" or index is None or len(index.shape) != len(shape) or not index.numel:
        return None
    dim = integer(op, "dim", 0) % max(1, len(shape))
    return dim if all(shape[each] == index.shape[each] for each in range(len(shape)) if each != dim) else None


def needed(demand: Demand) -> list[Wanted]:
    """By input, what a part of a result needs of it."""
    op, wanted, needs = demand.op, demand.wanted, demand.needs
    same_rank = needs is Needs.ROWS and len(demand.out.shape) == len(op.inputs[0].shape)
    if same_rank and wanted.line in _along(op):  # some element of each row
        return [all_of(tensor) for tensor in op.inputs]
    of_axis, found = _RULES.get(needs), list[Wanted]()
    for place, tensor in enumerate(op.inputs):
        axis = of_axis(demand, place, wanted.axis) if of_axis and wanted.axis else None
        found.append(Wanted(axis, max(_anywhere(demand, place), axis.elements(tensor) if axis else 0)))
    return found


def _anywhere(demand: Demand, place: int) -> int:
    """How many elements of an input a part needs, wherever they lie: of most as many as if each serves as few of the
    result as can be.
    """
    read, results, elements, needs = demand.reads[place], max(1, demand.out.numel), demand.wanted.elements, demand.needs
    # windows overlap, and which keys the queries see, or which weights steps use, is not known by number
    if needs in (Needs.CONVOLVED, Needs.RECURRENT) or (needs is Needs.ATTENDED and place in (1, 2)) or not read:
        return 0
    if needs is Needs.JOINED:  # what the rest of the result has no room for
        return max(0, elements - max(0, results - read))
    if needs is Needs.DIVIDED:
        return elements
    return elements * read // results if read >= results else -(-elements // -(-results // read))


def work_needed(demand: Demand) -> float:
    """The share of an op's FLOPs that a part of its result takes."""
    op, needs = demand.op, demand.needs
    if needs is Needs.JOINED:
        return 0.0
    if needs is Needs.RECURRENT:
        layers, axis = weights_by_layer(op), demand.wanted.axis
        shares = _steps_needed(demand, axis) if axis and layers else None
        if shares is None or not op.attribute("bidirectional"):
            return shares[0] if shares else 0.0
        return 1 - (layers[-2] * (1 - shares[0]) + layers[-1] * (1 - shares[1])) / sum(layers)
    if needs is Needs.CONVOLVED and is_transposed(op):
        return 0.0  # how many products end outside is not known
    share = min(1.0, demand.wanted.elements / max(1, demand.out.numel))
    # row i of a causal attention sees i + 1 keys: the first of n rows in a row take least, less than their share
    return share**2 if op.attribute("is_causal") or op.attribute("causal") else share


# Rules: which elements of an input some indices of a result need, None where that is not known.


def _same_index(demand: Demand, place: int, axis: Axis) -> Axis | None:
    tensor, out = demand.op.inputs[place], demand.out.shape
    missing = len(out) - len(tensor.shape)
    if missing < 0 or any(size not in (1, out[missing + dim]) for dim, size in enumerate(tensor.shape)):
        return None
    dim = axis.dim - missing
    return axis._replace(dim=dim) if dim >= 0 and tensor.shape[dim] > 1 else _whole(tensor)


def _along(op: OpSignature) -> Sequence[int]:
    """The dimensions along which a norm, softmax or scan works; at least the last one where it is not known."""
    rank = len(op.inputs[0].shape)
    if integers(op, "dim"):
        return dims(op, rank)
    return range(max(0, rank - max(1, len(integers(op, "normalized_shape")))), rank)


def _row(demand: Demand, place: int, axis: Axis) -> Axis | None:
    """Whole rows along which the op works, in a scan up to the last index; of weights the same indices."""
    op, out = demand.op, demand.out.shape
    shape, along = op.inputs[0].shape, _along(op)
    if len(out) != len(shape) or any(
        out[dim] != size and not (dim in along and out[dim] == 1) for dim, size in enumerate(shape)
    ):
        return None
    if op.inputs[place].shape != shape:
        return _same_index(demand, place, axis) if out == shape else None
    if axis.dim not in along:
        return axis
    return Axis(axis.dim, 0, axis.end) if demand.needs is Needs.SCAN else _whole(op.inputs[place])


def _joined(demand: Demand, place: int, axis: Axis) -> Axis | None:
    """What goes to the part: where it goes is known of ``cat`` and ``stack``."""
    op, rank = demand.op, len(demand.out.shape)
    dim, tensor = integer(op, "dim", 0) % max(1, rank), op.inputs[place]
    if op.name in _STACKED:
        if axis.dim == dim:
            return _whole(tensor) if axis.within(place, 1) else None
        return axis._replace(dim=axis.dim - (axis.dim > dim))
    # torch lets an empty tensor of another rank pass for old programs' sake
    if op.name not in _CONCATENATED or len(tensor.shape) != rank:
        return None
    before = sum(each.shape[dim] for each in op.inputs[:place] if len(each.shape) == rank)
    return axis.within(before, tensor.shape[dim]) if axis.dim == dim else axis


def _product(demand: Demand, place: int, axis: Axis) -> Axis | None:
    """[..., m, k] @ [..., k, n] to [..., m, n], the operands after what is added; ``linear`` has [n, k], adds last."""
    op, out = demand.op, demand.out.shape
    is_linear, left = op.name == "aten::linear", int("add" in op.name)
    a, b = op.inputs[left : left + 2]
    if b.shape != (out[-1], a.shape[-1]) if is_linear else len(b.shape) != len(out):
        return None
    is_column = axis.dim == len(out) - 1
    if place == left:
        return _whole(a) if is_column else axis
    if place != left + 1:
        return _same_index(demand, place, axis)
    if is_linear:
        return axis._replace(dim=0) if is_column else _whole(b)
    return _whole(b) if axis.dim == len(out) - 2 else axis


def _attended(demand: Demand, place: int, axis: Axis) -> Axis | None:
    """q [..., H, Nq, D], k [..., Hkv, Nk, D], v [..., Hkv, Nk, Dv] to [..., H, Nq, Dv]; masks are not known."""
    op, out = demand.op, demand.out.shape
    query, key = op.inputs[:2]
    last, causal = len(out) - 1, bool(op.attribute("is_causal"))
    if place > 2 or len(out) != len(query.shape) or out[:-1] != query.shape[:-1]:
        return None
    if place == 0:
        return axis if axis.dim < last else _whole(query)
    if axis.dim == last - 1:  # what a mask that is a tensor hides is data, and counts as seen
        return Axis(last - 1, 0, min(key.shape[-2], axis.end) if causal else key.shape[-2])
    shares_heads = axis.dim < last and key.shape[:-2] != out[:-2]  # several heads of queries share one of keys
    if len(key.shape) != len(out) or shares_heads or (causal and key.shape[-2] > out[-2]):
        return None
    return axis if axis.dim < last or place == 2 else _whole(key)


def _convolved(demand: Demand, place: int, axis: Axis) -> Axis | None:
    """x [B, Cin, in...], weight [Cout, Cin / g, k...] to [B, Cout, out...]."""
    op, out = demand.op, demand.out.shape
    x, weight = op.inputs[:2]
    if len(out) != len(x.shape) or len(weight.shape) != len(out) or is_transposed(op):
        return None
    if axis.dim == 0:
        return _whole(op.inputs[place]) if place else axis
    if axis.dim == 1:
        grouped = weight.shape[1] != x.shape[1]
        return axis._replace(dim=0) if place else None if grouped else _whole(x)
    under = _under_windows(op, axis) if place < 2 else None
    takes_all_taps = place > 1 or (under is not None and under.length >= weight.shape[axis.dim])
    return under if not place else _whole(op.inputs[place]) if takes_all_taps else None


def _under_windows(op: OpSignature, axis: Axis) -> Axis | None:
    """The indices of x under the windows of results, where none lie between two."""
    strides, padding, dilation = (_each(op, name) for name in ("stride", "padding", "dilation"))
    if not strides or not padding or any(each != 1 for each in dilation) or axis.repeats > 1:
        return None
    (x, weight), dim = op.inputs[:2], axis.dim
    step, pad, taps = strides[dim - 2], padding[dim - 2], weight.shape[dim]
    first, end = max(0, axis.first * step - pad), min(x.shape[dim], (axis.end - 1) * step - pad + taps)
    return Axis(dim, first, end - first) if first < end and step <= taps else None


def _each(op: OpSignature, setting: str) -> Sequence[int]:
    given, rank = integers(op, setting), len(op.inputs[1].shape) - 2
    return given if len(given) == rank else tuple(given) * rank if len(given) == 1 else ()


def _recurrent(demand: Demand, place: int, axis: Axis) -> Axis | None:
    """x [T, B, I] (or batch first) up to the last step wanted, both ways all of it, and the weights."""
    op, shares = demand.op, _steps_needed(demand, axis)
    in_order = not demand.place and not op.attribute("bidirectional")  # and then from the first states on
    if shares is None:
        return None
    if not place:
        return Axis(axis.dim, 0, axis.end) if in_order else _whole(op.inputs[0])
    is_needed = shares[0] > 0 if op.input_names[place] == "params" else in_order
    return _whole(op.inputs[place]) if is_needed else None


def _steps_needed(demand: Demand, axis: Axis) -> tuple[float, float] | None:
    """The share of the steps that the last layer takes from the first on, and from the last back, for some of its
    results or for its last states [layers, B, H]; None for others.
    """
    op, x = demand.op, demand.op.inputs[0].shape
    if len(x) == 3 and not demand.place and axis.dim == (1 if op.attribute("batch_first") else 0):
        return axis.end / x[axis.dim], 1 - axis.first / x[axis.dim]
    if len(x) == 3 and demand.place and axis.dim == 0 and axis.end == demand.out.shape[0]:
        return float(axis.length > 1 or not op.attribute("bidirectional")), 1.0
    return None


_RULES: Final[dict[Needs, Callable[[Demand, int, Axis], Axis | None]]] = {
    Needs.ELEMENTS: _same_index,
    Needs.ROWS: _row,
    Needs.SCAN: _row,
    Needs.JOINED: _joined,
    Needs.PRODUCT: _product,
    Needs.CONVOLVED: _convolved,
    Needs.ATTENDED: _attended,
    Needs.RECURRENT: _recurrent,
}
