"""Products that a program computes again: of the same values, by a call of the same signature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from rooflight.costs.cost import Needs, OpCost, Uncosted
from rooflight.costs.registry import traits_of
from rooflight.records.session import NOWHERE, Flags, Int64, Session, owners
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

_UNKNOWN: Final = NOWHERE - 1


def repeated_products(session: Session, costs: Sequence[OpCost | Uncosted], calls: Flags) -> frozenset[int]:
    """Of ``calls``, by record, those that multiply what an earlier one of them multiplied. ``costs`` go with the
    session's signatures.

    Both have one signature, read the same memory, and nothing wrote to that between them. A number that scales the
    product (``alpha``) is not known, and need not be; where in its memory an operand lies must be.
    """
    places = [_factors(op, cost) for op, cost in zip(session.signatures, costs, strict=True)]
    columns, found = session.columns, set[int]()
    candidates = np.flatnonzero(calls & np.array([bool(each) for each in places], dtype=np.bool_)[columns.signature])
    counts = np.bincount(columns.signature[candidates], minlength=len(places))
    candidates = candidates[counts[columns.signature[candidates]] > 1]
    if not len(candidates):
        return frozenset()
    versions, seen = _versions(session), set[tuple[int, ...]]()
    ids, offsets, starts = columns.read_ids, columns.read_offsets.tolist(), columns.read_starts
    for record, signature in zip(candidates.tolist(), columns.signature[candidates].tolist(), strict=True):
        op, first = session.signatures[signature], offsets[record]
        if offsets[record + 1] - first != len(op.inputs):
            continue
        rows = [first + place for place in places[signature]]
        where = [_start(int(starts[row]), op.inputs[row - first], int(session.storage_bytes[ids[row]])) for row in rows]
        key = (signature, *(int(ids[row]) for row in rows), *(int(versions[row]) for row in rows), *where)
        if _UNKNOWN in where:
            continue
        if key in seen:
            found.add(record)
        seen.add(key)
    return frozenset(found)


def _factors(op: OpSignature, cost: OpCost | Uncosted) -> tuple[int, ...]:
    """The places of the inputs that are multiplied, none of ops of which this is not known. Whether a complex operand
    is conjugated is not known.
    """
    traits = traits_of(op)
    is_complex = any(tensor.dtype.startswith("complex") for tensor in op.inputs)
    if isinstance(cost, Uncosted) or not cost.matrix_flops or is_complex or not op.name.startswith("aten::"):
        return ()
    if traits.needs in (Needs.PRODUCT, Needs.CONVOLVED):
        added = int("add" in op.name and traits.needs is Needs.PRODUCT)
        return added, added + 1
    is_function = traits.product or traits.error_group == "linalg"  # of all that it reads
    return tuple(range(len(op.inputs))) if is_function else ()


def _versions(session: Session) -> Int64:
    """By storage read, how many records wrote to that before."""
    columns, stride = session.columns, len(session) + 1
    written = np.sort(columns.written_ids.astype(np.int64) * stride + owners(columns.written_offsets))
    read = columns.read_ids.astype(np.int64) * stride
    return np.searchsorted(written, read + owners(columns.read_offsets)) - np.searchsorted(written, read)


def _start(start: int, tensor: TensorSpec, storage_bytes: int) -> int:
    """Where in its storage a tensor begins: a whole one at its first element, even if that was not recorded."""
    if start != NOWHERE:
        return start
    return 0 if tensor.packing is None and tensor.nbytes == storage_bytes else _UNKNOWN
