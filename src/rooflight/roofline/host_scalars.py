"""Host scalars: numbers that a program on a GPU keeps in the host's memory, such as an optimizer's step counts.

torch.optim makes the step counts of an optimizer that is neither fused nor ``capturable`` on the CPU, wherever the
parameters are, and reads them in each step: that takes the host's time and none of the device's. A recording on a CPU
has them among tensors that would be on the device, and to read one has the signature of reading a loss. What tells them
apart is which ops touch them: only the optimizer's on single numbers, and one of these is a read. A loss, a norm of
gradients or the inf check of a gradient scaler is computed from larger tensors; a fused optimizer's kernel reads its
counts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rooflight.records.estimate import Estimate
from rooflight.records.record import Direction
from rooflight.records.session import Flags, Session
from rooflight.records.signature import ON_HOST, OpSignature
from rooflight.records.touches import owners

_READS = frozenset({"aten::_local_scalar_dense", "aten::item"})


def with_host_scalars(session: Session) -> Session:
    """The session with ops on host scalars marked ``ON_HOST``; itself where it has none."""
    found = on_host(session)
    if not found.any():
        return session
    columns, table = session.columns, dict.fromkeys(session.signatures)
    marked: dict[int, int] = {}
    numbers = {op: number for number, op in enumerate(table)}
    for number in np.unique(columns.signature[found]).tolist():
        op = session.signatures[number]
        same = replace(op, attributes=tuple(dict.fromkeys((*op.attributes, ON_HOST))))
        marked[number] = numbers.setdefault(same, len(numbers))
    signature = columns.signature.copy()
    signature[found] = [marked[number] for number in columns.signature[found].tolist()]
    return replace(session, signatures=tuple(numbers), columns=replace(columns, signature=signature))


def without_device(estimate: Estimate | None) -> Estimate | None:
    """The estimate of an op on host scalars: what the device does for it takes no longer than its bound, which is next
    to nothing. The host's time is in the wall time.
    """
    if estimate is None:
        return None
    none_s = estimate.bound_s
    return replace(
        estimate, time_s=none_s, low_s=none_s, high_s=none_s, launch_s=0.0, kernels_s=0.0, extrapolated=False
    )


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
    """Whether all tensors of an op are single numbers without dimensions."""
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
