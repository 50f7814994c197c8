"""What would need less memory, and how much: a change is made to the recorded timeline, and the peak taken anew."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from rooflight.costs.cost import OpCost, Uncosted
from rooflight.records.document import Fields
from rooflight.records.record import Direction, StorageKind
from rooflight.records.session import KEPT, STOOD, Flags, Int64, Session, owners, touches_of

_LEAST: Final = 0.02  # of the peak
_CHUNKS: Final = 8
_QUANTISED: Final = 4096  # elements: smaller states stay as they are (bitsandbytes)
_OF_8_BITS: Final = (1 + 4 / 256) / 4  # a byte for four, and a float32 for each block of 256
_WIDE: Final = 4096  # classes of a loss
_FIXED: Final = (
    StorageKind.PARAMETER, StorageKind.BUFFER, StorageKind.GRADIENT, StorageKind.OPTIMIZER_STATE, StorageKind.OTHER
)  # fmt: skip
"""What a larger batch leaves as it is."""
_LAYER: Final = re.compile(r"^(.*?(?:^|\.)\d+)(?:\.|$)")
_LOSSES: Final = ("log_softmax", "cross_entropy")


class Saving(Fields, frozen=True, kw_only=True):
    """A change, the bytes of the peak that it saves, and what it costs: FLOPs, and bytes to and from the host."""

    id: str
    change: str
    saved_bytes: int
    peak_bytes: int
    flops: int = 0
    moved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Stay:
    """When storages are made and freed, and how large they are."""

    sizes: Int64
    made: Int64
    freed: Int64

    def totals(self, count: int) -> Int64:
        change = np.zeros(count + 1, dtype=np.int64)
        gone = self.freed != KEPT
        np.add.at(change, np.maximum(self.made, 0), self.sizes)
        np.subtract.at(change, self.freed[gone], self.sizes[gone])
        return np.cumsum(change)[:count]

    def peak(self, count: int) -> int:
        return int(self.totals(count).max(initial=0))


def savings(session: Session, costs: Sequence[OpCost | Uncosted]) -> tuple[Saving, ...]:
    """Changes that save 2 % of the step's peak or more, the largest first. Needs lifetimes that were followed."""
    lifetimes = session.lifetimes
    if lifetimes is None or not len(session):
        return ()
    stay = _Stay(session.storage_bytes, lifetimes.made.astype(np.int64), lifetimes.freed.astype(np.int64))
    count, found = len(session), []
    before = stay.peak(count)
    for name, change, after, flops, moved in _changes(session, stay, costs):
        peak = after.peak(count)
        if before - peak >= _LEAST * before:
            found.append(
                Saving(
                    id=name, change=change, saved_bytes=before - peak, peak_bytes=peak, flops=flops, moved_bytes=moved
                )
            )
    return tuple(sorted(found, key=lambda each: -each.saved_bytes))


def batch_factor(session: Session, capacity: int) -> float | None:
    """How many times the batch fits: parameters, gradients, states, what stands untouched and what an optimizer makes
    stay as they are, all else grows with it. None where that is not known, or nothing grows.
    """
    lifetimes = session.lifetimes
    if lifetimes is None or not len(session):
        return None
    fixed = np.isin(lifetimes.kind, _FIXED) | _made_by(session, Direction.OPTIMIZER)
    stay = _Stay(session.storage_bytes, lifetimes.made.astype(np.int64), lifetimes.freed.astype(np.int64))
    whole = stay.totals(len(session))
    stands = replace(stay, sizes=np.where(fixed, stay.sizes, 0)).totals(len(session))
    grows = whole - stands
    if not grows.any():
        return None
    return float(((capacity - stands)[grows > 0] / grows[grows > 0]).min())


def _made_by(session: Session, direction: Direction) -> Flags:
    """Storages that were made in the step, by a record of this direction."""
    assert session.lifetimes is not None
    made = session.lifetimes.made
    at = np.clip(made, 0, len(session) - 1)
    return np.asarray((made != STOOD) & (session.columns.direction[at] == direction))


def _changes(
    session: Session, stay: _Stay, costs: Sequence[OpCost | Uncosted]
) -> Iterator[tuple[str, str, _Stay, int, int]]:
    assert session.lifetimes is not None
    kind, sizes = session.lifetimes.kind, stay.sizes
    states = kind == StorageKind.OPTIMIZER_STATE
    held = int(sizes[states].sum())
    yield (
        "offload-states",
        "optimizer states in the host's memory",
        replace(stay, sizes=np.where(states, 0, sizes)),
        0,
        2 * held,
    )
    small = np.where(states & (sizes >= 4 * _QUANTISED), (sizes * _OF_8_BITS).astype(np.int64), sizes)
    yield "states-of-8-bits", "an optimizer with states of 8 bits", replace(stay, sizes=small), 0, 0
    scratch = _made_by(session, Direction.OPTIMIZER) & (kind == StorageKind.TEMPORARY)
    yield "fused-optimizer", "fused=True in the optimizer", replace(stay, sizes=np.where(scratch, 0, sizes)), 0, 0
    together = np.array(["_foreach" in op.name for op in session.signatures], dtype=np.bool_)
    scratch &= together[session.columns.signature[np.clip(session.lifetimes.made, 0, len(session) - 1)]]
    one = np.where(scratch, 0, sizes)
    if scratch.any():
        largest = np.flatnonzero(scratch)[sizes[scratch].argmax()]
        one[largest] = sizes[largest]
        yield "one-by-one", "foreach=False in the optimizer", replace(stay, sizes=one), 0, 0
    yield "gradients-to-none", "zero_grad(set_to_none=True)", _without_old_gradients(session, stay), 0, 0
    wide = _of_a_wide_loss(session, sizes)
    chunked = np.where(wide, sizes // _CHUNKS, sizes)
    yield "chunked-loss", f"the loss in {_CHUNKS} chunks of tokens", replace(stay, sizes=chunked), 0, 0
    again, flops = _checkpointed(session, stay, costs)
    yield "checkpointing", "torch.utils.checkpoint around each layer", again, flops, 0


def _without_old_gradients(session: Session, stay: _Stay) -> _Stay:
    """Gradients that stood before the step are made by its backward pass."""
    assert session.lifetimes is not None
    columns, count = session.columns, len(session)
    first = np.full(len(stay.sizes), count, dtype=np.int64)
    writers = owners(columns.written_offsets)
    backward = columns.direction[writers] == Direction.BACKWARD
    np.minimum.at(first, columns.written_ids[backward], writers[backward])
    old = (session.lifetimes.kind == StorageKind.GRADIENT) & (stay.made == STOOD) & (first < count)
    return replace(stay, made=np.where(old, first, stay.made))


def _of_a_wide_loss(session: Session, sizes: Int64) -> Flags:
    """Storages as large as what a loss over many classes is given, made by ops whose results are as wide."""
    assert session.lifetimes is not None
    shapes = [op.inputs[0].shape for op in session.signatures if op.inputs and any(each in op.name for each in _LOSSES)]
    wide = {shape[-1]: shape for shape in shapes if len(shape) > 1 and shape[-1] >= _WIDE and shape[0] > 1}
    makes = np.array(
        [any(each.shape and each.shape[-1] in wide for each in op.outputs) for op in session.signatures], dtype=np.bool_
    )
    made = session.lifetimes.made
    maker = session.columns.signature[np.clip(made, 0, len(session) - 1)]
    least = min((2 * int(np.prod(shape)) for shape in wide.values()), default=1 << 62)
    return np.asarray((made != STOOD) & makes[maker] & (sizes >= least))


def _checkpointed(session: Session, stay: _Stay, costs: Sequence[OpCost | Uncosted]) -> tuple[_Stay, int]:
    """Each layer of a repeated one keeps what it gives on, and makes the rest again when its backward pass begins."""
    assert session.lifetimes is not None
    columns, touches = session.columns, touches_of(session)
    found = [_LAYER.match(module.path) for module in session.modules]
    layers = defaultdict[str, list[int]](list)
    for number, match in enumerate(found):
        if match is not None:
            layers[match[1]].append(number)
    numbers = {module: place for place, modules in enumerate(layers.values()) for module in modules}
    layer_of = np.array([numbers.get(each, -1) for each in range(len(session.modules))], dtype=np.int64)
    layer = layer_of[columns.module]
    forward, backward = (columns.direction == each for each in (Direction.FORWARD, Direction.BACKWARD))
    maker = np.clip(stay.made, 0, len(session) - 1)
    readers, read = owners(columns.read_offsets), columns.read_ids
    given = np.zeros(len(stay.sizes), dtype=np.bool_)  # read by the forward pass of others
    given[read[forward[readers] & (layer[readers] != layer[maker[read]])]] = True
    last = np.zeros(len(stay.sizes), dtype=np.int64)
    np.maximum.at(last, read[forward[readers]], readers[forward[readers]])
    begins = np.full(len(layers) + 1, len(session), dtype=np.int64)
    np.minimum.at(begins, layer[backward], np.flatnonzero(backward))
    chosen = (session.lifetimes.kind == StorageKind.ACTIVATION) & forward[maker] & (layer[maker] >= 0) & ~given
    chosen &= begins[layer[maker]] < touches.last
    again = np.flatnonzero(chosen)
    freed = stay.freed.copy()
    freed[again] = np.maximum(last[again], stay.made[again]) + 1
    flops = sum(
        cost.matrix_flops
        for cost in (costs[each] for each in columns.signature[forward & (layer >= 0) & session.counted].tolist())
        if isinstance(cost, OpCost)
    )
    made = np.append(stay.made, begins[layer[maker[again]]])
    return _Stay(np.append(stay.sizes, stay.sizes[again]), made, np.append(freed, stay.freed[again])), int(flops)
