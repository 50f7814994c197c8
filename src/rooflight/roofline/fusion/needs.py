"""What a part of an op's result needs of its inputs: the least that a kernel which computes only this part reads.

Every rule gives elements that are needed for sure, perhaps not all of them: a bound may be too low, never too high.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from rooflight.costs.cost import Needs
from rooflight.costs.families.recurrent import weights_by_layer
from rooflight.costs.registry import traits_of
from rooflight.costs.rules import dims, integer, integers, names
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec
from rooflight.roofline.fusion.boxes import FIRST, NOTHING, Axis, Box, Demand, Wanted, up_to, whole_box, within
from rooflight.roofline.fusion.convolution_needs import convolution_needed, convolved

_LABELLED: Final = frozenset(names("nll_loss_forward nll_loss2d_forward nll_loss nll_loss2d nll_loss_nd"))
"""These pick the class that a label names."""


def line_picked(op: OpSignature, place: int) -> int | None:
    """The dimension of an input along which an op picks elements, some of every line; None where it is not known to."""
    if place or not op.inputs:
        return None
    shape = op.inputs[0].shape
    if op.name in _LABELLED:
        return min(1, len(shape) - 1)
    index = op.input("index")
    if op.name != "aten::gather" or index is None or len(index.shape) != len(shape) or not index.numel:
        return None
    dim = integer(op, "dim", 0) % max(1, len(shape))
    picked = index.shape
    return dim if (*shape[:dim], *shape[dim + 1 :]) == (*picked[:dim], *picked[dim + 1 :]) else None


def needed(demand: Demand) -> list[Wanted]:
    """By input, what a part of a result needs of it."""
    return _RULES[traits_of(demand.op).part_needs](demand)


def work_needed(demand: Demand) -> float:
    """The share of an op's FLOPs that a part of its result takes."""
    op, needs = demand.op, traits_of(demand.op).part_needs
    if needs is Needs.JOINED:
        return 0.0
    if needs is Needs.RECURRENT:
        return _steps_needed(demand)
    if needs is Needs.CONVOLVED:
        return convolution_needed(demand)
    # row i of a causal attention sees i + 1 keys: the first of n rows in a row take least, less than their share
    causal = bool(op.attribute("is_causal") or op.attribute("causal"))
    return demand.share**2 if causal else demand.share


def _all(demand: Demand) -> list[Wanted]:
    return [Wanted(boxes=(whole_box(tensor.shape),), elements=tensor.numel) for tensor in demand.op.inputs]


def _share_of(demand: Demand, place: int) -> Wanted:
    """As many elements as the part needs if each of the input's serves as few of the result as can be."""
    read, results = demand.reads[place], max(1, demand.out.numel)
    elements = demand.wanted.elements
    return Wanted(elements=elements * read // results if read >= results else elements // -(-results // max(1, read)))


def _shares(demand: Demand) -> list[Wanted]:
    return [_share_of(demand, place) for place in range(len(demand.op.inputs))]


def _broadcast(demand: Demand, wanted: Wanted, shape: Sequence[int]) -> list[Wanted]:
    """Elements of a result of this shape, from inputs that are broadcast to it; of others a share."""
    found = []
    for place, tensor in enumerate(demand.op.inputs):
        missing = len(shape) - len(tensor.shape)
        pairs = list(zip(tensor.shape, shape[max(0, missing) :], strict=False))
        if missing < 0 or any(size not in (1, other) for size, other in pairs):
            found.append(_share_of(demand, place))
            continue
        repeats = 1
        for size, other in (*((1, size) for size in shape[:missing]), *pairs):
            repeats *= other if size == 1 else 1

        def of_box(box: Box, missing: int = missing, tensor: TensorSpec = tensor) -> Box:
            return tuple(FIRST if size == 1 else axis for axis, size in zip(box[missing:], tensor.shape, strict=True))

        mapped = wanted.mapped(of_box, -(-wanted.elements // max(1, repeats)))
        found.append(replace(mapped, lines=wanted.lines) if tensor.shape == tuple(shape) else mapped)
    return found


def _elements(demand: Demand) -> list[Wanted]:
    return _broadcast(demand, demand.wanted, demand.out.shape)


def _along(demand: Demand, of_axis: Callable[[Axis, int], Axis]) -> list[Wanted]:
    """Boxes with the axes along which the op works widened."""
    op, shape = demand.op, demand.op.inputs[0].shape
    rank = len(shape)
    along = _lines(op, rank)
    if len(demand.out.shape) != rank or any(
        demand.out.shape[dim] not in ((1, size) if dim in along else (size,)) for dim, size in enumerate(shape)
    ):
        return _shares(demand)

    def widened(box: Box) -> Box:
        return tuple(of_axis(axis, shape[dim]) if dim in along else axis for dim, axis in enumerate(box))

    lines = _broadcast(demand, demand.wanted.mapped(widened, demand.wanted.elements), shape)
    same = _broadcast(demand, demand.wanted, shape) if demand.out.shape == shape else _shares(demand)
    return [
        line if tensor.shape == shape else other for tensor, line, other in zip(op.inputs, lines, same, strict=True)
    ]


def _lines(op: OpSignature, rank: int) -> Sequence[int]:
    """The dimensions along which a norm, softmax or scan works; at least the last one where it is not known."""
    if integers(op, "dim"):
        return dims(op, rank)
    return range(max(0, rank - max(1, len(integers(op, "normalized_shape")))), rank)


def _rows(demand: Demand) -> list[Wanted]:
    op = demand.op
    rank = len(op.inputs[0].shape)
    if len(demand.out.shape) == rank and demand.wanted.lines.intersection(_lines(op, rank)):
        return _all(demand)
    return _along(demand, lambda _, size: up_to(size))


def _scan(demand: Demand) -> list[Wanted]:
    return _along(demand, lambda axis, _: up_to(axis.last + 1))


def _reduced(demand: Demand) -> list[Wanted]:
    """Whole lines of the input along the dimensions reduced; what else is read, a share of."""
    shape = demand.op.inputs[0].shape
    along = set(dims(demand.op, len(shape)))
    kept = [dim for dim in range(len(shape)) if dim not in along]
    out = demand.out.shape
    keeps = len(out) == len(shape)
    if not keeps and len(out) != len(kept):
        return _shares(demand)
    from_dim = {dim: dim if keeps else place for place, dim in enumerate(kept)}
    if any(out[from_dim[dim]] != shape[dim] for dim in kept):
        return _shares(demand)

    def of_box(box: Box) -> Box:
        return tuple(box[from_dim[dim]] if dim in from_dim else up_to(size) for dim, size in enumerate(shape))

    lines = demand.op.inputs[0].numel // max(1, demand.out.numel)
    return [demand.wanted.mapped(of_box, demand.wanted.elements * lines), *_shares(demand)[1:]]


def _joined(demand: Demand) -> list[Wanted]:
    """Of each input, what goes to the part: where it goes is known of ``cat``, ``stack`` and padding."""
    name = demand.op.name
    if name in ("aten::cat", "aten::concat", "aten::concatenate", "aten::stack", "aten::_stack"):
        return _concatenated(demand, stacked="stack" in name)
    if name == "aten::constant_pad_nd":
        pads = integers(demand.op, "pad")
        rank = len(demand.out.shape)
        firsts = [pads[2 * (rank - 1 - dim)] if 2 * (rank - 1 - dim) < len(pads) else 0 for dim in range(rank)]
        return [_inside(demand, 0, firsts)]
    return [NOTHING if not read else _left_over(demand, read) for read in demand.reads]


def _left_over(demand: Demand, read: int) -> Wanted:
    """What the rest of the result has no room for."""
    return Wanted(elements=max(0, demand.wanted.elements - max(0, demand.out.numel - read)))


def _concatenated(demand: Demand, *, stacked: bool) -> list[Wanted]:
    rank = len(demand.out.shape)
    dim = integer(demand.op, "dim", 0) % max(1, rank)
    at = 0
    found = []
    for place, tensor in enumerate(demand.op.inputs):
        if stacked:
            shape = (*tensor.shape[:dim], 1, *tensor.shape[dim:])
            inside = _inside(demand, place, [at if each == dim else 0 for each in range(rank)], shape)
            at += 1
            found.append(inside.mapped(lambda box: (*box[:dim], *box[dim + 1 :]), inside.elements))
        elif len(tensor.shape) == rank:
            found.append(_inside(demand, place, [at if each == dim else 0 for each in range(rank)]))
            at += tensor.shape[dim]
        else:  # an empty tensor, which torch lets pass for old programs' sake
            found.append(NOTHING)
    return found


def _inside(demand: Demand, place: int, firsts: Sequence[int], shape: Sequence[int] | None = None) -> Wanted:
    """What lies in an input that fills the result from these indices on."""
    shape = demand.op.inputs[place].shape if shape is None else shape

    def of_box(box: Box) -> Box | None:
        axes: list[Axis] = []
        for axis, first, size in zip(box, firsts, shape, strict=True):
            try:
                inside = within(axis, first, first + size)
            except ValueError:
                return None
            if inside is None:
                return None
            axes.append(inside)
        return tuple(axes)

    return demand.wanted.mapped(of_box, _left_over(demand, demand.op.inputs[place].numel).elements)


def _product(demand: Demand) -> list[Wanted]:
    """[..., m, k] @ [..., k, n] to [..., m, n], the operands after what is added; ``linear`` has [n, k], adds last."""
    op, out = demand.op, demand.out.shape
    is_linear = op.name == "aten::linear"
    left = 1 if "add" in op.name else 0
    a, b = op.inputs[left : left + 2]
    if b.shape != (out[-1], a.shape[-1]) if is_linear else len(b.shape) != len(out):
        return _shares(demand)
    found = _broadcast(demand, demand.wanted, out)
    if is_linear:
        columns: Callable[[Box], Box] = lambda box: (box[-1], up_to(b.shape[-1]))  # noqa: E731
    else:
        columns = lambda box: (*box[: len(b.shape) - 2], up_to(b.shape[-2]), box[-1])  # noqa: E731
    inner, (rows, width) = a.shape[-1], (_first(out[-2:-1]), _first(out[-1:]))
    elements = demand.wanted.elements
    # so many results of a matrix take at least as many rows as columns hold, and the other way round
    found[left] = demand.wanted.mapped(lambda box: (*box[:-1], up_to(inner)), -(-elements // max(1, width)) * inner)
    batches = max(1, a.numel // max(1, rows * inner)) if is_linear else 1
    found[left + 1] = demand.wanted.mapped(columns, -(-elements // max(1, rows * batches)) * inner)
    return found


def _first(sizes: Sequence[int]) -> int:
    return sizes[0] if sizes else 1


def _divided(demand: Demand) -> list[Wanted]:
    return [Wanted(elements=demand.wanted.elements) for _ in demand.op.inputs]


def _attended(demand: Demand) -> list[Wanted]:
    """q [..., H, Nq, D], k [..., Hkv, Nk, D], v [..., Hkv, Nk, Dv] to [..., H, Nq, Dv], and what masks q by k."""
    op = demand.op
    query, key = op.inputs[:2]
    out = demand.out.shape
    shares = _shares(demand)
    if len(out) != len(query.shape) or out[:-1] != query.shape[:-1]:
        return shares
    causal = bool(op.attribute("is_causal"))
    has_group = key.shape[:-2] != out[:-2]  # several heads of queries share one of keys

    def keys(box: Box) -> Axis:
        """Those that the last query sees; what a mask that is a tensor hides is data, and counts as seen."""
        return up_to(min(key.shape[-2], box[-2].last + 1)) if causal else up_to(key.shape[-2])

    def of_key(box: Box) -> Box | None:
        entries = box[:-2]
        if has_group:
            if len(key.shape) != len(out) or box[-3] != up_to(out[-3]):
                return None
            entries = (*box[:-3], up_to(key.shape[-3]))
        return (*entries, keys(box), up_to(key.shape[-1]))

    def of_value(box: Box) -> Box | None:
        found = of_key(box)
        return None if found is None else (*found[:-1], box[-1])

    shares[0] = demand.wanted.mapped(lambda box: (*box[:-1], up_to(query.shape[-1])), shares[0].elements)
    shares[1] = demand.wanted.mapped(of_key, 0)
    shares[2] = demand.wanted.mapped(of_value, 0)
    return shares


def _recurrent(demand: Demand) -> list[Wanted]:
    """x [T, B, I] (or batch first) up to the last step wanted, or from the first, or both; all weights. First
    states where all of the batch needs them, one way.
    """
    op, found = demand.op, _all(demand)
    x = op.inputs[0]
    if len(x.shape) != 3:
        return found
    batch, step = _batch_and_step(op)
    steps = x.shape[step]

    def of_box(box: Box) -> Box:
        axes = list(whole_box(x.shape))
        axes[batch] = box[1] if demand.place else box[batch]
        if not demand.place:
            forward, backward = _ways_wanted(demand, box)
            first, end = (0 if forward else box[step].first), (steps if backward else box[step].last + 1)
            axes[step] = Axis(first, up_to(end - first).runs)
        return tuple(axes)

    whole_batch = any(box[batch] == up_to(x.shape[batch]) for box in demand.wanted.boxes if not demand.place)
    for place, name in enumerate(op.input_names):
        if name != "params" and not (place and whole_batch and not op.attribute("bidirectional")):
            found[place] = demand.wanted.mapped(of_box, 0) if place == 0 else NOTHING
    return found


def _batch_and_step(op: OpSignature) -> tuple[int, int]:
    return (0, 1) if op.attribute("batch_first") else (1, 0)


def _ways_wanted(demand: Demand, box: Box) -> tuple[bool, bool]:
    """Whether what ran forward is wanted of the outputs, and what ran backward."""
    if not demand.op.attribute("bidirectional"):
        return True, False
    hidden = demand.out.shape[2] // 2
    return box[2].first < hidden, box[2].last >= hidden


def _steps_needed(demand: Demand) -> float:
    """Of the work of a recurrent network: all layers up to the last step wanted; both ways, the last layer's steps
    from each end. Of a last state, the layers below it.
    """
    op, layers = demand.op, weights_by_layer(demand.op)
    x = op.inputs[0]
    if len(x.shape) != 3 or not layers:
        return float(demand.wanted.elements > 0)
    batch, step = _batch_and_step(op)
    ways = 2 if op.attribute("bidirectional") else 1
    found = 0.0
    for box in demand.wanted.boxes:
        if demand.place:
            top = box[0].last
            work: float = sum(layers[: top // ways * ways]) + layers[top]
            entries = box[1].size / demand.out.shape[1]
        else:
            steps, (forward, backward) = x.shape[step], _ways_wanted(demand, box)
            less = int(box[2] != up_to(demand.out.shape[2]))  # of the last step, a part may do
            until, since = (box[step].last + 1 - less) / steps, (steps - box[step].first - less) / steps
            below = 1.0 if forward and backward else until if forward else since
            work = sum(layers[:-ways]) * below + layers[-ways] * until * forward + layers[-1] * since * backward
            entries = box[batch].size / x.shape[batch]
        found = max(found, work / sum(layers) * entries)
    return min(1.0, found)


_RULES: Final[dict[Needs, Callable[[Demand], list[Wanted]]]] = {
    Needs.SHARE: _shares,
    Needs.ELEMENTS: _elements,
    Needs.ROWS: _rows,
    Needs.SCAN: _scan,
    Needs.REDUCED: _reduced,
    Needs.JOINED: _joined,
    Needs.PRODUCT: _product,
    Needs.DIVIDED: _divided,
    Needs.CONVOLVED: convolved,
    Needs.ATTENDED: _attended,
    Needs.RECURRENT: _recurrent,
    Needs.ALL: _all,
}
