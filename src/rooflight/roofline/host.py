"""Host: the CPU time that a program's ops take before the device can begin them, and ops that never reach the device.

A recording on a GPU or on meta tensors shows which tensors lie on the CPU: ops on these alone, such as those of a
loader, are the host's (``with_host_side``). In a recording on a CPU, host scalars are looked for (``on_host``): numbers
that a program on a GPU keeps in the host's memory, such as an optimizer's step counts.
torch.optim makes the step counts of an optimizer that is neither fused nor ``capturable`` on the CPU, wherever the
parameters are, and reads them in each step: that takes the host's time and none of the device's. A recording on a CPU
has them among tensors that would be on the device, and to read one has the signature of reading a loss. What tells them
apart is which ops touch them: only the optimizer's on single numbers, and one of these is a read. A loss, a norm of
gradients or the inf check of a gradient scaler is computed from larger tensors; a fused optimizer's kernel reads its
counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from numbers import Real
from typing import Final

import numpy as np

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.costs.registry import cost_of, traits_of
from rooflight.hardware.devices.spec import DeviceSpec
from rooflight.records.quantity import Quantity, count_of
from rooflight.records.record import Direction
from rooflight.records.session import Flags, Int32, Int64, Session, owners
from rooflight.records.signature import FROM_HOST, ON_HOST, TO_HOST, AttributeValue, OpSignature

UNITS: Final = {
    "aten::native_batch_norm": 5.6,
    "aten::native_group_norm": 4.0,
    "aten::native_layer_norm": 2.5,
    "aten::logsumexp": 8.0,  # five ops, which a recording without hardware sees as one
    "aten::cat": 2.8,
    "aten::max": 1.9,
    "aten::min": 1.9,
    "aten::argmax": 1.9,
    "aten::cumsum": 1.4,
    "aten::scaled_dot_product_attention": 4.0,
    "aten::empty": 0.3,
    "aten::_local_scalar_dense": 1.0,
}
"""Host time of an eager call, where that of a pointwise op, launch included, is 1. The ratios are those of measured
programs on five machines whose hosts differ by a factor of 3 (docs/concepts/prediction.md); a machine scales
them all.
"""
_VIEW, _PRODUCT, _CONVOLUTION, _LIST, _ENTRY, _OTHER = 0.34, 2.1, 3.8, 2.0, 0.1, 1.0
_SCALAR_READ, _SCALAR_WRITE = 0.05, 0.15
"""Of an op on the host's own numbers, for each number: torch on a CPU takes 0.14 µs to read one and 0.6 to 0.8 µs to
add to each of a list, where a view takes 1.6. Profiles of an A100 and a B200 have such reads at 0.4 to 1.0 µs.
"""
_BYTES_A_UNIT: Final = 45_000
"""What an op on larger tensors of the host's moves in the time of one eager call: 5 GB/s on a typical host, new memory
included. One thread here stacks, casts and scales images at 2 to 3 GB/s beside other programs.
"""
PAGEABLE_BYTES_PER_S: Final = 9e9
"""Of copies from and to memory that is not pinned, which the driver moves by way of its own: 58 ms for 512 MB beside a
B200 (measured_pairs), 6 to 12 GB/s beside others.
"""
_OF_THE_LINK: Final = 0.85
"""Pinned copies reach 24 to 27 of PCIe 4.0's 31.5 GB/s, and 50 to 55 of PCIe 5.0's 63."""
_COPIES: Final = frozenset({"aten::_to_copy", "aten::copy_", "aten::_foreach_copy_"})
_BACKWARD: Final = 0.8  # of the forward op's: autograd calls it from C++, without Python
SYNCS: Final = frozenset({"aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::is_nonzero"})
"""Ops whose results the host needs: it waits until the device has computed them."""
_FIRST: Final = 1.2  # host time, in the same unit, before the first op of a step
_REPLAY_S: Final = 10e-6  # one launch of a whole graph


_CELLS: Final = {"aten::lstm": 1.1, "aten::gru": 1.25, "aten::rnn_tanh": 0.9, "aten::rnn_relu": 0.9}
"""Of a recurrent network, for each step of each layer and direction: the library launches them one after the other.
Geometric means of measured programs on six machines: of 0.6 to 1.6 (LSTM, two programs) and 0.6 to 1.9 (GRU, two), the
most on Hopper and Blackwell. None was measured of the others.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host that spends ``launch_s`` seconds on an eager pointwise op, its launch included, and on other ops in
    proportion (``units_of``); and ``first_s`` before the first op of a step. ``replayed``: the step is one CUDA graph,
    whose ops cost the host nothing, and ``first_s`` is the launch of that. ``low`` and ``high`` are the factors by
    which the host time of nine steps in ten differs. ``source`` says where the figures come from.

    Raises ValueError for times that are negative or not finite, and for factors that do not enclose 1.
    """

    launch_s: float
    first_s: float
    low: float
    high: float
    source: str
    replayed: bool = False

    def __post_init__(self) -> None:
        given = (self.launch_s, self.first_s)
        wrong = next((seconds for seconds in given if not isfinite(seconds) or seconds < 0), None)
        if wrong is not None:
            raise ValueError(f"a host's seconds per launch are at least 0, not {wrong:g}")
        if not 0 < self.low <= 1 <= self.high or not isfinite(self.high):
            raise ValueError(f"factors of a host's time enclose 1, not {self.low} and {self.high}")

    @classmethod
    def of(cls, launch_s: float, source: str = "given") -> Host:
        """A host that spends so many seconds on an eager pointwise op. Raises ValueError below 0, TypeError for what is
        no number.
        """
        if isinstance(launch_s, bool) or not isinstance(launch_s, Real):
            raise TypeError(f"a host is seconds per launch, such as 6e-6, or what fit_host found, not {launch_s!r:.60}")
        launch_s = float(launch_s)
        return cls(launch_s=launch_s, first_s=_FIRST * launch_s, low=0.75, high=1.35, source=source)

    @classmethod
    def of_graph(cls) -> Host:
        """A host that replays the whole step from one CUDA graph."""
        return cls(launch_s=0.0, first_s=_REPLAY_S, low=0.5, high=2.0, source="a graph's replay", replayed=True)

    def scaled(self, factor: float) -> Host:
        """A host that takes so many times as long."""
        return replace(self, launch_s=self.launch_s * factor, first_s=self.first_s * factor)


TYPICAL: Final = Host(
    launch_s=9e-6,
    first_s=_FIRST * 9e-6,
    low=0.6,
    high=2.0,
    source="typical: five measured hosts take 6 to 17 µs",
)
"""The host that is assumed where none is given."""
IN_THE_OPS: Final = Host(launch_s=0.0, first_s=0.0, low=1.0, high=1.0, source="in the ops' times")
"""The host of a device whose ops are measured together with what launches them: a CPU."""


def units_of(op: OpSignature, cost: OpCost | Uncosted, direction: Direction = Direction.FORWARD) -> float:
    """Host time of an eager call, where that of a pointwise op in forward is 1."""
    if ON_HOST in op.attributes and _is_of_numbers(op):
        return _SCALAR_READ if op.name in SYNCS else _SCALAR_WRITE * max(1, len(op.named("self")))
    if ON_HOST in op.attributes:
        return _forward_units(op, cost) + (op.input_bytes + op.output_bytes) / _BYTES_A_UNIT
    units = _forward_units(op, cost)
    return units * _BACKWARD if direction is Direction.BACKWARD else units


def _forward_units(op: OpSignature, cost: OpCost | Uncosted) -> float:
    known = UNITS.get(op.name)
    if known is not None:
        return known
    cell = _CELLS.get(op.name)
    if cell is not None:
        return cell * _cells(op)
    traits = traits_of(op)
    if traits.over_lists:
        # a list is launched in pieces, and each tensor's address is written for its piece
        return _LIST + _ENTRY * len(op.named("self") or op.inputs)
    if traits.view or (isinstance(cost, OpCost) and cost.does_nothing):
        return _VIEW
    if traits.convolution:
        return _CONVOLUTION
    return _PRODUCT if traits.product else _OTHER


def _cells(op: OpSignature) -> int:
    """Steps x layers x directions of a recurrent network; of a packed batch one for all tokens of a layer."""
    x = op.input("input")
    layers, directions = op.attribute("num_layers"), 1 + bool(op.attribute("bidirectional"))
    if x is None or len(x.shape) < 3 or not isinstance(layers, int):
        return directions
    return x.shape[1 if op.attribute("batch_first") else 0] * layers * directions


_READS = frozenset({"aten::_local_scalar_dense", "aten::item"})


def with_host_scalars(session: Session) -> Session:
    """The session with ops on host scalars marked ``ON_HOST``; itself where it has none."""
    found = on_host(session)
    if not found.any():
        return session
    return _marked(session, found, ON_HOST)


def with_host_side(
    session: Session, on_host: Sequence[int], weights: Collection[int] = (), *, fake: bool = False
) -> Session:
    """The session of a program for a GPU with the host's part marked: ops on storages of which all are in the host's
    memory, whose numbers are given, ``ON_HOST``, and copies to and from these ``TO_HOST`` and ``FROM_HOST``.

    Only where the program's main work is elsewhere: the host's ops do fewer FLOPs than the others, and most bytes
    of ``weights``, the numbers of storages of modules' parameters and buffers, lie elsewhere; where no weights are
    known, the host's ops move fewer bytes than the others. Else nothing is marked, a note says what counts, and the
    recording is one of this CPU, whatever meta tensors it made, unless its tensors are ``fake`` or a GPU's.
    """
    if not on_host:
        return session
    columns, sizes = session.columns, session.storage_bytes
    is_here = np.zeros(len(sizes), dtype=bool)
    is_here[np.array(on_host, dtype=np.int64)] = True
    here, there, written_here = np.zeros((3, len(session)), dtype=bool)
    for ids, offsets in ((columns.read_ids, columns.read_offsets), (columns.written_ids, columns.written_offsets)):
        records = owners(offsets)
        here[records[is_here[ids]]] = True
        there[records[~is_here[ids]]] = True
    kept = np.array(list(weights), dtype=np.int64)
    weights_there = int(sizes[kept[~is_here[kept]]].sum()) - int(sizes[kept[is_here[kept]]].sum())
    host, others = _work(session, here & ~there), _work(session, there)
    moves_less = host.bytes_moved < others.bytes_moved if not weights_there else weights_there > 0
    if not moves_less or host.flops > others.flops:
        return _unmarked(session, host, others, fake=fake)
    written_here[owners(columns.written_offsets)[is_here[columns.written_ids]]] = True
    copies = np.array([op.name in _COPIES for op in session.signatures], dtype=bool)[columns.signature] & here & there
    session = _marked(session, here & ~there, ON_HOST)
    session = _marked(session, copies & written_here, TO_HOST)
    return _marked(session, copies & ~written_here, FROM_HOST)


@dataclass(frozen=True, slots=True)
class Work:
    """What some ops do in sum, FLOPs of products and of other arithmetic; bytes of ops without a cost are those of
    their tensors.
    """

    calls: int
    flops: int
    bytes_moved: int

    @classmethod
    def of(cls, calls: Iterable[tuple[OpSignature, int]]) -> Work:
        """Of each signature with its number of calls."""
        total, flops, moved = 0, 0, 0
        for op, count in calls:
            cost = cost_of(op)
            total += count
            flops += count * (cost.matrix_flops + cost.vector_flops) if isinstance(cost, OpCost) else 0
            moved += count * (cost.bytes_moved if isinstance(cost, OpCost) else op.input_bytes + op.output_bytes)
        return cls(total, flops, moved)

    def __str__(self) -> str:
        return f"{count_of(self.calls, 'op')}, {Quantity(self.flops, 'FLOP')}, {Quantity(self.bytes_moved, 'B')}"


def _work(session: Session, records: Flags) -> Work:
    numbers, counts = np.unique(session.columns.signature[records & session.counted], return_counts=True)
    return Work.of((session.signatures[n], k) for n, k in zip(numbers.tolist(), counts.tolist(), strict=True))


def _unmarked(session: Session, host: Work, others: Work, *, fake: bool) -> Session:
    kind = session.environment.get("device_kind", "")
    environment = {**session.environment, "device_kind": "cpu" if kind == "meta" and not fake else kind}
    note = (
        f"Ops on tensors of the CPU ({host}) and elsewhere ({others}) all count as the device's: that a GPU's program "
        "would keep the former in the host's memory is not certain."
    )
    return replace(session, environment=environment, notes=(*session.notes, *[note] * bool(others.bytes_moved)))


def _marked(session: Session, records: Flags, mark: tuple[str, AttributeValue]) -> Session:
    if not records.any():
        return session
    columns, marked = session.columns, dict[int, int]()
    numbers = {op: number for number, op in enumerate(session.signatures)}
    for number in np.unique(columns.signature[records]).tolist():
        op = session.signatures[number]
        same = replace(op, attributes=tuple(dict.fromkeys((*op.attributes, mark))))
        marked[number] = numbers.setdefault(same, len(numbers))
    signature = columns.signature.copy()
    signature[records] = [marked[number] for number in columns.signature[records].tolist()]
    return replace(session, signatures=tuple(numbers), columns=replace(columns, signature=signature))


def device_cost_of(op: OpSignature) -> OpCost | Uncosted:
    """What an op of a program on a GPU costs that: nothing of an op on the host's tensors, and of a copy between the
    two only what it moves in the GPU's own memory.
    """
    if ON_HOST in op.attributes:
        return OpCost()
    cost = cost_of(op)
    if isinstance(cost, Uncosted) or not crosses(op):
        return cost
    return replace(cost, bytes_read=0) if FROM_HOST in op.attributes else replace(cost, bytes_written=0)


def crosses(op: OpSignature) -> bool:
    """Whether an op copies between the host's memory and the device's."""
    return FROM_HOST in op.attributes or TO_HOST in op.attributes


def pinned_bytes_per_s(device: DeviceSpec) -> float | None:
    """At which speed pinned memory of the host is copied; None where the device's link to it is not known."""
    fastest = max((link.bytes_per_s or 0.0 for link in device.links if link.name.startswith("PCIe")), default=0.0)
    return _OF_THE_LINK * fastest or None


def crossing_s(op: OpSignature, device: DeviceSpec, *, pins: bool) -> float:
    """Seconds that a copy between host and device takes on the link; 0 for any other op. ``pins``: from pinned memory,
    else from any.
    """
    if not crosses(op):
        return 0.0
    speed = (pinned_bytes_per_s(device) if pins else None) or PAGEABLE_BYTES_PER_S
    return op.output_bytes / speed


def in_device_memory(session: Session) -> Session:
    """The session without the bytes of storages that its marks show to be in the host's memory."""
    columns = session.columns

    def touched(ids: Int32, offsets: Int64, *marks: tuple[str, AttributeValue]) -> Int32:
        has = np.array([any(mark in op.attributes for mark in marks) for op in session.signatures], dtype=bool)
        return np.asarray(ids[has[columns.signature[owners(offsets)]]])

    read, written = (columns.read_ids, columns.read_offsets), (columns.written_ids, columns.written_offsets)
    on_host = [*touched(*read, ON_HOST, FROM_HOST), *touched(*written, ON_HOST, TO_HOST)]
    sizes = session.storage_bytes.copy()
    sizes[np.setdiff1d(np.array(on_host, dtype=np.int64), touched(*written, FROM_HOST))] = 0  # copy_ reads its target
    return replace(session, storage_bytes=sizes)


def on_host(session: Session) -> Flags:
    """Which records work on host scalars alone: numbers that share no op, not even by way of others, with a larger
    tensor or with an op outside of the optimizer, and one of which the program reads.
    """
    columns, count = session.columns, len(session)
    may = np.array([_is_of_numbers(op) for op in session.signatures], dtype=bool)
    if not count or not may.any():
        return np.zeros(count, dtype=bool)
    candidate = may[columns.signature] & (columns.direction == Direction.OPTIMIZER)
    records = np.concatenate([owners(columns.read_offsets), owners(columns.written_offsets)])
    storages = np.concatenate([columns.read_ids, columns.written_ids])
    spoiled = np.zeros(len(session.storage_bytes), dtype=bool)
    spoiled[storages[~candidate[records]]] = True
    ours = candidate[records]
    group = _Groups()
    for record, storage in zip(records[ours].tolist(), storages[ours].tolist(), strict=True):
        group.join(record, count + storage)
    reads = np.array([op.name in _READS for op in session.signatures], dtype=bool)[columns.signature]
    candidates = np.unique(records[ours])
    roots = np.array([group.root(record) for record in candidates.tolist()], dtype=np.int64)
    bad = {group.root(count + storage) for storage in np.unique(storages[ours]).tolist() if spoiled[storage]}
    read = set(roots[reads[candidates]].tolist())
    found = np.zeros(count, dtype=bool)
    found[candidates[np.isin(roots, list(read - bad))]] = True
    return found


def _is_of_numbers(op: OpSignature) -> bool:
    tensors = (*op.inputs, *op.outputs)
    return bool(tensors) and not any(tensor.shape for tensor in tensors)


class _Groups:
    """Numbers that were joined to each other: union-find with path halving."""

    def __init__(self) -> None:
        self._above: dict[int, int] = {}

    def root(self, number: int) -> int:
        above = self._above
        while (parent := above.setdefault(number, number)) != number:
            above[number] = number = above[parent]
        return number

    def join(self, first: int, second: int) -> None:
        self._above[self.root(first)] = self.root(second)
