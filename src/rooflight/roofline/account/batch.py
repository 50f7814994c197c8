"""What a step is given: samples or tokens, and what share of the matrix peak its products reach in a time."""

from __future__ import annotations

from typing import Final

import numpy as np

from rooflight.records.record import OF_MODULES, Direction, StorageKind
from rooflight.records.session import Int64, Session
from rooflight.records.tensor import TensorSpec
from rooflight.roofline.account.accounted import Accounted

_INTEGERS: Final = ("int64", "int32")
_FIRST_RECORDS: Final = 32
_RESHAPED: Final = ("aten::view", "aten::_unsafe_view", "aten::reshape", "aten::unsqueeze", "aten::squeeze")


def batch_of(session: Session) -> tuple[str, int] | None:
    """What a step is given: ("samples", N), the first dimension of the first tensor that a module works on, or
    ("tokens", N), the first two of an integer one; summed over the batches whose gradients it accumulates. None where
    no module is known.
    """
    columns = session.columns
    known = np.array([bool(module.path or module.class_name) for module in session.modules], dtype=np.bool_)
    inside = np.flatnonzero(session.counted & (columns.direction == Direction.FORWARD) & known[columns.module])
    if not len(inside):
        return None
    first = inside[:_FIRST_RECORDS].tolist()
    made: set[int] = set()  # by the module itself: positions, say
    reader: int | None = None
    tensors: tuple[TensorSpec, ...] = ()
    for record in first:
        if tensors := _given(session, record, made):
            reader = record
            break
        made.update(columns.written_ids[columns.written_offsets[record] : columns.written_offsets[record + 1]].tolist())
    tensor = next((each for each in tensors if each.dtype in _INTEGERS), next(iter(tensors), None))
    if tensor is None or reader is None or not tensor.shape:
        return None
    for record in reversed(first[: first.index(reader)]):  # layers look at it in another shape first
        view = session.signatures[int(columns.signature[record])]
        if view.name in _RESHAPED and view.outputs[0].shape == tensor.shape and view.inputs[0].shape:
            tensor = view.inputs[0]
    times = _accumulated(session, reader, inside)
    if tensor.dtype in _INTEGERS and len(tensor.shape) > 1:
        return "tokens", tensor.shape[0] * tensor.shape[1] * times
    return "samples", tensor.shape[0] * times


def matrix_share(analysis: Accounted, time_s: float) -> float | None:
    """MFU of a step that takes so long: its matrix FLOPs by the peak of their format, None where they have several."""
    peaks = [analysis.device.matrix_peak(name) for name in analysis.matrix_formats]
    if len(peaks) != 1 or not peaks[0]:
        return None
    return float(analysis.totals.matrix_flops / time_s / peaks[0])


def _accumulated(session: Session, reader: int, inside: Int64) -> int:
    """How many batches a step has: how often, between backward passes, that op reads the same weights, and what no
    module made. What a generator made for a discriminator is no batch of its own.
    """
    columns, lifetimes = session.columns, session.lifetimes
    if lifetimes is None:
        return 1

    def reads(record: int) -> list[int]:
        ids: list[int] = columns.read_ids[columns.read_offsets[record] : columns.read_offsets[record + 1]].tolist()
        return ids

    weights = {each for each in reads(reader) if lifetimes.kind[each] == StorageKind.PARAMETER}
    if not weights:
        return 1
    backward = session.counted & (columns.direction == Direction.BACKWARD)
    stretch = np.cumsum(np.diff(backward.astype(np.int8), prepend=0) == 1)
    makers = columns.written_ids[np.isin(np.repeat(np.arange(len(columns)), np.diff(columns.written_offsets)), inside)]
    same = inside[columns.signature[inside] == columns.signature[reader]]
    alike = {int(stretch[each]): reads(each) for each in reversed(same.tolist()) if weights & set(reads(each))}
    made = set(makers.tolist())
    return max(1, sum(not (set(ids) & made) for ids in alike.values()))


def _given(session: Session, record: int, made: set[int]) -> tuple[TensorSpec, ...]:
    """The tensors that a record reads, without those in ``made``, and without parameters where these are known."""
    columns, tensors = session.columns, session.signatures[int(session.columns.signature[record])].inputs
    if session.lifetimes is None:
        return tensors
    ids = columns.read_ids[columns.read_offsets[record] : columns.read_offsets[record + 1]]
    kinds = session.lifetimes.kind[ids].tolist()
    if len(kinds) != len(tensors):
        return ()
    read = zip(tensors, ids.tolist(), kinds, strict=True)
    return tuple(each for each, number, kind in read if kind not in OF_MODULES and number not in made)
