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
_PLAIN: Final = {
    **dict.fromkeys(("aten::relu", "aten::gelu", "aten::silu", "aten::sigmoid", "aten::tanh", "aten::exp"), 1),
    **dict.fromkeys(("aten::add", "aten::sub", "aten::mul", "aten::div"), 2),
    "aten::native_layer_norm": 3,
}
"""Ops that of the same so many tensors make the same, but for numbers (``alpha``): bounds are then too low."""


def repeated_products(
    session: Session, costs: Sequence[OpCost | Uncosted], calls: Flags
) -> tuple[frozenset[int], dict[int, int]]:
    """Of ``calls``, by record, those that multiply what an earlier one of them multiplied; and of these, those whose
    results are that one's too, with its record. ``costs`` go with the session's signatures.

    Both have one signature, read the same memory, or results that are the same, and nothing wrote to that between them.
    A number that scales the product (``alpha``) is not known, and need not be; where in its memory an operand lies must
    be.
    """
    products = [_factors(op, cost) for op, cost in zip(session.signatures, costs, strict=True)]
    found = _found(session, products, calls, [True] * len(products))
    if not found[0]:
        return found
    chains = [
        tuple(range(len(op.inputs))) if len(op.inputs) == _PLAIN.get(op.name) else () for op in session.signatures
    ]
    either = [product or chain for product, chain in zip(products, chains, strict=True)]
    return _found(session, either, calls, [bool(each) for each in products])


def _found(
    session: Session, places: Sequence[tuple[int, ...]], calls: Flags, is_product: Sequence[bool]
) -> tuple[frozenset[int], dict[int, int]]:
    columns, repeated, equal = session.columns, set[int](), dict[int, int]()
    candidates = np.flatnonzero(calls & np.array([bool(each) for each in places], dtype=np.bool_)[columns.signature])
    counts = np.bincount(columns.signature[candidates], minlength=len(places))
    candidates = candidates[counts[columns.signature[candidates]] > 1]
    if not len(candidates):
        return frozenset(), equal
    values, made = _values(session)
    first, seen = dict[int, int](), dict[tuple[int, ...], tuple[int, list[int]]]()
    ids, offsets, starts = columns.read_ids, columns.read_offsets.tolist(), columns.read_starts
    for record, signature in zip(candidates.tolist(), columns.signature[candidates].tolist(), strict=True):
        op, begin = session.signatures[signature], offsets[record]
        if offsets[record + 1] - begin != len(op.inputs):
            continue
        rows = range(begin, offsets[record + 1])
        where = [_start(int(starts[row]), op.inputs[row - begin], int(session.storage_bytes[ids[row]])) for row in rows]
        read = [first.get(int(values[row]), int(values[row])) for row in rows]
        if any(where[place] == _UNKNOWN for place in places[signature]):
            continue
        key = (signature, *(each[place] for place in places[signature] for each in (read, where)))
        earlier, all_read = seen.setdefault(key, (record, [*read, *where]))
        if earlier == record:
            continue
        if is_product[signature]:
            repeated.add(record)
        if all_read == [*read, *where] and _fills(session, record, op) and _fills(session, earlier, op):
            if is_product[signature]:
                equal[record] = earlier
            sides = (made[slice(*columns.written_offsets[each : each + 2])].tolist() for each in (record, earlier))
            first.update((ours, first.get(its, its)) for ours, its in zip(*sides, strict=True))
    return frozenset(repeated), equal


def _fills(session: Session, record: int, op: OpSignature) -> bool:
    """Whether a call's results have their memory for themselves."""
    written = session.columns.written_ids[slice(*session.columns.written_offsets[record : record + 2])]
    sizes = [-1 if each.packing else each.nbytes for each in op.outputs]
    return bool(sizes == session.storage_bytes[written].tolist())


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


def _values(session: Session) -> tuple[Int64, Int64]:
    """A number of what a storage holds, by what is read and by what is written: another after each write to it."""
    columns, stride = session.columns, len(session) + 1
    read = columns.read_ids.astype(np.int64) * stride + owners(columns.read_offsets)
    written = columns.written_ids.astype(np.int64) * stride + owners(columns.written_offsets)
    order, many = np.sort(written), len(written) + 1
    before, after = np.searchsorted(order, read), np.searchsorted(order, written, side="right")
    return columns.read_ids * np.int64(many) + before, columns.written_ids * np.int64(many) + after


def _start(start: int, tensor: TensorSpec, storage_bytes: int) -> int:
    """Where in its storage a tensor begins: a whole one at its first element, even if that was not recorded."""
    if start != NOWHERE:
        return start
    return 0 if tensor.packing is None and tensor.nbytes == storage_bytes else _UNKNOWN
