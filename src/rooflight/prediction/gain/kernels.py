"""What Inductor makes of a step: the kernels that it launches one after the other, and what they move.

From the regions of the fused bound (``roofline/fusion/regions.py``): of a region, each product, convolution or other
op that no chain can take in is a call of a library; all that is fused with them or with each other is one generated
kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Final

import numpy as np

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.costs.registry import traits_of
from rooflight.prediction.work.floors import SHORTEST_KERNEL_S
from rooflight.records.measurement import Float64
from rooflight.records.record import GIVEN, Direction
from rooflight.records.session import STOOD, Flags, Session
from rooflight.records.signature import OpSignature
from rooflight.roofline.analysis import Analysis
from rooflight.roofline.fusion.graph import Region
from rooflight.roofline.fusion.regions import Fusion
from rooflight.roofline.host import SYNCS, crosses


class Kind(Enum):
    """Ops whose kernels gain alike from a compiler."""

    CONVOLUTION = "convolution"
    DEPTHWISE = "depthwise convolution"
    POINTED = "1 x 1 convolution"
    VOLUME = "3d convolution"
    TRANSPOSED = "transposed convolution"
    PRODUCT = "product"
    ATTENTION = "attention"
    RECURRENT = "recurrent network"
    NORM = "norm"
    SOFTMAX = "softmax"
    REDUCTION = "reduction"
    SCAN = "scan"
    POOL = "pooling"
    GATHER = "gather"
    COPY = "copy"
    POINTWISE = "pointwise"
    OTHER = "other"


CONVOLUTIONS: Final = frozenset({Kind.CONVOLUTION, Kind.DEPTHWISE, Kind.POINTED, Kind.VOLUME, Kind.TRANSPOSED})
REDUCING: Final = frozenset({Kind.NORM, Kind.SOFTMAX, Kind.REDUCTION, Kind.SCAN})
_UNTAKEN: Final = ("aten::lstm", "aten::gru", "aten::rnn_")
"""Dynamo leaves recurrent networks to torch."""
_BY_NAME: Final[Sequence[tuple[Kind, tuple[str, ...]]]] = (
    (Kind.ATTENTION, ("scaled_dot_product",)),
    (Kind.RECURRENT, _UNTAKEN),
    (Kind.NORM, ("_norm", "batch_norm", "aten::var", "aten::std")),
    (Kind.SOFTMAX, ("softmax", "logsumexp")),
    (Kind.SCAN, ("aten::cum", "aten::sort", "aten::topk", "logcumsum")),
    (Kind.POOL, ("pool",)),
    (Kind.REDUCTION, ("aten::sum", "aten::mean", "aten::max", "aten::min", "aten::amax", "aten::amin", "aten::arg",
                      "aten::prod", "nll_loss", "aten::any", "aten::all")),
    (Kind.GATHER, ("embedding", "aten::index", "aten::gather", "aten::scatter", "upsample")),
    (Kind.COPY, ("aten::clone", "aten::copy_", "aten::cat", "aten::_to_copy", "aten::contiguous", "_pad")),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A kernel, or a call of a library, of the compiled step.

    ``place``: of the last of its ops among the counted ones. ``generated``: written by Inductor. ``ops`` by kind.
    ``host_units``: what its ops cost the host eagerly (``roofline/host.py``). ``op_s`` and ``op_bytes`` are of its ops
    one by one, ``seconds`` and bytes of itself. ``arithmetic_s``: of its ops in a generated kernel, 0 where that is not
    known apart.
    """

    place: int
    generated: bool
    ops: Mapping[Kind, int]
    host_units: float
    op_s: float
    op_bytes: int
    arithmetic_s: float
    seconds: float
    bytes_read: int
    bytes_moved: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompiledWork:
    """The launches of a compiled step in their order, and what surrounds them.

    ``eager`` [counted ops]: which stay as they are: those outside of the model that is compiled, and those that the
    tracer does not take. ``graphs``: calls of compiled code in a step. ``copied_bytes``: inputs that are copied to
    where a CUDA graph reads them. ``op_s`` by kind: device time of the ops that are compiled, one by one.
    ``channels_last``: Inductor brings convolutions into this order on a GPU. ``stored``: storages that are written,
    not only passed on inside of kernels.
    """

    launches: tuple[Launch, ...]
    eager: Flags
    graphs: int
    copied_bytes: int
    copies: int
    op_s: Mapping[Kind, float]
    channels_last: bool
    stored: frozenset[int] = frozenset()

    @property
    def generated(self) -> int:
        """Kernels that Inductor writes."""
        return sum(launch.generated for launch in self.launches)

    @property
    def library_calls(self) -> int:
        """Calls of kernels of libraries, and of torch's own."""
        return len(self.launches) - self.generated

    @property
    def op_bytes(self) -> int:
        """Bytes that the compiled ops move one by one."""
        return sum(launch.op_bytes for launch in self.launches)

    @property
    def bytes_moved(self) -> int:
        """Bytes that the launches move."""
        return sum(launch.bytes_moved for launch in self.launches)


def compiled_work(
    analysis: Analysis, seconds: Float64, arithmetic_s: Float64 | None = None, *, fusion: Fusion | None = None
) -> CompiledWork:
    """What Inductor makes of a step whose counted ops take ``seconds`` [ops] eagerly, on the device, and
    ``arithmetic_s`` [ops] in a generated kernel without what it moves. ``fusion`` is the analysis' by default.
    """
    session = analysis.session
    places = {record: place for place, record in enumerate(np.flatnonzero(session.counted).tolist())}
    eager = _eager(session)
    kinds = [kind_of_op(op, cost) for op, cost in zip(session.signatures, analysis.costs, strict=True)]
    op_s: dict[Kind, float] = dict.fromkeys(Kind, 0.0)
    launches: list[Launch] = []
    maker = _Maker(analysis, kinds, places, seconds, np.zeros_like(seconds) if arithmetic_s is None else arithmetic_s)
    stored: set[int] = set()
    for region in (fusion or analysis.fusion).regions:
        inside = [record for record in region.records if not eager[places[record]]]
        for record in inside:
            op_s[maker.kind(record)] += float(seconds[places[record]])
        launches += maker.launches(inside, region)
        stored.update(region.writes)
        stored.update(maker.written_by_libraries(region.records))
    launches.sort(key=lambda launch: launch.place)
    copied = _copied_inputs(session)
    return CompiledWork(
        launches=tuple(launches),
        eager=eager,
        graphs=_graphs(session, eager),
        copied_bytes=sum(copied),
        copies=len(copied),
        op_s=op_s,
        channels_last=_takes_channels_last(session, kinds, eager),
        stored=frozenset(stored),
    )


class _Maker:
    def __init__(
        self,
        analysis: Analysis,
        kinds: Sequence[Kind],
        places: Mapping[int, int],
        seconds: Float64,
        arithmetic_s: Float64,
    ) -> None:
        self._session, self._units = analysis.session, analysis.queue.units
        self._least_s = analysis.device.least_kernel_s or SHORTEST_KERNEL_S
        self._kinds, self._places, self._seconds, self._arithmetic = kinds, places, seconds, arithmetic_s
        self._signature: list[int] = analysis.session.columns.signature.tolist()
        self._costs = [OpCost() if isinstance(cost, Uncosted) else cost for cost in analysis.costs]

    def kind(self, record: int) -> Kind:
        """The kind of a record's op."""
        return self._kinds[self._signature[record]]

    def written_by_libraries(self, records: Sequence[int]) -> Iterator[int]:
        """Storages that calls of libraries among the records write."""
        columns = self._session.columns
        for record in filter(self._is_library, records):
            start, stop = columns.written_offsets[record : record + 2]
            yield from columns.written_ids[start:stop].tolist()

    def launches(self, records: Sequence[int], region: Region) -> list[Launch]:
        """Those of a region's compiled records."""
        alone = [record for record in records if self._is_library(record)]
        chain = [record for record in records if not self._is_library(record)]
        costs = [self._cost(record) for record in alone]
        found = [
            self._launch([record], cost.bytes_read, cost.bytes_moved, generated=False)
            for record, cost in zip(alone, costs, strict=True)
        ]
        if chain:
            # what libraries read they read by themselves; what they wrote is read once more
            read = max(0, region.bytes_read - sum(cost.bytes_read for cost in costs))
            read += sum(cost.bytes_written for cost in costs)
            moved = min(sum(self._cost(record).bytes_moved for record in chain), read + region.bytes_written)
            found.append(self._launch(chain, min(read, moved), moved, generated=True))
        return found

    def _launch(self, records: Sequence[int], read: int, moved: int, *, generated: bool) -> Launch:
        places = [self._places[record] for record in records]
        op_bytes = sum(self._cost(record).bytes_moved for record in records)
        op_s = float(self._seconds[places].sum())
        seconds = op_s if not generated or not op_bytes else min(op_s, op_s * moved / op_bytes)
        return Launch(
            place=max(places),
            generated=generated,
            ops=Counter(map(self.kind, records)),
            host_units=float(self._units[places].sum()),
            op_s=op_s,
            op_bytes=op_bytes,
            arithmetic_s=self._arithmetic_s(records) if generated else 0.0,
            seconds=max(seconds, min(float(self._seconds[places].max()), self._least_s)),
            bytes_read=read,
            bytes_moved=moved,
        )

    def _arithmetic_s(self, records: Sequence[int]) -> float:
        """What is small and broadcast is computed again for each element that it goes to, until a reduction."""
        sizes = [max((out.numel for out in self._op(record).outputs), default=0) for record in records]
        most, reduced, total = max(sizes), False, 0.0
        for record, size in zip(records, sizes, strict=True):
            reduced |= self.kind(record) in REDUCING
            times = 1.0 if reduced or not size else most / size
            total += times * float(self._arithmetic[self._places[record]])
        return total

    def _op(self, record: int) -> OpSignature:
        return self._session.signatures[self._signature[record]]

    def _cost(self, record: int) -> OpCost:
        return self._costs[self._signature[record]]

    def _is_library(self, record: int) -> bool:
        op = self._op(record)
        return not traits_of(op).fusable or self._cost(record).matrix_flops > 0 or crosses(op)


def kind_of_op(op: OpSignature, cost: OpCost | Uncosted) -> Kind:
    """The kind of an op by what its formula declares, and by its name."""
    traits = traits_of(op)
    if traits.convolution:
        return _kind_of_convolution(op)
    for kind, parts in _BY_NAME:
        if any(part in op.name for part in parts):
            return kind
    if traits.product:
        return Kind.PRODUCT
    return Kind.POINTWISE if traits.fusable or isinstance(cost, Uncosted) else Kind.OTHER


def _kind_of_convolution(op: OpSignature) -> Kind:
    weight, groups = op.input("weight"), op.attribute("groups")
    if op.attribute("transposed"):
        return Kind.TRANSPOSED
    if weight is None or len(weight.shape) < 3:
        return Kind.CONVOLUTION
    if isinstance(groups, int) and groups > 1 and weight.shape[1] == 1:
        return Kind.DEPTHWISE
    if len(weight.shape) == 5:
        return Kind.VOLUME
    return Kind.POINTED if prod(weight.shape[2:]) == 1 else Kind.CONVOLUTION


def _eager(session: Session) -> Flags:
    """Which counted ops stay eager: where a model was recorded, its forward and backward alone are compiled."""
    columns, counted = session.columns, session.counted
    names = [op.name.startswith(_UNTAKEN) for op in session.signatures]
    untaken = np.array(names, dtype=bool)[columns.signature[counted]] if names else np.zeros(0, dtype=bool)
    outside = np.array([not module.path and not module.class_name for module in session.modules], dtype=bool)
    if outside.all():
        return np.asarray(untaken | (columns.direction[counted] == Direction.OPTIMIZER))
    return np.asarray(untaken | outside[columns.module[counted]])


def _graphs(session: Session, eager: Flags) -> int:
    """Calls of compiled code: one for each stretch of compiled ops in one direction, which what reads a value ends."""
    columns, counted = session.columns, session.counted
    direction, signature = columns.direction[counted], columns.signature[counted]
    ends = [op.name in SYNCS for op in session.signatures]
    count, within = 0, -1
    for place in range(len(eager)):
        if eager[place] or ends[signature[place]]:
            within = (
                -1 if not eager[place] or session.signatures[signature[place]].name.startswith(_UNTAKEN) else within
            )
        elif within != direction[place]:
            count, within = count + 1, int(direction[place])
    return count


def _copied_inputs(session: Session) -> list[int]:
    lifetimes, columns = session.lifetimes, session.columns
    if lifetimes is None:
        return []
    read = np.unique(columns.read_ids)
    stood = (lifetimes.made[read] == STOOD) & np.isin(lifetimes.kind[read], GIVEN)
    return [int(session.storage_bytes[storage]) for storage in read[stood].tolist()]


_GROUPED, _DEFAULT, _NARROWING, _SMALL = 1.358, 0.823, 0.725, 0.783


def _takes_channels_last(session: Session, kinds: Sequence[Kind], eager: Flags) -> bool:
    """Whether Inductor brings convolutions into channels-last order on a GPU: its own rule for inference, by FLOPs
    (``torch._inductor.graph.GraphLowering.decide_layout_opt``, torch 2.5 to 2.13).
    """
    signature = session.columns.signature[session.counted][~eager]
    total, weighted, count = 0.0, 0.0, 0
    for number, calls in zip(*np.unique(signature, return_counts=True), strict=True):
        op = session.signatures[number]
        weight, groups = op.input("weight"), op.attribute("groups")
        if kinds[number] not in CONVOLUTIONS or weight is None:
            continue
        into, out = weight.shape[1], weight.shape[0]
        work = float(calls) * prod(weight.shape) * prod(op.outputs[0].shape[2:]) * op.outputs[0].shape[0]
        if isinstance(groups, int) and groups > 1 and into > 1:
            factor = _GROUPED
        elif out <= 64 and into <= 64:
            factor = _SMALL
        else:
            factor = _NARROWING if out * 2 <= into and weight.shape[2] > 1 else _DEFAULT
        count += int(calls)
        total, weighted = total + work, weighted + work * factor
    return count > 0 and len(signature) < 300 * count and weighted <= total
