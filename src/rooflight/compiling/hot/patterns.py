"""Pattern: the operations of a recorded call as one signature, to tell whether calls repeat."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import numpy as np

from rooflight.records.record import Direction
from rooflight.records.session import Session
from rooflight.records.signature import OpSignature
from rooflight.records.tensor import TensorSpec

_RANDOM: Final = ("rand", "bernoulli", "dropout", "normal_", "uniform_", "multinomial", "exponential_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Two calls have the same ``exact`` if they ran the same operations, wired alike, on the same dtypes, devices and
    sizes; the same ``shape_free`` if only sizes differ. Wiring: which earlier result, or which memory from outside,
    is each operand.
    """

    operations: int
    exact: bytes
    shape_free: bytes
    random: bool
    backward: bool
    optimizer: bool


def pattern_of(session: Session) -> Pattern:
    """The pattern of the counted records of a session."""
    columns = session.columns
    counted = np.flatnonzero(session.counted)
    numbers = columns.signature[counted]
    wiring = _wiring(session, counted)
    hashes = []
    for describe in (_exact, _shape_free):
        texts = [describe(op) for op in session.signatures]
        kinds = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        digest = blake2b(digest_size=16)
        # the kinds in order of their first call, so that their numbers do not depend on what else was recorded
        order: dict[int, int] = {}
        for number in numbers.tolist():
            order.setdefault(kinds[texts[number]], len(order))
        names = list(kinds)
        digest.update("\n".join(names[kind] for kind in order).encode())
        digest.update(np.array([order[kinds[texts[n]]] for n in numbers.tolist()], dtype=np.int64).tobytes())
        digest.update(wiring)
        hashes.append(digest.digest())
    used = {session.signatures[number].name for number in set(numbers.tolist())}
    directions = set(columns.direction[counted].tolist())
    return Pattern(
        operations=len(counted),
        exact=hashes[0],
        shape_free=hashes[1],
        random=any(part in name for name in used for part in _RANDOM),
        backward=int(Direction.BACKWARD) in directions,
        optimizer=int(Direction.OPTIMIZER) in directions,
    )


def _wiring(session: Session, counted: np.ndarray) -> bytes:
    """The storages that each op reads and writes, numbered in order of their first use."""
    columns = session.columns
    order: dict[int, int] = {}
    flat: list[int] = []
    reads, writes = columns.read_ids.tolist(), columns.written_ids.tolist()
    read_ends, write_ends = columns.read_offsets.tolist(), columns.written_offsets.tolist()
    for index in counted.tolist():
        for ids, ends in ((reads, read_ends), (writes, write_ends)):
            flat.append(-1)
            flat += [order.setdefault(number, len(order)) for number in ids[ends[index] : ends[index + 1]]]
    return np.array(flat, dtype=np.int64).tobytes()


def _exact(op: OpSignature) -> str:
    return repr(op)


def _shape_free(op: OpSignature) -> str:
    return f"{op.name} {[_rank(spec) for spec in op.inputs]} {[_rank(spec) for spec in op.outputs]}"


def _rank(spec: TensorSpec | None) -> str:
    return "-" if spec is None else f"{len(spec.shape)}:{spec.dtype}"
