"""Whether a step does the work that a session recorded: the time of other work must not be compared with its bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rooflight.capture.kineto import works_on_memory
from rooflight.records.session import Session
from rooflight.records.tensor import TensorSpec

_Shapes = tuple[tuple[tuple[int, ...], str], ...]
_Calls = Counter[tuple[str, _Shapes, _Shapes]]


def same_calls(session: Session, again: Session) -> float | None:
    """The share of calls that two recordings have in common: the same op with the same shapes and dtypes.

    It is a share of the longer recording, so that a step is not the same as a part of it. Views do not count, since
    their number depends on the dispatch modes that are active. None if the first has nothing but views.
    """
    ours, theirs = _calls(session), _calls(again)
    if not ours:
        return None
    return (ours & theirs).total() / max(ours.total(), theirs.total())


def _calls(session: Session) -> _Calls:
    numbers = session.columns.signature[session.counted & works_on_memory(session)]
    calls: _Calls = Counter()
    for number, count in Counter(numbers.tolist()).items():
        op = session.signatures[number]
        calls[op.name, _shapes(op.inputs), _shapes(op.outputs)] += count
    return calls


def _shapes(tensors: Iterable[TensorSpec]) -> _Shapes:
    return tuple((tensor.shape, tensor.dtype) for tensor in tensors)
